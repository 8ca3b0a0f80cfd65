"""The loop trains what a bare loop would, resumes bit for bit, and measures what it says."""

import math
from dataclasses import replace
from itertools import pairwise

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from experiments.config import RunConfig, load
from experiments.errors import UserError
from experiments.tasks.digits import DigitsTask
from experiments.training.flat_model import FlatModel
from experiments.training.loop import Trainer, evaluation_steps, make_optimizer
from experiments.training.record import SPOILT, RunRecord
from experiments.training.stop_signal import Leaving
from noisescale import gradient_moments

CPU = torch.device("cpu")


def config(**changes) -> RunConfig:
    run = load(["task=digits", "preset=smoke"]).run
    return replace(
        run, **{"batch_size": 64, "micro_batch": 16, "max_steps": 30, "stop_metric": None, "lr": 0.2} | changes
    )


def trainer(run: RunConfig) -> Trainer:
    return Trainer(run, DigitsTask(run.task, run.seed, CPU), CPU)


def weights(found: Trainer) -> torch.Tensor:
    return found.flat.vector.detach().clone()


OPTIMIZERS = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "adam": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    "rmsprop": {"alpha": 0.99, "eps": 1e-2},
}


@pytest.mark.parametrize("batch_size", [16, 64])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_trains_exactly_as_a_bare_loop(name, batch_size, tmp_path):
    run = config(batch_size=batch_size, lr=0.02)
    run = replace(run, optimizer=replace(run.optimizer, name=name, clip=1.0, **OPTIMIZERS[name]))
    ours = trainer(run)
    ours.run(RunRecord(tmp_path), math.inf)

    task = DigitsTask(run.task, run.seed, CPU)
    vectors = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.02),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.9, 0.999), eps=1e-8),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.02, alpha=0.99, eps=1e-2),
    }
    optimizer = vectors[name](task.model.parameters())
    generator = run.stream("batches")
    parts = batch_size // 16
    for _ in range(run.max_steps):
        optimizer.zero_grad()
        images, labels = task.batch(batch_size, generator)
        for x, y in zip(images.split(16), labels.split(16), strict=True):
            F.cross_entropy(task.model(x), y).backward()
        for p in task.model.parameters():
            p.grad /= parts
        torch.nn.utils.clip_grad_norm_(task.model.parameters(), 1.0)
        optimizer.step()
    theirs = torch.cat([p.detach().reshape(-1) for p in task.model.parameters()])
    torch.testing.assert_close(weights(ours), theirs, rtol=1e-5, atol=1e-6)


def test_a_flat_model_keeps_its_weights_memory_format_and_its_function():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 2))
    model = model.to(memory_format=torch.channels_last)
    images = torch.randn(5, 3, 4, 4)
    expected = model(images)
    gradients = torch.autograd.grad(expected.square().sum(), list(model.parameters()))
    flat = FlatModel(model)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(model(images), expected)
    total = torch.zeros_like(flat.vector)
    flat.differentiate(model(images).square().sum(), flat.views(total))
    for part, gradient in zip(flat.slices.values(), gradients, strict=True):
        assert total[part].dot(total[part]) == pytest.approx(float(gradient.square().sum()), rel=1e-5)
    before = [p.detach().clone() for p in model.parameters()]
    flat.vector.data.sub_(total)
    for p, was, gradient in zip(model.parameters(), before, gradients, strict=True):
        assert torch.equal(p, was - gradient)


@pytest.mark.parametrize("weight", [torch.randn(4, 5)[:, :3], torch.randn(4, 1).expand(4, 3), torch.randn(3, 4).t()])
def test_a_flat_model_takes_weights_with_gaps_and_overlaps_in_memory(weight):
    model = torch.nn.Linear(3, 4)
    model.weight = torch.nn.Parameter(weight)
    expected = weight.clone()
    flat = FlatModel(model)
    assert torch.equal(model.weight, expected)
    flat.vector.data[flat.slices["bias"]] = 7
    assert torch.equal(model.weight, expected)
    flat.vector.data[flat.slices["weight"]] += 1
    assert torch.equal(model.weight, expected + 1)


