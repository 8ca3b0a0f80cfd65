"""A sweep from start to verdict: search, launch, watch, collect, fit, draw.

The search (`experiments.sweep.search`) says which runs are wanted, a Hydra launcher trains them, and this goes round
until nothing more is wanted. Its only memory is the records and the committed tables, so killing it loses nothing but
the steps since the last checkpoints.
"""

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.analysis.spans import steps_to
from experiments.config import SuiteConfig, run_id_of
from experiments.errors import UserError
from experiments.files import write_atomically
from experiments.sweep.conclusion import conclude
from experiments.sweep.cost import price
from experiments.sweep.search import Outcome, Point, wanted
from experiments.tables.collecting import collect
from experiments.tables.merging import merge
from experiments.tables.reading import check_can_grow, read_collected
from experiments.tasks import TASKS
from experiments.training.ranks import rank_count
from experiments.training.record import RunRecord
from experiments.wandb.mirror import mirrored

Launch = Callable[[list[list[Point]]], None]
ATTEMPTS = 2
PATIENCE = 3600.0


class Sweep:
    """The finished runs of a sweep, and what is still wanted."""

    def __init__(self, suite: SuiteConfig):
        self.suite = suite
        self.finished: dict[Point, Outcome] = {}
        self.failed: dict[Point, str] = {}
        self._metric = TASKS[suite.run.task.name][1].metric  # type: ignore[attr-defined]
        self._curves: dict[str, pd.DataFrame] = {}
        self._status: dict[str, str] = {}
        if (suite.tables / "runs.parquet").exists():
            runs, curves = read_collected(suite.tables)
            check_can_grow(suite.tables / "runs.parquet", runs, asdict(suite.run))
            self._curves = {str(run_id): curve for run_id, curve in curves.groupby("run_id")}
            self._status = dict(zip(runs["run_id"], runs["status"], strict=True))

    def record(self, point: Point) -> RunRecord:
        """Where the run of `point` is, or will be."""
        return RunRecord(self.suite.records / self.suite.point(*point).run_id)

    def wanted(self) -> list[Point]:
        """Runs to make now. Failed ones are left out, so what depends on them waits for the next `make sweep`."""
        while True:
            points = [point for point in wanted(self.suite.sweep, self.finished) if point not in self.failed]
            if not any([self.look(point) for point in points]):
                return points

    def look(self, point: Point) -> bool:
        """Take `point` into the finished ones if it is, by its record or by the tables."""
        run_id = self.suite.point(*point).run_id
        if run_id in self._status:
            status, curve = self._status[run_id], self._curves[run_id]
        else:
            found = self.record(point).read()
            if found is None or run_id_of(found[0]) != run_id:
                return False
            status, curve = found[1]["status"], found[2]
        self.finished[point] = self._outcome(point, status, curve)
        return True

    def _outcome(self, point: Point, status: str, curve: pd.DataFrame) -> Outcome:
        run = self.suite.point(*point)
        steps, reached = steps_to(curve, self._metric.direction, self.suite.sweep.goals, run.lr_cuts, run.stop_patience)
        return Outcome([float(s) for s in np.where(reached, steps, np.inf)], status == "diverged")


def run_sweep(suite: SuiteConfig, launch: Launch) -> None:
    """Until nothing is wanted; then the verdict. `launch` trains the given shares and returns when all have ended."""
    if rank_count() > 1:
        raise UserError(
            f"{rank_count()} ranks share one run, not a sweep; add hydra.mode=RUN, or start it without torchrun"
        )
    if suite.experiment is not None:
        name, task = suite.experiment, suite.run.task.name
        raise UserError(
            f"preset={name} is of single runs, and a sweep has nothing to do there\n"
            f"run it by: .venv/bin/python -m experiments.cli.{name} task={task} preset={name}"
        )
    if suite.from_reference:
        take_over(suite)
    sweep = Sweep(suite)
    points = sweep.wanted()
    say(f"{suite.name}: {len(sweep.finished)} runs done, {len(points)} to make now")
    if suite.dry:
        print_plan(suite, points)
        return
    if points:
        check_writable(suite.records, suite.tables)
    with mirrored(suite):
        train_wanted(sweep, points, launch)
        collect(suite)
        for point, error in sweep.failed.items():
            which = f"batch_size={point.batch_size} lr={point.lr:g} seed={point.seed} ({sweep.record(point).run_id})"
            say(f"failed: {which}: {error}")
            sweep.record(point).give_up(error)
        conclude(suite)


