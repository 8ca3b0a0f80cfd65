"""Finished records → the committed tables: `python -m experiments.cli.collect task=digits preset=small`.

A run that is in the tables stays there, whatever happens to its record. A table holds one experiment: records that
can't be read or were renamed, or that differ in more than batch size, learning rate, seed and budget, are named and
left out.
"""

import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from experiments.config import RECORD_VERSION, SuiteConfig
from experiments.files import clear_asides, exclusive, read_parquet, write_parquet
from experiments.tables.reading import OF_A_RUN, ONE_SWEEP, check_can_grow, differs, experiment, read_collected
from experiments.tasks import TASKS
from experiments.training.record import records_in

NOT_SCIENCE = (
    *("seconds", "eval_seconds", "measure_seconds", "device", "versions", "git_sha", "finished_at"),
    "restarts",
)


def collect(suite: SuiteConfig) -> int:
    """The finished records of `suite` into `runs.parquet` and `curves.parquet` of its tables (and `groups.parquet`,
    where its task names groups), sorted by batch size, learning rate and seed; the number of runs that are new there.
    `UserError` where the tables hold another experiment.
    """
    with exclusive(suite.tables / ".lock"):
        clear_asides(suite.tables, "runs.parquet", "curves.parquet", "groups.parquet")
        return _collect(suite)


def _collect(suite: SuiteConfig) -> int:
    tables, wanted = suite.tables, experiment(asdict(suite.run))
    old = read_collected(tables, ["run_id"])[0] if (tables / "runs.parquet").exists() else pd.DataFrame()
    if len(old):
        check_can_grow(tables / "runs.parquet", old, asdict(suite.run))
    known = set(old["run_id"]) if len(old) else set()
    alike = old.iloc[0].to_dict() if len(old) else None
    accepted: dict[str, Any] | None = None
    rows: list[dict[str, Any]] = []
    curves: list[pa.Table] = []
    details: dict[str, list[pd.DataFrame]] = {"curves": [], "groups": []}
    left_out: defaultdict[str, list[str]] = defaultdict(list)
    for record in records_in(suite.records):
        if record.run_id in known or not record.claims_done:
            continue
        found = record.read_arrow()
        if found is None:
            left_out["spoilt, unreadable, renamed or of another record version"].append(record.run_id)
            continue
        made, summary, curve, groups = found
        row = _row(record.run_id, suite.preset, made, summary)
        difference = _difference(row, alike or row)
        shared = {key: value for key, value in made.items() if key not in OF_A_RUN}
        if shared != accepted:  # as it is for all but the first
            difference = difference or differs(experiment(made), wanted)
        if difference:
            left_out[f"of another experiment: {difference}"].append(record.run_id)
            continue
        alike, accepted = alike or row, shared
        rows.append(row)
        curves.append(curve.append_column("run_id", pa.repeat(pa.scalar(record.run_id), len(curve))))
        details["groups"] += [] if groups is None else [groups.to_pandas().assign(run_id=record.run_id)]
    for reason, names in left_out.items():
        some = ", ".join(names[:5]) + ", …" * (len(names) > 5)
        print(f"{suite.records}: left out {len(names)} records, {reason} ({some})")
    if not rows:
        return 0
    details["curves"].append(pa.concat_tables(curves).to_pandas())
    runs = pd.concat([old, pd.DataFrame(rows)], ignore_index=True)
    runs = runs.sort_values(["batch_size", "lr", "seed", "run_id"], ignore_index=True)
    for name, new in details.items():
        add_rows(tables / f"{name}.parquet", new, known, list(runs["run_id"]))
    write_parquet(tables / "runs.parquet", runs)  # last: what it doesn't name is not collected yet
    return len(rows)


def add_rows(path: Path, new: list[pd.DataFrame], known: set[str], order: list[str]) -> None:
    """New runs' rows into the table at `path`, runs in `order`; rows of runs that aren't `known` are from a collection
    that was cut short."""
    old = [read_parquet(path)] if path.exists() else []
    parts = [part for part in [*(table[table["run_id"].isin(known)] for table in old), *new] if len(part)]
    if not parts:
        return
    table = pd.concat(parts, ignore_index=True)
    rank = {run_id: i for i, run_id in enumerate(order)}
    table = table.sort_values("run_id", key=lambda ids: ids.map(rank), kind="stable", ignore_index=True)
    write_parquet(path, table[["run_id", *table.columns.drop("run_id")]])


def _difference(row: dict[str, Any], alike: dict[str, Any]) -> str | None:
    """The first column in which all rows of a table are alike and this one isn't."""
    for column in ONE_SWEEP:
        if row[column] != alike[column]:
            return f"{column} is {alike[column]} and {row[column]}"
    return None


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
