import numpy as np
import pandas as pd
import pytest

from experiments.cli.temperature import main
from experiments.config import load
from experiments.single_run import temperature
from experiments.single_run.temperature import CUTS, SEEDS, by_cut, plan, second_half

RUN = ["task=digits", "preset=smoke", "batch_size=16", "lr=0.2", "micro_batch=4"]


def test_every_cut_lowers_the_temperature_sixteenfold_over_the_same_examples():
    run = load(RUN).point(16, 0.2, 0)
    branches = plan(run)
    assert len(branches) == len(CUTS) * SEEDS
    assert len({config.run_id for _, config in branches}) == len(branches)
    for cut, config in branches:
        fall = (run.lr / run.batch_size) / (config.lr / config.batch_size)
        assert fall == pytest.approx(1 if cut.name == "none" else 16)
        assert config.max_steps * config.batch_size == 32 * 16 * 16
        assert config.stop_metric is None and config.seed != run.seed
    assert {cut.name: (config.batch_size, config.lr) for cut, config in branches} == {
        "none": (16, 0.2),
        "lr": (16, 0.0125),
        "batch": (256, 0.2),
        "both": (64, 0.05),
    }


def test_second_half_weighs_rows_by_their_measurements_and_leaves_out_the_first():
    curve = pd.DataFrame(
        {
            "step": [0, 5, 10, 16, 20],
            "noise_steps": [1, 5, 5, 6, 4],
            "grad_sq_norm": [100.0, 50.0, 30.0, 1.0, 2.0],
            "trace_cov": [0.0, 0.0, 0.0, 10.0, 20.0],
            "loss": [5.0, 4.0, 3.0, 2.0, 1.0],
            "metric": [0.5, 0.4, 0.3, 0.2, 0.1],
        }
    )
    assert second_half(curve) == {
        "grad_sq_norm": pytest.approx(1.4),
        "trace_cov": pytest.approx(14.0),
        "loss": 1.0,
        "metric": 0.1,
    }


def test_factors_are_ratios_of_means_over_seeds_against_the_uncut():
    drawn = np.random.default_rng(0)
    rows = [
        {
            "goal": 0.1,
            "cut": cut,
            "batch_size": 16,
            "lr": 0.1,
            "metric": 0.1,
            "trace_cov": trace,
            "grad_sq_norm": square,
        }
        for cut, b_simple in (("none", 50.0), ("lr", 200.0))
        for square in drawn.normal(1, 0.1, 20)
        for trace in [b_simple * (1 + 0.05 * drawn.normal())]
    ]
    table = by_cut(pd.DataFrame(rows)).set_index("cut")
    assert table.loc["none", "factor"] == 1
    assert table.loc["lr", "factor"] == pytest.approx(4, rel=0.1)
    for cut, truth in (("none", 50), ("lr", 200)):
        assert table.loc[cut, "b_simple_low"] < truth < table.loc[cut, "b_simple_high"]


@pytest.mark.slow
def test_from_end_to_end_and_again_to_the_same_bytes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(temperature, "STEPS", 4)
    arguments = [*RUN, "sweep.goals=[0.3]", "stop_metric=0.25", f"results={tmp_path}/results", f"runs={tmp_path}/runs"]
    assert main(arguments) == 0
    table = tmp_path / "results" / "digits-smoke" / "temperature.csv"
    before = table.read_bytes()
    found = pd.read_csv(table)
    assert found["cut"].tolist() == [cut.name for cut in CUTS] and (found["b_simple"] > 0).any()
    assert len(pd.read_csv(table.with_name("temperature_branches.csv"))) == len(CUTS) * SEEDS
    assert main(arguments) == 0
    assert table.read_bytes() == before
    assert capsys.readouterr().out.count("goal 0.3, cut") == 2 * len(CUTS)


def test_a_batch_of_one_micro_batch_is_refused(capsys, tmp_path):
    assert main([*RUN, "micro_batch=16", f"results={tmp_path}", f"runs={tmp_path}"]) == 2
    assert "micro_batch" in capsys.readouterr().err
