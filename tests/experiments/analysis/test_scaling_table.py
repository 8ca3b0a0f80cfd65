import numpy as np
import pandas as pd
import pytest
from synthetic_tables import Planted, plant

from experiments.cli.scaling import main

GOALS = np.array([120.0, 100.0, 80.0, 70.0, 60.0])


def results(folder, metric="last_token_perplexity", undetermined=1):
    tables = plant(Planted(batch_sizes=(4, 16), lr_steps=(0,), seeds=1))
    tables.runs.assign(metric=metric).to_parquet(folder / "runs.parquet")
    tables.curves.to_parquet(folder / "curves.parquet")
    b_crit = 3e6 / np.log(GOALS) ** 4
    fits = pd.DataFrame({"goal": GOALS, "b_crit": b_crit, "b_crit_low": b_crit / 1.3, "b_crit_high": b_crit * 1.3})
    fits["b_crit_status"] = "determined"
    fits.loc[: undetermined - 1, ["b_crit", "b_crit_low", "b_crit_high", "b_crit_status"]] = [
        7.0,
        0.0,
        np.inf,
        "not_determined",
    ]
    fits.to_csv(folder / "fits.csv", index=False)


def test_planted_law_comes_back_beside_kaplan(tmp_path, capsys):
    results(tmp_path)
    assert main([str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "scaling.csv").set_index("constant")
    assert table.loc["b_star", "value"] == pytest.approx(3e6, rel=1e-5)
    assert table.loc["alpha", "value"] == pytest.approx(0.25, rel=1e-5)
    assert table["kaplan_2020"].tolist() == pytest.approx([2e8, 0.21, 1 / 0.21])
    assert "over 4 goals (1 not determined)" in capsys.readouterr().out


def test_too_few_goals_and_other_metrics_are_refused(tmp_path, capsys):
    results(tmp_path, undetermined=3)
    assert main([str(tmp_path)]) == 2
    assert "2 of 5 goals have a determined B_crit: 2 goals" in capsys.readouterr().err
    results(tmp_path, metric="train_error")
    assert main([str(tmp_path)]) == 2
    assert "goals are values of train_error" in capsys.readouterr().err
    assert main([]) == 2
