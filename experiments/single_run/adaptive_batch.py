"""A batch size that follows the noise scale, against fixed ones (Fig. 16).

`python -m experiments.cli.adaptive task=svhn preset=adaptive` trains with B = √(r · B_simple), from two micro-batches
up to the sweep's largest batch, for several prices r of a step in examples, at a few multiples of the learning rate
that the sweep's rule gives each batch size. B_simple is the run's own, of its micro-batches, and B and the learning
rate move at evaluations. Of each r and goal the learning rate of least E + r S counts; the sweep's fixed-batch front is
read from its `fits.csv`. Runs are records, so the same command goes on where it stopped.
"""

import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from pydantic import Field

from experiments.analysis.crossings import crossings
from experiments.config import Positive, RunConfig, SuiteConfig, frozen, run_id_of
from experiments.errors import UserError
from experiments.single_run.snapshots import workers
from experiments.sweep.search import grid_lr
from experiments.tables.reading import write_csv
from experiments.tasks import TASKS, Task
from experiments.training.loop import Trainer
from experiments.training.record import RunRecord
from noisescale.planning import theory
from noisescale.planning.adaptive_batch import AdaptiveBatchSize


@frozen
class AdaptiveConfig:
    """`r`: what a step is worth, in the task's unit; one point of the adaptive front each."""

    r: Annotated[tuple[Positive, ...], Field(min_length=1)] = (16.0, 64.0, 256.0)


class Job(NamedTuple):
    """A run whose first batch is `run.batch_size`."""

    run: RunConfig
    r: float
    largest: int
    noise: float
    alpha: float

    @property
    def run_id(self) -> str:
        return run_id_of(asdict(self.run) | {"adaptive": self._asdict() | {"run": None}})

    def lr(self, batch_size: int) -> float:
        """At this batch size, from `run.lr` at the first one: as (1 + noise/B)^-alpha."""
        now, first = theory.search_centre([batch_size, self.run.batch_size], 1.0, self.noise, self.alpha)
        return self.run.lr * float(now / first)


class AdaptiveTrainer(Trainer):
    """A `Trainer` whose batch size is the schedule's, which is asked at every evaluation."""

    def __init__(self, job: Job, task: Task, device: torch.device):
        super().__init__(job.run, task, device)
        self.job = job
        first, unit = job.run.batch_size, job.run.micro_batch
        self.schedule = AdaptiveBatchSize(job.r, start=first, smallest=first, largest=job.largest, unit=unit, alpha=0)
        self.changed = (0, 0)

    @property
    def examples(self) -> int:
        step, examples = self.changed
        return examples + (self.step - step) * self.config.batch_size

    def evaluate(self) -> str | None:
        status = super().evaluate()
        self.schedule.update(self.noise.average.estimate())
        if self.schedule.batch_size != self.config.batch_size:
            self.changed = (self.step, self.examples)
            self._resize()
            for group in self.optimizer.param_groups:
                group["lr"] = self.job.lr(self.config.batch_size)
        return status

    def _resize(self) -> None:
        self.config = replace(self.config, batch_size=self.schedule.batch_size)
        self.parts = self.schedule.accumulation
        self.noise.batch_size = self.schedule.batch_size

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"schedule": self.schedule.state_dict(), "changed": list(self.changed)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.schedule.load_state_dict(state["schedule"])
        self.changed = (state["changed"][0], state["changed"][1])
        self._resize()


def plan(suite: SuiteConfig, config: AdaptiveConfig) -> list[Job]:
    """Every r, at every learning rate of the grid, with every seed."""
    sweep, first, largest = suite.sweep, 2 * suite.run.micro_batch, max(suite.sweep.batch_sizes)
    if first >= largest:
        raise UserError(
            f"micro_batch={suite.run.micro_batch}: batches of two or more leave nothing to adapt up to the sweep's "
            f"largest, {largest}\nallowed: below {largest // 2}"
        )
    half = sweep.points // 2
    lrs = [grid_lr(sweep, first, j) for j in range(-half, half + 1)]
    return [
        Job(suite.point(first, lr, seed), r, largest, sweep.noise, sweep.alpha)
        for r in config.r
        for lr in lrs
        for seed in range(sweep.seeds)
    ]


def train(suite: SuiteConfig, job: Job) -> None:
    """One run, unless it is done."""
    torch.set_num_threads(suite.threads)
    record = _record(suite, job)
    with record.lock():
        if record.read() is None:
            device = torch.device(suite.device)
            task = TASKS[job.run.task.name][1](job.run.task, job.run.seed, device)
            record.start(job.run)
            AdaptiveTrainer(job, task, device).run(record, suite.checkpoint_seconds)


