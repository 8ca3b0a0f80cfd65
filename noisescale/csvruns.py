"""Runs from a CSV file: columns batch_size and steps, optionally goal, seed and reached; every other column is
ignored.
"""

import csv
import io
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NEEDED = ("batch_size", "steps")
OPTIONAL = ("goal", "seed", "reached")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
SEPARATED = re.compile(r"\d{1,3}([,.' \u00a0\u2009\u202f_]\d{3})+", re.ASCII)
LARGEST = 1e18
YES = {"true", "yes", "1"}
NO = {"false", "no", "0"}


class CsvError(ValueError):
    """One line that says which file, which line of it, and why."""


@dataclass
class GoalRuns:
    """The runs towards one goal, one entry a run."""

    batch_size: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    reached: list[bool] = field(default_factory=list)


def read_runs(path: Path) -> dict[str, GoalRuns]:
    """The runs of each goal, goals in the file's order; one goal "" where there is no such column.

    Raises:
        CsvError: at the first thing that can't be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise CsvError(
            f"{path}, line {line}: byte 0x{error.object[error.start]:02x} isn't UTF-8; save the file as UTF-8 text"
        ) from None
    except OSError as error:
        raise CsvError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    if not text.strip():
        raise CsvError(f"{path}: the file is empty; a header with the columns batch_size and steps is needed")
    reader = csv.reader(io.StringIO(text))
    try:
        header = next(row for row in reader if any(cell.strip() for cell in row))
        columns = _columns(f"{path}, line {reader.line_num}", header)
        goals = _rows(path, reader, columns, len(header))
    except csv.Error as error:
        raise CsvError(f"{path}, line {reader.line_num}: {error}") from None
    if not goals:
        raise CsvError(f"{path}: no rows under the header")
    sizes = {size for runs in goals.values() for size in runs.batch_size}
    if len(sizes) == 1:
        raise CsvError(f"{path}: every row has batch size {sizes.pop():g}; a fit needs at least 4 different ones")
    return goals


def _columns(where: str, header: list[str]) -> dict[str, int]:
    names = [cell.strip().lower() for cell in header]
    missing = [name for name in NEEDED if name not in names]
    if missing:
        hint = next((f"; columns are separated by {c!r}, use commas" for c in ";\t|" if c in ",".join(names)), "")
        found = ", ".join(repr(name) for name in names)
        raise CsvError(f"{where}: no column {' or '.join(missing)}, found {found}{hint}")
    for name in (*NEEDED, *OPTIONAL):
        if names.count(name) > 1:
            raise CsvError(f"{where}: column {name} is there {names.count(name)} times")
    return {name: names.index(name) for name in (*NEEDED, *OPTIONAL) if name in names}


def _rows(path: Path, reader: Any, columns: dict[str, int], width: int) -> dict[str, GoalRuns]:
    goals: dict[str, GoalRuns] = {}
    seen: dict[tuple[str, float, str], int] = {}
    for row in reader:
        if not any(cell.strip() for cell in row):
            continue
        where = f"{path}, line {reader.line_num}"
        if len(row) != width:
            more = "; numbers must have no thousands separators" if len(row) > width else ""
            raise CsvError(f"{where}: {len(row)} cells, but the header has {width}{more}")
        cells = {name: row[index].strip() for name, index in columns.items()}
        batch_size = _positive(where, "batch_size", cells["batch_size"])
        steps = _positive(where, "steps", cells["steps"])
        goal = cells.get("goal", "")
        if "goal" in cells and not goal:
            raise CsvError(f"{where}: goal is empty")
        if "seed" in cells:
            first = seen.setdefault((goal, batch_size, cells["seed"]), reader.line_num)
            if first != reader.line_num:
                raise CsvError(f"{where}: the same goal, batch size and seed as line {first}; keep one")
        runs = goals.setdefault(goal, GoalRuns())
        runs.batch_size.append(batch_size)
        runs.steps.append(steps)
        runs.reached.append(_flag(where, cells["reached"]) if "reached" in cells else True)
    return goals


def _positive(where: str, name: str, cell: str) -> float:
    if not cell:
        raise CsvError(f"{where}: {name} is empty")
    if SEPARATED.fullmatch(cell) and not NUMBER.fullmatch(cell):
        raise CsvError(f"{where}: {name} is {cell!r}; numbers must have no thousands separators")
    if not NUMBER.fullmatch(cell):
        what = "not a finite number" if cell.lower().lstrip("+-") in {"nan", "inf", "infinity"} else "not a number"
        way_out = (
            "; for a run that did not reach the goal give its steps and reached = false" if name == "steps" else ""
        )
        raise CsvError(f"{where}: {name} is {cell!r}, {what}{way_out}")
    value = float(cell)
    if not 0 < value <= LARGEST or not math.isfinite(value):
        raise CsvError(f"{where}: {name} is {cell}; a number above 0 and at most {LARGEST:g} is needed")
    return value


def _flag(where: str, cell: str) -> bool:
    word = cell.lower()
    if word not in YES | NO:
        raise CsvError(f"{where}: reached is {cell!r}; true or false is needed")
    return word in YES
