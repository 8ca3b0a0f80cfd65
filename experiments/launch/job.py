"""What a Hydra job does: train the runs of its share that aren't finished, here or in the tables."""

import math
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from omegaconf import DictConfig

from experiments.config import RunConfig, SuiteConfig, parse
from experiments.errors import UserError
from experiments.files import read_parquet
from experiments.tasks import TASKS
from experiments.training.loop import Trainer
from experiments.training.ranks import ALONE, Ranks, joined, own_device
from experiments.training.record import RunRecord
from experiments.training.stop_signal import kept_back
from experiments.training.time_limit import OverTimeError, time_limit

TELL_SECONDS = 5.0


def train(config: DictConfig) -> None:
    """Hydra's task function. A run that fails leaves its error in its record, and the others go on."""
    suite = parse(config)
    torch.set_num_threads(suite.threads)
    single = (suite.run.batch_size, suite.run.lr, suite.run.seed)
    runs = [suite.point(*point) for point in suite.points] if suite.points is not None else [suite.point(*single)]
    with joined(own_device(torch.device(suite.device))) as ranks:
        for run in runs:
            if ranks.first_says(partial(_is_collected, suite, run)):
                if ranks.first:
                    done = f"done before: {run.run_id} is in {suite.tables / 'runs.parquet'}"
                    print(f"{done}; to train it again, set results= to another folder", flush=True)
                continue
            record = RunRecord(suite.records / run.run_id)
            try:
                train_one(suite, run, record, ranks)
            except (Exception, OverTimeError) as error:
                _note(record, f"{traceback.format_exc()}\n{type(error).__name__}: {error}\n")
                if suite.points is None:
                    raise
                if ranks.world > 1:
                    raise  # the other ranks wait for this one, until torchrun ends them


def _is_collected(suite: SuiteConfig, run: RunConfig) -> bool:
    """Whether the tables have the run; a sweep doesn't ask for one of those, but a user may."""
    table = suite.tables / "runs.parquet"
    return table.exists() and run.run_id in read_parquet(table, ["run_id"])["run_id"].to_list()


def train_one(suite: SuiteConfig, run: RunConfig, record: RunRecord, ranks: Ranks = ALONE) -> None:
    """One run, unless it is finished, by this process or, while we waited for it, by another. Of several ranks the
    first holds the record."""
    held = record.lock() if ranks.first else nullcontext()
    with held, time_limit(suite.cluster.run_seconds, record.fail), kept_back(signal.SIGUSR2) as must_leave:
        if ranks.first_says(lambda: record.is_done(run)):
            if suite.points is None and ranks.first:
                print(f"done before: {record.folder}", flush=True)
            return
        if ranks.first:
            record.start(run)
        device = own_device(torch.device(suite.device))
        _, build = TASKS[run.task.name]
        trainer = Trainer(run, build(run.task, run.seed, device), device, ranks)
        tell = teller(trainer) if suite.points is None and ranks.first else lambda: None
        summary = trainer.run(record, suite.checkpoint_seconds, tell, must_leave)
        if suite.points is None and ranks.first:
            print(
                f"{summary.status} after {summary.step:,} steps, {summary.seconds:.0f} s: {record.folder}", flush=True
            )


def teller(trainer: Trainer) -> Callable[[], None]:
    """To call at each evaluation of a run that somebody watches: prints it, at most every `TELL_SECONDS`."""
    said = -math.inf

    def tell() -> None:
        nonlocal said
        if time.monotonic() - said >= TELL_SECONDS:
            said = time.monotonic()
            row, name = trainer.rows[-1], trainer.task.metric.name
            print(
                f"step {row['step']:,} of {trainer.config.max_steps:,}, {row['examples']:,} {trainer.task.unit}s: "
                f"{name} {row['metric']:.4g}, B_simple {row['b_simple']:.4g}, {row['seconds']:.0f} s",
                flush=True,
            )

    return tell


def _note(record: RunRecord, message: str) -> None:
    """Where even the error can't be written (a full disk, a folder that is read-only), whoever reads the job's output
    sees it."""
    try:
        record.fail(message)
    except UserError:
        print(f"{record.run_id}: {message.strip().splitlines()[-1]}", file=sys.stderr, flush=True)
