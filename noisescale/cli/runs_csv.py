"""Runs from a CSV file: columns batch_size and steps, optionally goal, seed and reached; every other column is
ignored.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

NEEDED = ("batch_size", "steps")
OPTIONAL = ("goal", "seed", "reached")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
# 1,024 and 1 024, with decimals (1,000.5), and in lakhs (1,00,000).
SEPARATED = re.compile(
    r"[+-]?\d{1,3}([,.' \u00a0\u2009\u202f_]\d{2,3})*[,.' \u00a0\u2009\u202f_]\d{3}([.,]\d*)?", re.ASCII
)
# 12.000, which is twelve to some and twelve thousand to others.
AMBIGUOUS = re.compile(r"[1-9]\d{0,2}\.\d{3}", re.ASCII)
# A step or an example, counted in millions, is 1e-6.
SMALLEST, LARGEST = 1e-6, 1e18
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
    rows = _rows(path, text)
    line, header = next(rows, (0, []))
    if not header:
        raise CsvError(f"{path}: the file is empty; a header with the columns batch_size and steps is needed")
    columns = _columns(f"{path}, line {line}", header)
    goals = _goals(path, _cells(path, rows, columns, len(header)))
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
        found = ", ".join(_shown(name) for name in names)
        raise CsvError(f"{where}: no column {' or '.join(missing)}, found {found}{hint}")
    for name in (*NEEDED, *OPTIONAL):
        if names.count(name) > 1:
            raise CsvError(f"{where}: column {name} is there {names.count(name)} times")
    return {name: names.index(name) for name in (*NEEDED, *OPTIONAL) if name in names}


def _rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that aren't blank, each with the line it begins in."""
    reader = csv.reader(io.StringIO(text), strict=True)
    line = 1
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        unclosed = "end of data" in str(error)
        why = 'a quote (") opens here and is never closed' if unclosed else f"{error}; check its quotes"
        raise CsvError(f"{path}, line {line}: {why}") from None


def _cells(
    path: Path, rows: Iterator[tuple[int, list[str]]], columns: dict[str, int], width: int
) -> Iterator[tuple[int, dict[str, str]]]:
    """Of each row its line and the cells of the columns that count."""
    for line, row in rows:
        if len(row) != width:
            more = "; numbers must have no thousands separators and no decimal commas" if len(row) > width else ""
            raise CsvError(f"{path}, line {line}: {len(row)} cells, but the header has {width}{more}")
        yield line, {name: row[index].strip() for name, index in columns.items()}


def _goals(path: Path, rows: Iterator[tuple[int, dict[str, str]]]) -> dict[str, GoalRuns]:
    goals: dict[str, GoalRuns] = {}
    seen: dict[tuple[str, float, str], int] = {}
    columns: dict[str, list[tuple[int, str]]] = {name: [] for name in NEEDED}
    for line, cells in rows:
        where = f"{path}, line {line}"
        batch_size, steps = (_positive(where, name, cells[name]) for name in NEEDED)
        for name, column in columns.items():
            column.append((line, cells[name]))
        goal = cells.get("goal", "")
        if "goal" in cells and not goal:
            raise CsvError(f"{where}: goal is empty")
        if "seed" in cells:
            first = seen.setdefault((goal, batch_size, cells["seed"]), line)
            if first != line:
                raise CsvError(f"{where}: the same goal, batch size and seed as line {first}; keep one")
        runs = goals.setdefault(goal, GoalRuns())
        runs.batch_size.append(batch_size)
        runs.steps.append(steps)
        runs.reached.append(_flag(where, cells["reached"]) if "reached" in cells else True)
    for name, column in columns.items():
        _refuse_ambiguous(path, name, column)
    return goals


def _refuse_ambiguous(path: Path, name: str, column: Sequence[tuple[int, str]]) -> None:
    """12.000 may be twelve thousand, unless another point in its column can only be a decimal one."""
    with_point = [(line, cell) for line, cell in column if "." in cell]
    if len(column) < 2 or not with_point or not all(AMBIGUOUS.fullmatch(cell) for _, cell in with_point):
        return
    line, cell = with_point[0]
    decimal = f"{float(cell)}" if cell.endswith("0") else f"{cell}0"
    raise CsvError(
        f"{path}, line {line}: {name} is '{cell}', with a point that may mean thousands or decimals; "
        f"write {cell.replace('.', '')} or {decimal}"
    )


def _positive(where: str, name: str, cell: str) -> float:
    if not cell:
        raise CsvError(f"{where}: {name} is empty")
    if not NUMBER.fullmatch(cell):
        raise CsvError(f"{where}: {name} is {_shown(cell)}{_why_no_number(name, cell)}")
    value = float(cell)
    if not SMALLEST <= value <= LARGEST:
        raise CsvError(f"{where}: {name} is {_shown(cell)}; a number above 0, {SMALLEST:g} to {LARGEST:g}, is needed")
    return value


def _why_no_number(name: str, cell: str) -> str:
    if SEPARATED.fullmatch(cell):
        return "; numbers must have no thousands separators"
    what = "not a finite number" if cell.lower().lstrip("+-") in {"nan", "inf", "infinity"} else "not a number"
    if name == "steps" and not any(c.isdigit() for c in cell):
        return f", {what}; for a run that did not reach the goal give its steps and reached = false"
    return f", {what}; write it in digits, with a point before decimals, such as 1000 or 1000.5"


def _shown(cell: str) -> str:
    """In quotes, and no longer than fits into a line."""
    return repr(cell if len(cell) <= 40 else f"{cell[:20]}…{cell[-10:]}")


def _flag(where: str, cell: str) -> bool:
    word = cell.lower()
    if word not in YES | NO:
        raise CsvError(f"{where}: reached is {_shown(cell)}; true or false is needed")
    return word in YES
