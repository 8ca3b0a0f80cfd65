"""Runs of one folder of tables into another: a user's into the reference (`make publish`), or the reference's into a
sweep that goes on from it (`CONTINUE=1`).
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.errors import UserError
from experiments.files import clear_asides, exclusive, read_parquet, write_parquet
from experiments.tables.collecting import add_rows
from experiments.tables.reading import ONE_SWEEP, check_can_grow, read_collected
from experiments.training.curve import CURVE_COLUMNS

TABLES = ("runs", "curves", "groups")


@dataclass(frozen=True)
class Merged:
    """`new` runs came in; `kept` are the ids of those that both have with other numbers: the target's stay."""

    new: int
    kept: list[str]


def merge(source: Path, target: Path) -> Merged:
    """The runs of the tables in `source` into those in `target`, which need not be there; runs that are, stay as they
    are. Runs come in whole or, where this is killed, not at all, and the same call then goes on.

    Raises:
        UserError: the two hold different experiments, other data, or runs of another record version.
    """
    with exclusive(target / ".lock"):
        clear_asides(target, *(f"{name}.parquet" for name in TABLES))
        return _merge(source, target)


def _merge(source: Path, target: Path) -> Merged:
    theirs, their_curves = read_collected(source)
    old, kept = theirs.iloc[:0], []
    if (target / "runs.parquet").exists():
        old, old_curves = read_collected(target)
        kept = _parted(their_curves, old_curves)
    _check(source, theirs, target, old if len(old) else theirs)
    new = theirs[~theirs["run_id"].isin(old["run_id"])]
    if new.empty:
        return Merged(0, kept)
    known = set(old["run_id"])
    runs = pd.concat([old, new], ignore_index=True) if len(old) else new
    runs = runs.sort_values(["batch_size", "lr", "seed", "run_id"], ignore_index=True)
    for name, table in (("curves", their_curves), ("groups", _groups(source))):
        add_rows(target / f"{name}.parquet", [table[table["run_id"].isin(new["run_id"])]], known, list(runs["run_id"]))
    write_parquet(target / "runs.parquet", runs)  # last: what it doesn't name is not there yet
    return Merged(len(new), kept)


def _groups(folder: Path) -> pd.DataFrame:
    path = folder / "groups.parquet"
    return read_parquet(path) if path.exists() else pd.DataFrame({"run_id": []}, dtype=str)


def _check(source: Path, theirs: pd.DataFrame, target: Path, old: pd.DataFrame) -> None:
    """One experiment, on the same data, of this record version."""
    for config in theirs["config"].drop_duplicates():
        check_can_grow(source / "runs.parquet", theirs, json.loads(config))
        check_can_grow(target / "runs.parquet", old, json.loads(config))
    for column in ONE_SWEEP:
        here, there = theirs[column].unique(), old[column].unique()
        if not np.isin(here, there).all():
            raise UserError(f"{column} is {here[0]} in {source} and {there[0]} in {target}: the two don't go together")


def _parted(ours: pd.DataFrame, theirs: pd.DataFrame) -> list[str]:
    """Runs of both with other numbers at an evaluation that both have."""
    science = [column for column in CURVE_COLUMNS if column not in ("step", "seconds")]
    both = ours.merge(theirs, on=["run_id", "step"], suffixes=("", "_theirs"))
    mine, other = both[science].to_numpy(float), both[[f"{column}_theirs" for column in science]].to_numpy(float)
    same = ((mine == other) | (np.isnan(mine) & np.isnan(other))).all(axis=1)
    return sorted(both.loc[~same, "run_id"].unique())
