"""Finished records → the committed tables: `python -m experiments.collect task=digits preset=small`.

A run that is in the tables stays there, whatever happens to its record.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from experiments.config import RECORD_VERSION, SuiteConfig, load, run_id_of
from experiments.errors import UserError
from experiments.record import CURVE_COLUMNS, RunRecord, exclusive, write_parquet
from experiments.tasks import TASKS

NOT_SCIENCE = ("seconds", "eval_seconds", "measure_seconds", "device", "versions", "git_sha", "finished_at")

OF_A_RUN = ("sample_size", "data", "parameters", "status", "step", "examples", "best_metric")


def collect(suite: SuiteConfig) -> int:
    """Add the finished records of `suite` to its tables; the number of runs that are new there."""
    return collect_records(suite.records, suite.tables, suite.preset)


def collect_records(records: Path, tables: Path, preset: str) -> int:
    """The records below `records` into `runs.parquet` and `curves.parquet` of `tables` (and `groups.parquet`, where a
    task names groups), sorted by batch size, learning rate and seed; the number of runs that are new.
    """
    with exclusive(tables / ".lock"):
        return _collect(records, tables, preset)


def _collect(records: Path, tables: Path, preset: str) -> int:
    old = pd.read_parquet(tables / "runs.parquet") if (tables / "runs.parquet").exists() else pd.DataFrame()
    known = set(old["run_id"]) if len(old) else set()
    rows: list[dict[str, Any]] = []
    curves: list[pa.Table] = []
    details: dict[str, list[pd.DataFrame]] = {"curves": [], "groups": []}
    for folder in sorted(records.glob("*-*")):
        record = RunRecord(folder)
        found = record.read_arrow() if folder.name not in known else None
        if found is not None:
            config, summary, curve = found
            if not _is_ours(folder.name, config, summary, curve):
                print(f"{folder}: left out, as it is no record of this suite's")
                continue
            groups = record.read_groups()
            rows.append(_row(folder.name, preset, config, summary))
            curves.append(curve.append_column("run_id", pa.repeat(pa.scalar(folder.name), len(curve))))
            details["groups"] += [] if groups is None else [groups.assign(run_id=folder.name)]
    if not rows:
        return 0
    details["curves"].append(pa.concat_tables(curves).to_pandas())
    runs = pd.concat([old, pd.DataFrame(rows)], ignore_index=True)
    runs = runs.sort_values(["batch_size", "lr", "seed", "run_id"], ignore_index=True)
    for name, new in details.items():
        _add(tables / f"{name}.parquet", new, known, list(runs["run_id"]))
    write_parquet(tables / "runs.parquet", runs)  # last: what it doesn't name is not collected yet
    return len(rows)


def _add(path: Path, new: list[pd.DataFrame], known: set[str], order: list[str]) -> None:
    """New runs' rows into the table at `path`, runs in `order`; rows of runs that aren't `known` are from a collection
    that was cut short."""
    old = [pd.read_parquet(path)] if path.exists() else []
    parts = [*(table[table["run_id"].isin(known)] for table in old), *new]
    if not parts:
        return
    table = pd.concat(parts, ignore_index=True)
    rank = {run_id: i for i, run_id in enumerate(order)}
    table = table.sort_values("run_id", key=lambda ids: ids.map(rank), kind="stable", ignore_index=True)
    write_parquet(path, table[["run_id", *table.columns.drop("run_id")]])


def _is_ours(run_id: str, config: dict[str, Any], summary: dict[str, Any], curve: pa.Table) -> bool:
    """Whether a sealed record can have been made here: its name is its config's hash, and it has what a row needs."""
    try:
        task, named = config["task"]["name"], run_id_of(config)
    except (KeyError, TypeError, AttributeError):
        return False
    columns = dict(zip(curve.column_names, map(str, curve.schema.types), strict=True))
    whole = columns == {name: kind.replace("float64", "double") for name, kind in CURVE_COLUMNS.items()}
    return task in TASKS and named == run_id and whole and all(key in summary for key in OF_A_RUN)


def _row(run_id: str, preset: str, config: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    """A run's row in `runs.parquet`."""
    build = TASKS[config["task"]["name"]][1]
    return {
        "run_id": run_id,
        "task": config["task"]["name"],
        "preset": preset,
        "unit": build.unit,  # type: ignore[attr-defined]
        "sample_size": summary["sample_size"],
        "metric": build.metric.name,  # type: ignore[attr-defined]
        "direction": build.metric.direction,  # type: ignore[attr-defined]
        "data": summary["data"],
        "parameters": summary["parameters"],
        "optimizer": config["optimizer"]["name"],
        "batch_size": config["batch_size"],
        "micro_batch": config["micro_batch"],
        "lr": config["lr"],
        "seed": config["seed"],
        "status": summary["status"],
        "step": summary["step"],
        "examples": summary["examples"],
        "best_metric": summary["best_metric"],
        "config": json.dumps(config, sort_keys=True),
        "record_version": RECORD_VERSION,
        **{key: summary.get(key) for key in NOT_SCIENCE},
    }


def main() -> int:
    """Of the sweep that the overrides name."""
    try:
        suite = load(sys.argv[1:])
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{suite.name}: {collect(suite)} new runs in {suite.tables}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
