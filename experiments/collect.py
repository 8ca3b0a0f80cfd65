"""Finished records → the committed tables: `python -m experiments.collect task=digits preset=small`.

A run that is in the tables stays there, whatever happens to its record.
"""

import json
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.config import RECORD_VERSION, SuiteConfig, load
from experiments.errors import UserError
from experiments.record import RunRecord, write_parquet
from experiments.tasks import TASKS

NOT_SCIENCE = ("seconds", "eval_seconds", "measure_seconds", "device", "versions", "collected_at")
PACKAGES = ("torch", "numpy", "scipy")


def collect(suite: SuiteConfig) -> int:
    """Add the finished records of `suite` to its tables; the number of runs that are new there."""
    return collect_records(suite.records, suite.tables, suite.preset)


def collect_records(records: Path, tables: Path, preset: str) -> int:
    """The records below `records` into `runs.parquet` and `curves.parquet` of `tables`, sorted by batch size,
    learning rate and seed.
    """
    paths = tables / "runs.parquet", tables / "curves.parquet"
    old = [pd.read_parquet(path) for path in paths] if paths[0].exists() else []
    known = set(old[0]["run_id"]) if old else set()
    runs, curves = [], []
    for folder in sorted(records.glob("*-*")):
        found = RunRecord(folder).read() if folder.name not in known else None
        if found is not None:
            config, summary, curve = found
            runs.append(_row(folder.name, preset, config, summary))
            curves.append(curve.assign(run_id=folder.name))
    if not runs:
        return 0
    if old:
        old[1] = old[1][old[1]["run_id"].isin(known)]
    run_table = pd.concat([*old[:1], pd.DataFrame(runs)], ignore_index=True)
    run_table = run_table.sort_values(["batch_size", "lr", "seed", "run_id"], ignore_index=True)
    curve_table = pd.concat([*old[1:], *curves], ignore_index=True)
    rank = {run: i for i, run in enumerate(run_table["run_id"])}
    curve_table = curve_table.assign(rank=curve_table["run_id"].map(rank)).sort_values(
        ["rank", "step"], ignore_index=True
    )
    columns = ["run_id", *(c for c in curve_table.columns if c not in ("run_id", "rank"))]
    write_parquet(paths[1], curve_table[columns])
    write_parquet(paths[0], run_table)
    return len(runs)


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
        "seconds": summary["seconds"],
        "eval_seconds": summary["eval_seconds"],
        "measure_seconds": summary["measure_seconds"],
        "device": summary["device"],
        "versions": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        "collected_at": datetime.now(UTC).isoformat(timespec="seconds"),
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