def take_over(suite: SuiteConfig) -> None:
    """The reference's runs into the sweep's own tables, if there are any."""
    if (suite.reference_tables / "runs.parquet").exists():
        merged = merge(suite.reference_tables, suite.tables)
        say(f"{suite.name}: {merged.new} runs taken over from {suite.reference_tables}")


def train_wanted(sweep: Sweep, points: list[Point], launch: Launch) -> None:
    """Rounds of the search, until it wants nothing more or what it wants has failed twice."""
    suite, started, priced = sweep.suite, time.monotonic(), None
    attempts: Counter[Point] = Counter()
    while points:
        priced = priced or price(suite, points)
        costs = {point: priced.of(suite.point(*point)) for point in points}
        points = in_order(points, costs)
        again = [[point] for point in points if attempts[point]]  # alone, as one may have taken its share with it
        fresh = [point for point in points if not attempts[point]]
        with progress(sweep, points, costs, started):
            launch([*again, *shares(fresh, costs, suite.cluster.job_seconds)])
        for point in points:
            if not sweep.look(point):
                attempts[point] += 1
                if attempts[point] >= ATTEMPTS:
                    sweep.failed[point] = last_line(sweep.record(point).folder / "error.txt")
        if any(attempts[point] for point in points):
            check_writable(suite.records, suite.tables)  # on a full disk a run can't even leave its error
        points = sweep.wanted()


def in_order(points: Sequence[Point], costs: dict[Point, float]) -> list[Point]:
    """The longest first, so that workers end together; but the cheapest first where all take over an hour of work, so
    that days of small increments soon have something in their tables."""
    patient = sum(costs[point] for point in points) > PATIENCE
    return sorted(points, key=lambda point: costs[point] if patient else -costs[point])


def check_writable(*folders: Path) -> None:
    """`UserError` now rather than from every run. A disk without a page left still takes an empty file."""
    for folder in folders:
        write_atomically(folder / ".writable", bytes(4096))
        (folder / ".writable").unlink(missing_ok=True)


def shares(points: Sequence[Point], costs: dict[Point, float], seconds: float) -> list[list[Point]]:
    """Runs that share a job, in the given order, about `seconds` of work in each."""
    result: list[list[Point]] = []
    room = 0.0
    for point in points:
        if costs[point] > room:
            result.append([])
            room = seconds
        result[-1].append(point)
        room -= costs[point]
    return result


def print_plan(suite: SuiteConfig, points: Sequence[Point]) -> None:
    """What would be trained next, and at most at what cost."""
    if not points:
        return
    priced = price(suite, points)
    costs = {point: priced.of(suite.point(*point)) for point in points}
    print(f"{'batch size':>10} {'learning rate':>14} {'seed':>5} {'steps':>8} {'seconds':>8}   at most")
    for point in points:
        steps = suite.point(*point).max_steps
        print(f"{point.batch_size:>10,} {point.lr:>14.4g} {point.seed:>5} {steps:>8,} {costs[point]:>8.1f}")
    print(f"{len(points)} runs, at most {sum(costs.values()) / 60:.1f} core-minutes here")
    print("most stop at their goal before that, and the search adds more")


def last_line(path: Path) -> str:
    """Of a file that may not be there."""
    try:
        return path.read_text(errors="replace").strip().splitlines()[-1]
    except (OSError, IndexError):
        return "its process ended without a word (killed, or out of memory)"


def say(text: str) -> None:
    """A line that is seen at once."""
    print(text, flush=True)


@contextmanager
def progress(sweep: Sweep, points: Sequence[Point], costs: dict[Point, float], started: float) -> Iterator[None]:
    """One line while the launcher works: a line that renews itself on a terminal, one every half minute elsewhere."""
    done = threading.Event()
    pending = {point: sweep.record(point) for point in points}
    terminal = sys.stdout.isatty()

    def line() -> str:
        ended = {point for point in points if pending[point].claims_done}
        done, to_go = len(sweep.finished) + len(ended), len(points) - len(ended)
        share = sum(costs[point] for point in ended) / sum(costs.values())
        spent = time.monotonic() - started
        return f"{sweep.suite.name}: {done} runs done, {to_go} to go, {share:.0%} of this round, {spent:.0f} s"

    def watch() -> None:
        while not done.wait(0.5 if terminal else 30):
            print(f"\r{line()}\x1b[K" if terminal else line(), end="" if terminal else "\n", flush=True)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        print(f"\r{line()}\x1b[K" if terminal else line(), flush=True)
