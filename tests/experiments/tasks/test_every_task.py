"""What holds for every task in the registry; a new one is tested here for free."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from experiments.config import RunConfig, load
from experiments.errors import UserError
from experiments.tasks import TASKS, Task
from experiments.training.loop import Trainer
from experiments.training.record import RunRecord

CPU = torch.device("cpu")
# One of each kind; the others differ by a name or a size.
LIKE_OTHERS = {
    "breakout",
    "space_invaders",
    "beam_rider",
    "alien",
    "qbert",
    "seaquest",
    "lm_narrow",
    "lm_wide",
    "pong_selfplay_2v2",
}
KINDS = [name for name in TASKS if name not in LIKE_OTHERS]
LIGHT = {"quadratic", "digits", "svhn", "svhn_autoencoder", "lm", "cartpole"}


def run_config(name: str) -> RunConfig:
    suite = load([f"task={name}", "preset=smoke"])
    return suite.point(suite.sweep.batch_sizes[0], suite.sweep.lr / 10, 0)


def build(run: RunConfig, seed: int = 0) -> Task:
    if hasattr(run.task, "env_id") and not importlib.util.find_spec("gymnasium"):
        pytest.skip("needs the atari extra")
    try:
        return TASKS[run.task.name][1](run.task, seed, CPU)
    except UserError as error:
        pytest.skip(str(error).splitlines()[0])


@pytest.fixture(params=[pytest.param(name, marks=[] if name in LIGHT else [pytest.mark.slow]) for name in KINDS])
def run(request) -> RunConfig:
    return run_config(request.param)


def test_says_what_it_is(run):
    task = build(run)
    assert task.unit and task.data and task.sample_size >= 1
    assert task.metric.name and task.metric.direction in ("min", "max")
    assert type(task).unit == task.unit and type(task).metric == task.metric, "known before anything is built"


def test_batches_are_samples_by_the_given_generator(run):
    task = build(run)
    samples = run.batch_size // task.sample_size
    first = task.batch(samples, torch.Generator().manual_seed(3))
    assert all(len(tensor) == samples for tensor in first)
    if getattr(task, "probes", True):
        again = task.batch(samples, torch.Generator().manual_seed(3))
        other = task.batch(samples, torch.Generator().manual_seed(4))
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_weights_come_from_the_seed_alone(run):
    torch.manual_seed(1)
    first = [p.detach().clone() for p in build(run).model.parameters()]
    torch.manual_seed(2)
    again = list(build(run).model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    if run.task.name != "quadratic":
        other = list(build(run, seed=1).model.parameters())
        assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_evaluating_is_repeatable_and_touches_nothing(run):
    task = build(run)
    before = torch.get_rng_state()
    kept = {key: value.clone() for key, value in task.model.state_dict().items()}
    assert tuple(task.evaluate()) == tuple(task.evaluate())
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(kept[key], value) for key, value in task.model.state_dict().items())


def test_two_runs_of_one_config_are_the_same_run(run, tmp_path):
    run = replace(run, max_steps=6, stop_metric=None)
    curves = []
    for name in ("a", "b"):
        record = RunRecord(tmp_path / name)
        record.start(run)
        Trainer(run, build(run), CPU).run(record, 1e9)
        read = record.read()
        assert read is not None
        curves.append(read[2].drop(columns="seconds"))
    assert curves[0].equals(curves[1])