@pytest.mark.parametrize("batch_size", [16, 64])
def test_measuring_changes_no_bit_of_training(batch_size, tmp_path):
    run = config(batch_size=batch_size)
    run = replace(run, measure=replace(run.measure, curvature=True, probe_share=1.0))
    measured, bare = trainer(run), trainer(run)
    measured.run(RunRecord(tmp_path), math.inf)
    bare.noise.add = lambda *args: None
    for _ in range(run.max_steps):
        bare.train_step()
    assert len(measured.rows) > 10 and sum(row["noise_steps"] for row in measured.rows) > 5
    assert torch.equal(weights(measured), weights(bare))


def test_a_row_holds_the_moments_of_its_steps():
    run = config()
    found = trainer(run)
    found.evaluate()
    task = DigitsTask(run.task, run.seed, CPU)
    batch = task.batch(64, run.stream("batches"))
    gradients = []
    for piece in zip(*(t.split(16) for t in batch), strict=True):
        grads = torch.autograd.grad(task.loss(piece), list(task.model.parameters()))
        gradients.append(torch.cat([g.reshape(-1) for g in grads]).double())
    stacked = torch.stack(gradients)
    expected = gradient_moments(stacked.square().sum(1), [16] * 4, stacked.mean(0).square().sum())
    found.train_step()
    found.evaluate()
    row = found.rows[-1]
    assert row["noise_steps"] == 1 and row["noise_examples"] == 64
    assert row["grad_sq_norm"] == pytest.approx(float(expected.grad_sq_norm), rel=1e-4)
    assert row["trace_cov"] == pytest.approx(float(expected.trace_cov), rel=1e-4)


def test_groups_add_up_and_adams_metric_is_its_second_moment(tmp_path):
    run = config(max_steps=12, lr=1e-3)
    run = replace(run, optimizer=replace(run.optimizer, name="adam", beta1=0.9, beta2=0.99, eps=1e-8))
    task = DigitsTask(run.task, run.seed, CPU)
    task.groups = {"convolutions": ["0.", "2."], "head": ["5."]}  # type: ignore[attr-defined]
    found = Trainer(run, task, CPU)
    record = RunRecord(tmp_path)
    record.start(run)
    found.run(record, math.inf)
    groups = pd.read_parquet(tmp_path / "groups.parquet")
    assert list(groups["group"].unique()) == ["convolutions", "head", "preconditioned"]
    read = record.read()
    assert read is not None
    curve = read[2].set_index("step")
    for column in ("grad_sq_norm", "trace_cov"):
        wide = groups.pivot(index="step", columns="group", values=column)
        total = wide["convolutions"] + wide["head"]
        assert total.to_numpy() == pytest.approx(curve.loc[total.index, column].to_numpy(), rel=1e-4)
        assert wide["preconditioned"].iloc[2:].notna().all()

    v = found.optimizer.state[found.flat.vector]["exp_avg_sq"] / (1 - 0.99**12)
    gradient = torch.randn(found.flat.vector.numel())
    expected = (gradient / (v.sqrt() + 1e-8))[v > 0].square().sum()
    assert float(found.noise.norms(gradient)[-1]) == pytest.approx(float(expected), rel=1e-4)


def test_probes_stay_within_their_share(tmp_path):
    run = config(batch_size=8, max_steps=2000)
    run = replace(run, measure=replace(run.measure, probe_share=0.02))
    found = trainer(run)
    found.run(RunRecord(tmp_path), math.inf)
    seen = sum(row["noise_examples"] for row in found.rows[1:])
    assert 0.6 * 0.02 <= seen / (8 * 2000) <= 0.02
    assert found.rows[0]["noise_examples"] == 64


