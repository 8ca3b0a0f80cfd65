import pandas as pd
import pytest

from experiments.cli.variations import main
from experiments.config import load
from experiments.single_run import variations
from experiments.single_run.variations import VARIED

SMALL = ["task=quadratic", "preset=smoke", "sweep=fixed", "sweep.batch_sizes=[4,32,256]", "sweep.seeds=1"]
SMALL += ["task.dim=1000", "measure.curvature=false"]


@pytest.mark.parametrize("task", VARIED)
def test_every_variation_composes_and_is_another_experiment(task):
    suites = [load([f"task={task}", "preset=small", *overrides]) for overrides in VARIED[task].values()]
    assert len({suite.run.run_id for suite in suites}) == len(suites)
    assert VARIED[task]["as chosen"] == ()


def test_a_task_of_which_nothing_is_varied_is_refused(capsys):
    assert main(["task=digits"]) == 2
    assert "task=digits: nothing of it is varied; allowed: svhn_autoencoder, svhn_vae" in capsys.readouterr().err


def test_variations_stand_side_by_side_and_come_out_the_same_again(tmp_path, monkeypatch):
    monkeypatch.setitem(VARIED, "quadratic", {"as chosen": (), "half the rate": ("sweep.lr=0.9",)})
    arguments = [*SMALL, f"results={tmp_path}/results", f"runs={tmp_path}/runs"]
    assert main(arguments) == 0
    table = tmp_path / "results" / "quadratic-smoke" / "variations.csv"
    before, found = table.read_bytes(), pd.read_csv(table)
    assert found["variation"].unique().tolist() == ["as chosen", "half the rate"]
    first, second = (rows["s_min"].to_numpy() for _, rows in found.groupby("variation"))
    assert len(first) == len(load(SMALL).sweep.goals) and (first != second).all()
    monkeypatch.setattr(variations, "train_one", None)
    assert main(arguments) == 0 and table.read_bytes() == before
