import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.cli.branch import main
from experiments.config import load
from experiments.errors import UserError
from experiments.single_run.branching import BranchConfig, largest_within, measure, plan, rescaled
from experiments.single_run.snapshots import branch, trunk
from experiments.tasks import TASKS
from experiments.training.loop import Trainer
from experiments.training.record import RunRecord

CPU = torch.device("cpu")
SIZES = [10, 20, 40, 80, 160]


def suite(tmp_path, *overrides):
    return load(
        [
            *(
                "task=digits",
                "preset=smoke",
                "cluster.workers=1",
                f"runs={tmp_path}/runs",
                f"results={tmp_path}/results",
            ),
            *("sweep.goals=[0.4,0.2]", "stop_metric=0.2", "batch_size=16", "lr=0.1", "sweep.batch_sizes=[16,64,256]"),
            *overrides,
        ]
    )


def test_learning_rates_follow_the_optimizer():
    assert rescaled(0.01, "adam", 16) == 0.04
    assert rescaled(0.01, "rmsprop", 4) == 0.02
    assert rescaled(0.01, "sgd", 16) == 0.16
    assert rescaled(0.01, "momentum", 4) == 0.04


def test_largest_within_interpolates_in_log_batch_size():
    exact = np.tile([0.0, 0.0, 0.01, 0.03, 0.2], (2, 1))
    found = largest_within(SIZES, exact, tolerance=0.02)
    assert found.value == pytest.approx(40 * math.sqrt(2))
    assert found.low == pytest.approx(found.value) and found.high == pytest.approx(found.value)


def test_the_first_passing_counts():
    excess = np.tile([0.0, 0.03, -0.01, -0.01, 0.5], (2, 1))
    assert largest_within(SIZES, excess, 0.02).value == pytest.approx(10 * 2 ** (2 / 3))


def test_beyond_the_largest_and_divergence():
    within = np.array([[0.0, 0.001, 0.0, 0.001, 0.0], [0.0, -0.001, 0.0, 0.001, 0.002]])
    assert largest_within(SIZES, within, 0.02).value == math.inf
    assert largest_within(SIZES, within, 0.02).low == math.inf
    burst = within.copy()
    burst[1, 4] = math.inf
    assert largest_within(SIZES, burst, 0.02).value == pytest.approx(80)
    with pytest.raises(ValueError, match="zeros in its first column"):
        largest_within(SIZES, within - np.inf, 0.02)


def test_interval_covers_the_planted_batch_size():
    rng = np.random.default_rng(1)
    sizes = 10.0 * 2 ** np.arange(7)
    true_excess = 0.02 * np.log(sizes / 10) / np.log(16)  # passes .02 at 160
    inside, above = 0, 0
    for _ in range(600):
        losses = true_excess + 0.004 * rng.standard_normal((3, 7))
        found = largest_within(sizes, losses - losses[:, :1], 0.02)
        inside += found.low <= 160 <= found.high
        above += found.low > 160
    # Beyond 95%: the margin is for one batch size, while the first of several noisy ones to pass counts.
    assert 0.92 <= inside / 600 <= 0.995
    assert above / 600 < 0.03


def test_branches_share_their_examples(tmp_path):
    config = BranchConfig(seeds=2, share=0.5, min_steps=4)
    s = suite(tmp_path)
    runs = plan(config, s, s.point(16, 0.1, 0), seen=3000)
    assert [run.batch_size for run in runs] == [16, 64, 256] * 2
    assert {run.batch_size * run.max_steps for run in runs} == {1536}
    assert [run.lr for run in runs[:3]] == [0.1, 0.4, 1.6]
    assert {run.seed for run in runs} == {1, 2}
    assert [run.batch_size for run in plan(config, s, s.point(16, 0.1, 0), seen=600)] == [16, 64] * 2
    assert plan(config, s, s.point(16, 0.1, 0), seen=100) == []
    with pytest.raises(UserError, match=r"\[48\] do not divide 256"):
        plan(config, suite(tmp_path, "sweep.batch_sizes=[16,48,256]", "micro_batch=16"), s.point(16, 0.1, 0), 3000)


def test_a_branch_is_the_trunk_going_on_with_other_data(tmp_path):
    s = suite(tmp_path)
    run = s.point(16, 0.1, 0)
    point = trunk(s, run, RunRecord(tmp_path / "trunk"))[0.4]
    branched = replace(run, seed=7, max_steps=20, stop_metric=None)
    branch(s, point, branched)
    ended = RunRecord(point.folder / branched.run_id).read()
    assert ended is not None

    parent = point.load_checkpoint(CPU)
    assert parent is not None
    task = TASKS["digits"][1](run.task, 0, CPU)
    trainer = Trainer(run, task, CPU)
    trainer.load_state_dict(parent)
    assert task.evaluate().loss == parent["rows"][-1]["loss"] == ended[2]["loss"].iloc[0]
    trainer.generator.set_state(branched.stream("batches").get_state())
    for _ in range(20):
        trainer.train_step()
    assert task.evaluate().loss == ended[2]["loss"].iloc[-1]