def _record(suite: SuiteConfig, job: Job) -> RunRecord:
    return RunRecord(suite.records.with_name(f"{suite.records.name}-adaptive") / job.run_id)


def path(curve: pd.DataFrame) -> pd.DataFrame:
    """At each evaluation, the batch size of the steps that led there and B_simple as the run knew it."""
    rows = curve[["step", "examples", "metric", "b_simple"]].iloc[1:].copy()
    rows.insert(2, "batch_size", np.diff(curve["examples"]) // np.diff(curve["step"]))
    return rows


def gamma(curve: pd.DataFrame, steps: float) -> float:
    """`theory.gamma` of the run up to `steps`: 1 where the noise doesn't change, so that an adaptive batch gains
    nothing. Steps at which the run knew no positive B_simple are left out; NaN without any."""
    walked = np.diff(np.minimum(curve["step"], steps))
    noise, size = curve["b_simple"].to_numpy(float)[1:], path(curve)["batch_size"].to_numpy(float)
    known = (noise > 0) & (walked > 0)
    if not known.any():
        return math.nan
    return theory.gamma(noise[known], theory.full_batch_steps(walked[known], size[known], noise[known]))


def arrivals(suite: SuiteConfig, jobs: list[Job]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(a row a run and goal, a row a run and evaluation) of finished runs."""
    direction = TASKS[suite.run.task.name][1].metric.direction  # type: ignore[attr-defined]
    rows, paths = [], []
    for job in jobs:
        done = _record(suite, job).read()
        assert done is not None
        curve = done[2]
        step, metric = curve["step"].to_numpy(float), curve["metric"].to_numpy(float)
        setting = {"r": job.r, "lr": job.run.lr, "seed": job.run.seed}
        paths.append(path(curve).assign(**setting))
        for goal, steps, reached in zip(
            suite.sweep.goals, *crossings(step, metric, direction, suite.sweep.goals), strict=True
        ):
            examples = float(np.interp(steps, step, curve["examples"]))
            found = {"goal": goal, "steps": steps, "examples": examples, "reached": reached}
            rows.append(setting | found | {"gamma": gamma(curve, steps)})
    return pd.DataFrame(rows), pd.concat(paths)[["r", "lr", "seed", *paths[0].columns.drop(["r", "lr", "seed"])]]


def front(runs: pd.DataFrame, fits: pd.DataFrame) -> pd.DataFrame:
    """A row a (goal, r): the best learning rate's steps and examples, geometric means over seeds, and beside them
    `fixed_examples`, what the fixed-batch front takes for the same number of steps: E_min S/(S − S_min).

    `over_fixed` is examples over those; both NaN where S isn't above the front's S_min.
    """
    found = []
    fits = fits.set_index("goal")
    for (goal, r), rows in runs.groupby(["goal", "r"], sort=False):
        cost = np.log(rows["examples"] + r * rows["steps"]).where(rows["reached"], np.inf)
        lr = cost.groupby(rows["lr"]).mean().idxmin()
        best = rows[rows["lr"] == lr]
        steps, examples = (float(np.exp(np.log(best[key]).mean())) for key in ("steps", "examples"))
        s_min, e_min = (float(fits[key].get(goal, np.nan)) for key in ("s_min", "e_min"))
        fixed = e_min * steps / (steps - s_min) if steps > s_min else math.nan
        found.append(
            {
                "goal": goal,
                "r": r,
                "lr": lr,
                "seeds": len(best),
                "reached": bool(best["reached"].all()),
                "steps": steps,
                "examples": examples,
                "gamma": best["gamma"].mean(),
                "fixed_examples": fixed,
                "over_fixed": examples / fixed,
            }
        )
    return pd.DataFrame(found)


def measure(suite: SuiteConfig, config: AdaptiveConfig) -> pd.DataFrame:
    """`adaptive.csv`, `adaptive_runs.csv` and `adaptive_paths.csv` beside the sweep's tables."""
    fits = suite.tables / "fits.csv"
    if not fits.exists():
        raise UserError(f"no {fits}: the fixed batch sizes come first\nmake sweep TASK={suite.run.task.name}")
    jobs = plan(suite, config)
    with ProcessPoolExecutor(workers(suite), mp_context=multiprocessing.get_context("spawn")) as pool:
        for number, _ in enumerate(pool.map(partial(train, suite), jobs), 1):
            print(f"{number} of {len(jobs)} runs done", flush=True)
    runs, paths = arrivals(suite, jobs)
    table = front(runs, pd.read_csv(fits))
    for name, frame in (("adaptive", table), ("adaptive_runs", runs), ("adaptive_paths", paths)):
        write_csv(frame, suite.tables / f"{name}.csv")
    print(table.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    return table
