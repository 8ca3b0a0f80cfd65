import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.cli.command import start
from experiments.config import load
from experiments.errors import UserError
from experiments.single_run.adaptive_batch import AdaptiveConfig, AdaptiveTrainer, Job, front, gamma, path, plan
from experiments.single_run.adaptive_batch import measure as adaptive
from experiments.tasks import TASKS
from experiments.training.record import RunRecord

ARGUMENTS = ["task=quadratic", "preset=smoke", "micro_batch=8", "sweep.batch_sizes=[16,64,256]", "cluster.workers=1"]
CPU = torch.device("cpu")


def job(r: float = 100.0) -> Job:
    suite = load(ARGUMENTS)
    found = plan(suite, AdaptiveConfig(r=(r,)))[0]
    measure = replace(found.run.measure, half_life=100.0)
    return found._replace(run=replace(found.run, max_steps=300, stop_metric=None, measure=measure))


def trained(found: Job, folder: Path) -> AdaptiveTrainer:
    trainer = AdaptiveTrainer(found, TASKS["quadratic"][1](found.run.task, 0, CPU), CPU)
    trainer.run(RunRecord(folder), math.inf)
    return trainer


def test_the_batch_follows_the_noise_scale_and_examples_are_counted(tmp_path):
    trainer = trained(job(), tmp_path)
    rows = pd.DataFrame(trainer.rows)
    sizes = path(rows)["batch_size"].to_numpy()
    assert (np.diff(rows["examples"]) == sizes * np.diff(rows["step"])).all()
    assert sizes[0] == 16 and len(set(sizes)) > 1 and set(sizes) <= {16, 32, 64, 128, 256}
    noise, known = rows["b_simple"].to_numpy()[:-1], np.isfinite(rows["b_simple_high"].to_numpy())[:-1]
    wanted = np.clip(np.sqrt(100 * noise[known]), 16, 256)
    assert known.sum() > 2 and (np.abs(np.log(sizes[known] / wanted)) < math.log(1.7) + 1e-9).all()
    last, noise_of_rule = trainer.schedule.batch_size, job().noise
    expected = job().run.lr * (1 + noise_of_rule / 16) / (1 + noise_of_rule / last)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(expected) and last > 16


def test_a_killed_run_resumes_bit_for_bit(tmp_path):
    whole = trained(job(), tmp_path / "whole")
    cut = AdaptiveTrainer(job(), TASKS["quadratic"][1](job().run.task, 0, CPU), CPU)
    record = RunRecord(tmp_path / "cut")

    class Killed(Exception):
        pass

    def kill():
        if cut.step > 100:
            record.save_checkpoint(cut.state_dict())
            raise Killed

    with pytest.raises(Killed):
        cut.run(record, math.inf, kill)
    again = trained(job(), tmp_path / "cut")
    assert torch.equal(again.flat.vector, whole.flat.vector)
    for ours, theirs in zip(again.rows, whole.rows, strict=True):
        assert {**ours, "seconds": 0} == pytest.approx({**theirs, "seconds": 0}, abs=0, nan_ok=True)


def curve(noise: list[float], sizes: list[int], steps: list[int]) -> pd.DataFrame:
    step = np.concatenate([[0], np.cumsum(steps)])
    examples = np.concatenate([[0], np.cumsum(np.multiply(sizes, steps))])
    return pd.DataFrame({"step": step, "examples": examples, "metric": 1.0, "b_simple": [math.nan, *noise]})


def test_gamma_is_one_where_the_noise_does_not_change_and_exact_where_it_does():
    assert gamma(curve([5.0] * 3, [8, 16, 32], [3, 7, 9]), 19) == pytest.approx(1)
    # Half of the full-batch steps at 𝓑 = 1, half at 9: (½·1 + ½·3)²/(½·1 + ½·9).
    assert gamma(curve([1.0, 9.0], [1, 9], [10, 10]), 20) == pytest.approx(4 / 5)
    assert gamma(curve([1.0, 9.0], [1, 9], [10, 10]), 10) == pytest.approx(1)
    assert math.isnan(gamma(curve([math.nan, -3.0], [1, 9], [10, 10]), 20))


def test_the_front_takes_the_cheapest_learning_rate_and_stands_beside_the_fixed_one():
    rows = [
        {"r": 16.0, "lr": lr, "seed": seed, "goal": 0.1, "steps": s, "examples": e, "reached": reached, "gamma": 0.9}
        for lr, s, e, reached in ((0.1, 40.0, 900.0, True), (0.2, 20.0, 800.0, True), (0.4, 10.0, 100.0, False))
        for seed in (0, 1)
    ]
    fits = pd.DataFrame({"goal": [0.1], "s_min": [10.0], "e_min": [500.0]})
    (row,) = front(pd.DataFrame(rows), fits).to_dict("records")
    assert (row["lr"], row["steps"], row["examples"], row["seeds"]) == (0.2, pytest.approx(20), pytest.approx(800), 2)
    assert row["fixed_examples"] == pytest.approx(1000) and row["over_fixed"] == pytest.approx(0.8)
    assert math.isnan(front(pd.DataFrame(rows), fits.assign(s_min=30.0))["over_fixed"].iloc[0])


def test_every_price_has_the_grid_and_an_id_of_its_own():
    suite = load(ARGUMENTS)
    jobs = plan(suite, AdaptiveConfig(r=(10, 100)))
    assert len(jobs) == 2 * suite.sweep.points * suite.sweep.seeds
    assert len({found.run_id for found in jobs}) == len(jobs)
    assert {found.run.batch_size for found in jobs} == {16} and {found.largest for found in jobs} == {256}
    with pytest.raises(UserError, match=r"micro_batch=128: .*\nallowed: below 128"):
        plan(load([*ARGUMENTS, "micro_batch=128", "sweep.batch_sizes=[128,256]"]), AdaptiveConfig())


@pytest.mark.slow
def test_from_end_to_end_and_again_to_the_same_bytes(tmp_path, capsys):
    arguments = [*ARGUMENTS, "adaptive.r=[30,300]", f"results={tmp_path}/results", f"runs={tmp_path}/runs"]
    assert start(arguments, "adaptive", AdaptiveConfig, adaptive) == 2
    assert "make sweep TASK=quadratic" in capsys.readouterr().err
    folder = tmp_path / "results" / "quadratic-smoke"
    folder.mkdir(parents=True)
    goals = load(ARGUMENTS).sweep.goals
    pd.DataFrame({"goal": goals, "s_min": 5.0, "e_min": 50.0}).to_csv(folder / "fits.csv", index=False)
    written = []
    for _ in range(2):
        assert start(arguments, "adaptive", AdaptiveConfig, adaptive) == 0
        written.append([(folder / f"adaptive{end}.csv").read_bytes() for end in ("", "_runs", "_paths")])
    assert written[0] == written[1]
    table = pd.read_csv(folder / "adaptive.csv")
    assert len(table) == 2 * len(goals) and table["reached"].all()


def test_what_is_wrong_is_named_with_the_keys(capsys):
    assert start([*ARGUMENTS, "adaptive.price=3"], "adaptive", AdaptiveConfig, adaptive) == 2
    assert "adaptive.price" in (error := capsys.readouterr().err) and "keys: adaptive.r" in error
