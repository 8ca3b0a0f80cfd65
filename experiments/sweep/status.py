"""Where a sweep stands: `python -m experiments.cli.status task=digits preset=small`, from its records and tables alone.

A run is running where its lock is held, failed where its error is the last that was heard of it, foreign where its
files can't be read or are finished but not what this code wrote under that name, and stopped where it was begun and is
none of these; the next `make sweep` goes on with failed and stopped ones. What is missing is what the search wants
next; more may follow from what that gives.
"""

import fcntl
from collections import Counter
from pathlib import Path

import pandas as pd

from experiments.config import SuiteConfig
from experiments.files import read_parquet
from experiments.sweep.driver import Sweep, last_line
from experiments.training.record import RunRecord, records_in

SHOWN = 20


def look(suite: SuiteConfig) -> tuple[Counter[str], dict[str, str]]:
    """How many runs are reached, not_reached, diverged, running, failed, foreign, stopped; and failed runs' errors by
    run_id."""
    path = suite.tables / "runs.parquet"
    collected = read_parquet(path, ["run_id", "status"]) if path.exists() else pd.DataFrame()
    known = dict(zip(collected["run_id"], collected["status"], strict=True)) if len(collected) else {}
    counts: Counter[str] = Counter(known.values())
    errors: dict[str, str] = {}
    for record in records_in(suite.records):
        if record.run_id in known:
            continue
        summary = record.read_summary()
        if summary is not None:
            counts[summary["status"]] += 1
        elif is_held(record.folder / "lock"):
            counts["running"] += 1
        elif record.claims_done:
            counts["foreign"] += 1
        elif (record.folder / "error.txt").exists():
            counts["failed"] += 1
            errors[record.run_id] = last_line(record.folder / "error.txt")
        else:
            counts["stopped"] += 1
    return counts, errors


def is_held(lock: Path) -> bool:
    """Whether a process, on any machine that shares the file system, trains the run now."""
    try:
        with open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def report(suite: SuiteConfig) -> str:
    """A few lines for a person."""
    counts, errors = look(suite)
    sweep = Sweep(suite)
    missing = [point for point in sweep.wanted() if not sweep.record(point).folder.exists()]
    done = sum(counts[status] for status in ("reached", "not_reached", "diverged"))
    lines = [
        f"{suite.name}: {done} done ({counts['reached']} reached their last goal, {counts['not_reached']} ran out of "
        f"steps, {counts['diverged']} diverged), {counts['running']} running, {counts['stopped']} stopped, "
        f"{counts['failed']} failed, {len(missing)} missing"
    ]
    if counts["foreign"]:
        lines.append(
            f"  {counts['foreign']} records count for nothing: spoilt, unreadable, renamed or of another record version"
        )
    for run_id, error in list(errors.items())[:SHOWN]:
        run = RunRecord(suite.records / run_id).read_config()
        point = f"batch_size={run.batch_size} lr={run.lr:g} seed={run.seed} " if run else ""
        lines.append(f"  failed: {point}({run_id}): {error}")
    if len(errors) > SHOWN:
        lines.append(f"  ... and {len(errors) - SHOWN} more: {suite.records}/*/error.txt")
    return "\n".join(lines)
