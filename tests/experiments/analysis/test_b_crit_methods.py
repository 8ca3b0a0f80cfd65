import math

import pandas as pd

from experiments.cli.methods import main


def write(folder):
    goals = [100.0, 60.0]
    ends = ("", "_low", "_high")
    fits = {"goal": goals} | {
        f"b_crit{end}": [1000.0 * f, 4000.0 * f] for end, f in zip(ends, (1, 0.5, 2), strict=True)
    }
    points = {"goal": goals, "loss": [4.6, 4.1], "largest": [5120, 20480], "b_branch": [math.inf, 8000.0]}
    points |= {"b_branch_low": [3000.0, 6000.0], "b_branch_high": [math.inf, 9000.0]}
    for name in ("b_simple", "b_simple_preconditioned"):
        points |= {f"{name}{end}": [200.0, 400.0] for end in ends}
    pd.DataFrame(fits).to_csv(folder / "fits.csv", index=False)
    pd.DataFrame(points).to_csv(folder / "branch_points.csv", index=False)


def test_every_method_at_every_goal(tmp_path, capsys):
    write(tmp_path)
    assert main([str(tmp_path)]) == 0
    table = pd.read_csv(tmp_path / "methods.csv").set_index(["goal", "method"])
    assert len(table) == 8
    assert table.loc[(60, "sweep"), ["value", "low", "high", "over_branch"]].tolist() == [4000, 2000, 8000, 0.5]
    assert table.loc[(60, "noise_preconditioned"), "value"] == 400
    assert table.loc[100, "over_branch"].isna().all()
    assert "above 5,120" in capsys.readouterr().out


def test_missing_tables_are_named(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "fits.csv; `make sweep` writes it" in capsys.readouterr().err
    assert main([]) == 2
