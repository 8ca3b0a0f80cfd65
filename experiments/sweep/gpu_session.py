"""A short while on a GPU, spent on what is missing: `python -m experiments.cli.gpu --minutes 8 --out results/own`.

The CUDA tests, the benchmarks, then the sweeps of one preset, cheapest first by what their wanted runs would cost here.
Whatever is running when the time is over is stopped, and finished runs are collected into the tables in `out`, which
hold the reference's too. Its `runs/` lets the next call go on. The same code runs on the CPU.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.config import SuiteConfig, load, presets
from experiments.errors import UserError
from experiments.sweep.cost import price
from experiments.sweep.driver import Sweep, say, take_over
from experiments.tables.collecting import collect
from experiments.tasks import TASKS

ROOT = Path(__file__).parents[2]
SHARE_OF_TESTS, SHARE_OF_BENCHMARKS, SHARE_OF_STOPPING = 0.25, 0.15, 0.08
BENCHMARKS = ("tracker", "loop", "estimators")  # the others measure the processor
MOST_WORKERS = 8  # processes that share the GPU


class Clock:
    """Seconds left of a budget."""

    def __init__(self, seconds: float):
        self.total, self.end = seconds, time.monotonic() + seconds

    def left(self, kept: float = 0.0) -> float:
        """Of it, less the share `kept` for later."""
        return max(0.0, self.end - time.monotonic() - kept * self.total)


def run(command: Sequence[str], seconds: float, log: Path) -> str:
    """How `command` ended within `seconds`; what it says goes to `log`. At the end of its time it gets Ctrl-C."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w") as file:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, stdout=file, stderr=file, start_new_session=True
        )
        try:
            return "ok" if process.wait(seconds) == 0 else f"ended with {process.returncode}, see {log}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return "stopped at the end of its time"


def gaps(options: argparse.Namespace) -> list[tuple[float, SuiteConfig, list[str]]]:
    """(seconds at most, suite, overrides) of every sweep that still wants runs and whose data are here, cheapest
    first."""
    found = []
    for task in options.tasks or sorted(TASKS):
        if options.preset not in presets(task):
            continue
        overrides = [f"task={task}", f"preset={options.preset}", f"device={options.device}", *options.override]
        overrides += [f"results={options.out}", f"runs={options.out}/runs", f"cluster.workers={workers()}"]
        try:
            suite = load(overrides)
            take_over(suite)
            points = Sweep(suite).wanted()
            if points:
                priced = price(suite, points)
                found.append((sum(priced.of(suite.point(*point)) for point in points), suite, overrides))
        except (UserError, RuntimeError) as error:
            say(f"{task}-{options.preset}: left out: {str(error).splitlines()[0]}")
    return sorted(found, key=lambda gap: gap[0])


def workers() -> int:
    """Processes at a time."""
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)))


def spend(options: argparse.Namespace) -> None:
    """All of it, in order; never longer than `options.minutes`."""
    clock, logs = Clock(60 * options.minutes), Path(options.out) / "gpu"
    if not options.sweeps_only:
        mark = "cuda" if options.device == "cuda" else "not slow and not cuda"
        tests = ["-m", "pytest", "-m", mark, "-p", "no:cacheprovider"]
        say(f"tests ({mark}): {run(tests, SHARE_OF_TESTS * clock.total, logs / 'tests.txt')}")
        for name in BENCHMARKS:
            seconds = min(SHARE_OF_BENCHMARKS * clock.total, clock.left(SHARE_OF_STOPPING))
            say(f"benchmark {name}: {run([str(ROOT / 'benchmarks' / f'{name}.py')], seconds, logs / f'{name}.txt')}")
    todo = gaps(options)
    for seconds, suite, _ in todo:
        say(f"{suite.name}: wanted now, at most {seconds / 60:.1f} minutes of one process here")
    for _, suite, overrides in todo:
        if not clock.left(SHARE_OF_STOPPING):
            break
        command = ["-m", "experiments.cli.train", *overrides]
        how = run(command, clock.left(SHARE_OF_STOPPING), logs / f"{suite.name}.txt")
        say(f"{suite.name}: {how}; {collect(suite)} runs more than it collected itself")
    say(f"{clock.left():.0f} of {clock.total:.0f} seconds left; everything is in {options.out}")