def test_adam_keeps_its_moments_and_takes_the_new_rates(tmp_path):
    adam = ("optimizer.name=adam", "optimizer.beta1=0.9", "optimizer.beta2_half_life=16000", "optimizer.eps=1e-8")
    s = suite(tmp_path, *adam, "lr=0.001")
    run = s.point(16, 0.001, 0)
    point = trunk(s, run, RunRecord(tmp_path / "trunk"))[0.4]
    parent = point.load_checkpoint(CPU)
    assert parent is not None
    wide = replace(run, batch_size=256, lr=rescaled(run.lr, "adam", 16), seed=1, max_steps=1, stop_metric=None)
    branch(s, point, wide)
    ended = RunRecord(point.folder / wide.run_id).read()
    assert ended is not None

    task = TASKS["digits"][1](run.task, 0, CPU)
    trainer = Trainer(wide, task, CPU)
    trainer.flat.vector.data.copy_(parent["vector"])
    trainer.optimizer.state[trainer.flat.vector] = {k: v.clone() for k, v in parent["optimizer"]["state"][0].items()}
    assert trainer.optimizer.param_groups[0]["betas"] == (0.9, 0.5 ** (256 / 16000))
    assert trainer.optimizer.param_groups[0]["lr"] == 0.004
    trainer.generator.set_state(wide.stream("batches").get_state())
    trainer.train_step()
    assert task.evaluate().loss == ended[2]["loss"].iloc[-1]


def test_a_goal_that_is_newer_than_the_trunk_trains_it_again(tmp_path):
    s = suite(tmp_path, "sweep.goals=[0.4]")
    run = s.point(16, 0.1, 0)
    folder = RunRecord(tmp_path / "trunk")
    first = trunk(s, run, folder)[0.4].load_checkpoint(CPU)
    s = replace(s, sweep=replace(s.sweep, goals=(0.5, 0.4, 0.001)))
    points = trunk(s, run, folder)
    assert list(points) == [0.5, 0.4]
    easier, again = (points[goal].load_checkpoint(CPU) for goal in (0.5, 0.4))
    assert first is not None and easier is not None and again is not None
    assert easier["step"] <= again["step"] == first["step"] and torch.equal(first["vector"], again["vector"])
    finished = (folder.folder / "summary.json").stat().st_mtime_ns
    trunk(s, run, folder)
    assert (folder.folder / "summary.json").stat().st_mtime_ns == finished


@pytest.mark.slow
def test_from_command_to_tables_and_again_from_what_is_there(tmp_path, capsys):
    arguments = [
        *("task=digits", "preset=smoke", "cluster.workers=2", f"runs={tmp_path}/runs", f"results={tmp_path}/results"),
        *("sweep.goals=[0.4,0.2]", "stop_metric=0.2", "batch_size=16", "lr=0.1", "sweep.batch_sizes=[16,64,256]"),
        *("branch.seeds=2", "branch.min_steps=2", "branch.noise_rows=4", "branch.noise_parts=4"),
    ]
    assert main(arguments) == 0
    assert capsys.readouterr().out.count("B_crit by branching") == 2
    folder = tmp_path / "results" / "digits-smoke"
    first = {name: (folder / name).read_bytes() for name in ("branches.csv", "branch_points.csv", "branch_layers.csv")}
    points = pd.read_csv(folder / "branch_points.csv")
    assert points["goal"].tolist() == [0.4, 0.2]
    assert (points["b_branch_low"] <= points["b_branch"]).all()
    assert (points["b_simple_low"] < points["b_simple"]).all()
    summaries = sorted((tmp_path / "runs" / "digits-smoke-branch").rglob("summary.json"))
    ages = [path.stat().st_mtime_ns for path in summaries]
    assert main(arguments) == 0
    assert [path.stat().st_mtime_ns for path in summaries] == ages
    assert {name: (folder / name).read_bytes() for name in first} == first


def test_a_trunk_that_passes_no_goal_is_said(tmp_path):
    s = suite(tmp_path, "sweep.goals=[0.001]", "stop_metric=0.001", "sweep.steps_budget=1")
    with pytest.raises(UserError, match="passes no goal"):
        measure(s, BranchConfig())


def test_wrong_keys_name_the_right_ones(capsys):
    assert main(["task=digits", "branch.seed=3"]) == 2
    assert "branch.seed" in capsys.readouterr().err
    assert main(["task=digits", "branch.seeds=1"]) == 2
    assert "branch.tolerance" in capsys.readouterr().err
