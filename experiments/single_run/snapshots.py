"""One run kept at the points where it passes its goals, and what goes on from them.

The trunk is a record like any run's, with a folder `goal-<goal>` for each goal that it passed; a branch is a record in
that folder. The same command goes on where it stopped, and goals that are new train the trunk again.
"""

import os
from functools import partial
from typing import Any

import torch
from torch import Tensor

from experiments.config import RunConfig, SuiteConfig
from experiments.errors import UserError
from experiments.tasks import TASKS
from experiments.training.loop import Trainer
from experiments.training.record import RunRecord


def workers(suite: SuiteConfig) -> int:
    """Processes to run side by side: `cluster.workers`, or one a core that is ours."""
    return suite.cluster.workers or len(os.sched_getaffinity(0))


def trunk(suite: SuiteConfig, run: RunConfig, folder: RunRecord) -> dict[float, RunRecord]:
    """Train the trunk, unless it is done; goal → the record that holds the checkpoint where the goal was passed."""
    torch.set_num_threads(suite.threads)
    points = {goal: RunRecord(folder.folder / f"goal-{goal:g}") for goal in suite.sweep.goals}
    with folder.lock():
        while not _complete(folder, run, points):
            trainer = _trainer(suite, run)
            folder.start(run)
            trainer.run(folder, suite.checkpoint_seconds, partial(_keep, trainer, points))
    return {goal: point for goal, point in points.items() if _kept(point)}


def _complete(folder: RunRecord, run: RunConfig, points: dict[float, RunRecord]) -> bool:
    """Whether the trunk is done and every goal that it passes is kept; a goal may be newer than the run."""
    done = folder.read()
    if done is None:
        return False
    better = TASKS[run.task.name][1].metric.better
    return all(_kept(point) or not any(better(m, goal) for m in done[2]["metric"]) for goal, point in points.items())


def _keep(trainer: Trainer, points: dict[float, RunRecord]) -> None:
    """At the first evaluation that passes a goal."""
    *before, last = (row["metric"] for row in trainer.rows)
    better = trainer.task.metric.better
    for goal, point in points.items():
        if better(last, goal) and not any(better(metric, goal) for metric in before) and not _kept(point):
            point.save_checkpoint(trainer.state_dict())


def _kept(point: RunRecord) -> bool:
    return (point.folder / "checkpoint.pt").exists()


def _trainer(suite: SuiteConfig, run: RunConfig) -> Trainer:
    device = torch.device(suite.device)
    return Trainer(run, TASKS[run.task.name][1](run.task, run.seed, device), device)


def _state(point: RunRecord, device: torch.device) -> dict[str, Any]:
    state = point.load_checkpoint(device)
    if state is None:
        raise UserError(f"{point.folder}/checkpoint.pt can't be read and is put aside; the same command makes it again")
    return state


def restored(suite: SuiteConfig, run: RunConfig, point: RunRecord) -> Trainer:
    """The trunk as it was where it passed the goal; `UserError` where its checkpoint can't be read."""
    trainer = _trainer(suite, run)
    trainer.restore(_state(point, trainer.device), point)
    return trainer


def branch(suite: SuiteConfig, point: RunRecord, run: RunConfig) -> None:
    """One branch, unless it is done: `run` from the trunk's weights and optimizer state instead of from its seed."""
    torch.set_num_threads(suite.threads)
    record = RunRecord(point.folder / run.run_id)
    with record.lock():
        if record.read() is not None:
            return
        trainer = _trainer(suite, run)
        if record.load_checkpoint(trainer.device) is None:
            parent = _state(point, trainer.device)
            start = trainer.state_dict()
            start["vector"], start["buffers"] = parent["vector"], parent["buffers"]
            start["optimizer"] = parent["optimizer"] | {"param_groups": start["optimizer"]["param_groups"]}
            record.save_checkpoint(start)
        record.start(run)
        trainer.run(record, suite.checkpoint_seconds)


def gradient(trainer: Trainer, size: int, generator: torch.Generator) -> list[Tensor]:
    """Of a fresh batch of `size`, one tensor a parameter; micro-batch by micro-batch."""
    run, task = trainer.config, trainer.task
    batch = task.batch(size // task.sample_size, generator)
    cut = min(run.micro_batch, size) // task.sample_size
    pieces = list(zip(*(tensor.split(cut) for tensor in batch), strict=True))
    flat = trainer.flat
    total, part = (torch.zeros_like(flat.vector.data) for _ in range(2))
    views = flat.views(part)
    for piece in pieces:
        flat.differentiate(task.loss(piece) * (len(piece[0]) / len(batch[0])), views)
        total += part
    return flat.views(total)
