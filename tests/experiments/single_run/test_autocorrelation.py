from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.cli.command import start
from experiments.single_run.autocorrelation import LagConfig, lags, measure, products

RUN = ["task=quadratic", "preset=smoke", "batch_size=16", "lr=0.05", "sweep.goals=[0.5]", "stop_metric=0.4"]


def test_lags_are_powers_of_two_up_to_half_the_way():
    assert lags(64) == [1, 2, 4, 8, 16, 32] and lags(4) == [1, 2] and lags(7) == [1, 2]


def test_planted_correlation_is_found_under_noise_that_would_hide_it():
    """G turns at a constant rate in a plane, so ρ(τ) = cos(ωτ); the noise of a half is 30 times |G|²."""
    rng = torch.Generator().manual_seed(0)
    omega, steps, width = 0.1, 400, 2000
    angle = omega * torch.arange(steps)
    true = torch.zeros(steps, width)
    true[:, 0], true[:, 1] = angle.cos(), angle.sin()
    first, second = (true + (30 / width) ** 0.5 * torch.randn(steps, width, generator=rng) for _ in range(2))
    for lag in (1, 8, 16):
        across, square = products(first, second, lag)
        assert across / square == pytest.approx(np.cos(omega * lag), abs=0.1)
    assert products(true, true, 4)[0] == pytest.approx(np.cos(0.4), rel=1e-4)


def arguments(folder: Path) -> list[str]:
    return [*RUN, "lag.steps=16", "lag.continuations=4", f"results={folder}/results", f"runs={folder}/runs"]


def test_a_quadratics_gradient_decays_and_the_same_command_gives_the_same_bytes(tmp_path):
    assert start(arguments(tmp_path), "lag", LagConfig, measure) == 0
    table = tmp_path / "results" / "quadratic-smoke" / "autocorrelation.csv"
    before = table.read_bytes()
    found = pd.read_csv(table)
    assert found["lag"].tolist() == [1, 2, 4, 8] and found["determined"].all()
    assert found["correlation"].iloc[0] > 0.8 and found["correlation"].iloc[-1] < found["correlation"].iloc[0]
    assert (found["correlation_low"] < found["correlation"]).all()
    assert start(arguments(tmp_path), "lag", LagConfig, measure) == 0
    assert table.read_bytes() == before


def test_no_goal_passed(capsys, tmp_path):
    assert start([*arguments(tmp_path), "sweep.steps_budget=1", "sweep.goals=[0.41]"], "lag", LagConfig, measure) == 2
    assert "easier sweep.goals" in capsys.readouterr().err
