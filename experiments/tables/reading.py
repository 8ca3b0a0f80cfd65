"""The committed tables of one sweep, read and written (schemas in docs/architecture.md)."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from experiments.config import RECORD_VERSION
from experiments.errors import UserError
from experiments.files import RESTORE, read_parquet, write_atomically
from experiments.tasks import describe, frames_per_example

REFERENCE, REDRAWN = Path("results/reference"), Path("results/redrawn")
ONE_SWEEP = (
    *("task", "preset", "unit", "sample_size", "metric", "direction", "optimizer", "parameters", "data"),
    "record_version",
)
# Of a run's config: the point, where the run ends, how it is measured and how its memory is saved.
OF_A_RUN = ("batch_size", "lr", "seed", "max_steps", "stop_metric", "stop_patience", "measure", "micro_batch")


@dataclass(frozen=True)
class Tables:
    """`runs`: a row a run; `curves`: a row an evaluation, ordered by run and step."""

    folder: Path
    runs: pd.DataFrame
    curves: pd.DataFrame

    @property
    def direction(self) -> Literal["min", "max"]:
        direction = self.runs["direction"].iloc[0]
        assert direction in ("min", "max")
        return direction

    @property
    def network(self) -> str:
        """The network in words, which `data` and `parameters` don't say."""
        return describe(self._task)

    @property
    def frames_per_example(self) -> float | None:
        """What an example, the unit of E and B, is in frames of the game; None where the task is none."""
        return frames_per_example(self._task)

    @property
    def _task(self) -> Mapping[str, Any]:
        return json.loads(self.runs["config"].iloc[0])["task"]

    def describe(self, column: str) -> str:
        """A property that all runs share, as in `runs.parquet`."""
        return str(self.runs[column].iloc[0])


def read_tables(folder: Path) -> Tables:
    """`runs.parquet` and `curves.parquet` in `folder`; `UserError` where there are none or they hold more than one
    experiment, by `ONE_SWEEP` or by the runs' configs."""
    path = folder / "runs.parquet"
    if not path.exists():
        raise UserError(f"no {path}; run `make sweep` for it, or `make collect` where its runs are done")
    runs, curves = read_collected(folder)
    if runs.empty:
        raise UserError(f"{path} has no runs yet; run `make sweep` for it")
    for column in ONE_SWEEP:
        values = sorted({str(value) for value in runs[column]})
        if len(values) > 1:
            raise UserError(
                f"{path}: {column} is {' and '.join(values)}; a fit needs runs that differ in batch size, "
                "learning rate and seed alone, so give each its own preset"
            )
    difference = same_experiment(runs, json.loads(runs["config"].iloc[0]))
    if difference:
        raise UserError(f"{path}: {difference}")
    runs = longest(runs)
    curves = curves[curves["run_id"].isin(runs["run_id"])]
    return Tables(folder, runs, curves.sort_values(["run_id", "step"]).reset_index(drop=True))


def read_collected(folder: Path, of_curves: list[str] | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`runs.parquet` and (the columns `of_curves` of) `curves.parquet`, as `collect` left them; `UserError` where they
    are damaged."""
    runs, curves = read_parquet(folder / "runs.parquet"), read_parquet(folder / "curves.parquet", of_curves)
    bare = sorted(set(runs["run_id"]) - set(curves["run_id"].unique()))
    if bare:
        raise UserError(f"{folder}/curves.parquet lacks {len(bare)} runs of runs.parquet ({bare[0]}, …); {RESTORE}")
    return runs, curves


def check_can_grow(path: Path, runs: pd.DataFrame, config: Mapping[str, Any]) -> None:
    """`UserError` where new runs of `config` would not be of one experiment with `runs`, the table at `path`."""
    for version in set(runs["record_version"]) - {RECORD_VERSION}:
        raise UserError(
            f"{path} holds runs of record version {version}, and what is made now is version {RECORD_VERSION}: the two "
            "can't be fitted together; move its folder away (git keeps it), or choose another preset or results=…"
        )
    difference = same_experiment(runs, config)
    if difference:
        raise UserError(f"{path}: {difference}")


def same_experiment(runs: pd.DataFrame, config: Mapping[str, Any]) -> str | None:
    """None where `runs` belong to one experiment with `config`, a run's whole config; else which key they differ in,
    and how.

    Batch size, learning rate, seed, budget and measurements (`OF_A_RUN`) may differ; a key that is missing is one that
    is null.
    """
    wanted = experiment(config)
    for text in runs["config"].unique():
        difference = differs(experiment(json.loads(text)), wanted)
        if difference:
            return f"{difference} in one folder; choose another preset or results=…"
    return None


def differs(found: Mapping[str, str], wanted: Mapping[str, str]) -> str | None:
    """The first key in which two experiments differ, and how."""
    for key in sorted(found.keys() | wanted.keys()):
        if found.get(key) != wanted.get(key):
            return f"{key} is {wanted.get(key, 'null')} and {found.get(key, 'null')}"
    return None


def experiment(config: Mapping[str, Any]) -> dict[str, str]:
    """What all runs of a sweep share of a run's config: its leaves by dotted key, as JSON, without those of `OF_A_RUN`
    and without what is null."""
    shared = {key: value for key, value in config.items() if key not in OF_A_RUN}
    return {key: json.dumps(value) for key, value in _leaves(shared) if value is not None}


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def longest(runs: pd.DataFrame) -> pd.DataFrame:
    """One run for each batch size, learning rate and seed: where a sweep was made again with another budget or other
    measurements, the longest, and the newest of equals.
    """
    point = ["batch_size", "lr", "seed"]
    ordered = runs.sort_values([*point, "step", "finished_at", "run_id"])
    return ordered.drop_duplicates(point, keep="last").reset_index(drop=True)


def sweep_folders(results: Path) -> list[Path]:
    """Folders below `results` that hold the tables of a sweep, by name."""
    return sorted(path.parent for path in results.glob("*/runs.parquet"))


def written_to(folder: Path) -> Path:
    """Where what is made of the tables in `folder` goes: there, but `results/redrawn/` for those of the reference,
    which `publish` alone writes: another machine rounds otherwise, and nobody's clone is to change by looking at it.
    """
    inside = folder.resolve().is_relative_to(REFERENCE.resolve())
    return REDRAWN / folder.resolve().relative_to(REFERENCE.resolve()) if inside else folder


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Seven significant digits, so that the same numbers are the same bytes on any machine; atomically."""
    shown = frame.copy()
    for column in shown.columns:
        if shown[column].dtype.kind == "f":
            shown[column] = [("" if np.isnan(value) else f"{value:.7g}") for value in shown[column]]
    write_atomically(path, shown.to_csv(index=False, lineterminator="\n").encode())
