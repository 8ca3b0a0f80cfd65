from pathlib import Path

import pandas as pd
import pytest
import torch

from experiments.cli.local_noise import main
from experiments.tasks.quadratic import QuadraticConfig

RUN = ["task=quadratic", "preset=smoke", "batch_size=16", "lr=0.2", "sweep.goals=[0.3]", "stop_metric=0.25"]


def arguments(folder: Path) -> list[str]:
    return [*RUN, f"results={folder}/results", f"runs={folder}/runs"]


def test_both_ways_hold_the_exact_b_noise_of_the_quadratic(tmp_path):
    assert (
        main([*arguments(tmp_path), "local.batch_sizes=[4,16,64,256]", "local.triples=100", "local.directions=16"]) == 0
    )
    table = pd.read_csv(tmp_path / "results" / "quadratic-smoke" / "local_noise.csv").set_index("quantity")
    (checkpoint,) = (tmp_path / "runs").rglob("goal-0.3/checkpoint.pt")
    weights = torch.load(checkpoint, weights_only=True)["vector"].double().numpy()
    problem = QuadraticConfig(name="quadratic").theory()
    exact = {
        "line search": float(problem.b_noise(weights**2)),
        "Hessian": float(problem.b_noise(weights**2)),
        "b_simple": float(problem.cov.sum() / ((problem.curvature * weights) ** 2).sum()),
    }
    assert set(table.index) == set(exact)
    for quantity, row in table.iterrows():
        assert row["determined"] and not isinstance(row["remark"], str)
        middle = (row["high"] / row["low"]) ** 0.5 - 1
        assert row["low"] / (1 + middle) < exact[quantity] < row["high"] * (1 + middle)
        assert row["value"] == pytest.approx(exact[quantity], rel=0.35)
    searches = pd.read_csv(tmp_path / "results" / "quadratic-smoke" / "line_searches.csv")
    steps = searches.groupby("batch_size")["step"].mean()
    assert len(searches) == 16 and steps.is_monotonic_increasing and (searches["decrease"] > 0).all()


def test_the_same_command_gives_the_same_bytes_without_training_again(tmp_path):
    small = [*arguments(tmp_path), "local.batch_sizes=[4,16,64]", "local.triples=5", "local.repetitions=2"]
    assert main(small) == 0
    table = tmp_path / "results" / "quadratic-smoke" / "local_noise.csv"
    (summary,) = (tmp_path / "runs").rglob("summary.json")
    before, done = table.read_bytes(), summary.stat().st_mtime_ns
    assert main(small) == 0
    assert table.read_bytes() == before and summary.stat().st_mtime_ns == done


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ("local.batch_sizes=[4,16]", "local.batch_sizes"),
        ("local.tripels=4", "local.tripels"),
        ("sweep.lr=-1", "sweep.lr"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(bad, named, capsys, tmp_path):
    assert main([*arguments(tmp_path), bad]) == 2
    error = capsys.readouterr().err.strip()
    assert named in error and "\n" not in error


def test_no_goal_passed(capsys, tmp_path):
    assert main([*arguments(tmp_path), "sweep.steps_budget=1", "sweep.goals=[0.26]"]) == 2
    assert "easier sweep.goals" in capsys.readouterr().err
