"""A run that has ended, and copies of it."""

import math
from pathlib import Path

import torch

from experiments.config import load
from experiments.tasks.digits import DigitsTask
from experiments.training.loop import Trainer
from experiments.training.record import RunRecord

CPU = torch.device("cpu")


def make(folder: Path, seed: int = 0) -> RunRecord:
    suite = load(["task=digits", "preset=smoke"])
    run = suite.point(32, 0.2, seed)
    record = RunRecord(folder / run.run_id)
    record.start(run)
    Trainer(run, DigitsTask(run.task, run.seed, CPU), CPU).run(record, math.inf)
    return record


def copy(record: RunRecord, to: Path) -> RunRecord:
    to = to / record.run_id
    to.mkdir(parents=True)
    for file in record.folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return RunRecord(to)
