"""From a sweep's tables to its verdict: `python -m experiments.cli.analyse FOLDER [goal ...]`."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from experiments.analysis.sweep_fit import analyse, format_table
from experiments.cli.command import told
from experiments.errors import UserError
from experiments.tables.reading import read_tables, written_to


def main(arguments: Sequence[str]) -> int:
    """`python -m experiments.cli.analyse FOLDER [GOAL ...]`; without goals, those of the `fits.csv` that is there."""
    if not arguments or arguments[0].startswith("-"):
        print(main.__doc__)
        return 2
    return told(lambda: _fit(Path(arguments[0]), arguments[1:]))


def _fit(folder: Path, wanted: Sequence[str]) -> None:
    try:
        goals = [float(goal) for goal in wanted]
    except ValueError as error:
        raise UserError(f"goals are numbers: {error}") from None
    if not goals and (folder / "fits.csv").exists():
        goals = pd.read_csv(folder / "fits.csv")["goal"].to_list()
    out = written_to(folder)
    fits = analyse(folder, goals or None, out)
    tables = read_tables(folder)
    print(format_table(fits, tables.describe("unit"), tables.frames_per_example))
    print(f"Wrote {out / 'crossings.csv'} and {out / 'fits.csv'}.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