@pytest.mark.parametrize("batch_size", [16, 64])
def test_a_killed_run_resumes_to_the_same_curve(batch_size, tmp_path):
    run = config(batch_size=batch_size, max_steps=60)
    run = replace(
        run,
        optimizer=replace(run.optimizer, name="adam", beta1=0.9, beta2=0.999, eps=1e-8),
        measure=replace(run.measure, probe_share=1.0),
        lr=0.01,
    )
    whole = RunRecord(tmp_path / "whole")
    whole.start(run)
    trainer(run).run(whole, math.inf)

    class Killed(BaseException):
        pass

    cut, rows = RunRecord(tmp_path / "cut"), 0

    def kill():
        nonlocal rows
        rows += 1
        if rows == 15:
            raise Killed

    cut.start(run)
    with pytest.raises(Killed):
        trainer(run).run(cut, 0.0, on_row=kill)
    assert cut.read() is None, "a killed run must not read as finished"
    resumed, steps = trainer(run), 0

    def counted() -> None:
        nonlocal steps
        steps += 1
        Trainer.train_step(resumed)

    resumed.train_step = counted
    resumed.run(cut, math.inf)
    assert 0 < steps < run.max_steps, "it started over"
    first, second = whole.read(), cut.read()
    assert first is not None and second is not None
    assert first[2]["noise_steps"].sum() > 0
    pd.testing.assert_frame_equal(first[2].drop(columns="seconds"), second[2].drop(columns="seconds"), check_exact=True)


def test_a_checkpoint_of_another_structure_is_put_aside_and_the_run_starts_over(tmp_path):
    record = RunRecord(tmp_path)
    for state in ({"step": 3}, trainer(config(seed=1)).state_dict() | {"vector": torch.zeros(7)}):
        record.save_checkpoint(state)
        with pytest.raises(UserError, match=r"checkpoint\.pt is not of this run .* the same command starts over"):
            trainer(config()).run(record, math.inf)
        assert (tmp_path / SPOILT).exists()
        assert trainer(config()).run(record, math.inf).step == 30


def test_a_run_that_was_stopped_on_the_processor_goes_on_on_a_gpu(tmp_path):
    """As far as a machine without one can say: the checkpoint has no state of CUDA's random numbers."""
    first, second = trainer(config()), trainer(config())
    first.train_step()
    second.device = torch.device("cuda")
    second.load_state_dict(first.state_dict())
    assert second.step == 1 and torch.equal(weights(first), weights(second))


@pytest.mark.cuda
@pytest.mark.parametrize("begun, finished", [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_run_goes_on_on_another_device(begun, finished, tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    run, record, left = config(), RunRecord(tmp_path), iter([False] * 10 + [True])
    there, here = (Trainer(run, DigitsTask(run.task, 0, torch.device(d)), torch.device(d)) for d in (begun, finished))
    with pytest.raises(Leaving):
        there.run(record, math.inf, must_leave=lambda: next(left))
    assert here.run(record, math.inf).step == 30


def test_divergence_and_a_spent_budget_are_results(tmp_path):
    diverged = trainer(config(lr=1e9)).run(RunRecord(tmp_path / "a"), math.inf)
    assert diverged.status == "diverged" and diverged.step < 30
    spent = trainer(config(stop_metric=0.0)).run(RunRecord(tmp_path / "b"), math.inf)
    assert spent.status == "not_reached" and spent.step == 30
    reached = trainer(config(stop_metric=0.5, max_steps=300)).run(RunRecord(tmp_path / "c"), math.inf)
    assert reached.status == "reached" and reached.step < 300 and reached.best_metric <= 0.5


def test_beta2_follows_its_half_life():
    run = config()
    adam = replace(run.optimizer, name="adam", beta1=0.9, beta2_half_life=640.0, eps=1e-8)
    vector = torch.nn.Parameter(torch.zeros(3))
    assert make_optimizer(adam, vector, 0.1, 64).param_groups[0]["betas"][1] == pytest.approx(0.5**0.1)


def test_evaluations_are_even_in_log_steps():
    steps = evaluation_steps(6, 1000)
    assert steps[:5] == [0, 1, 2, 3, 4] and steps[-1] == 1000
    ratios = [b / a for a, b in pairwise(steps[20:-1])]
    assert max(ratios) < 1.18 and min(ratios) > 1.07
