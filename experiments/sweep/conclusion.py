"""The end of a sweep: fit, draw, print the verdict, name the files and compare with the reference."""

from pathlib import Path

from experiments.analysis.beside_reference import compare, format_comparison
from experiments.analysis.sweep_fit import analyse, format_table
from experiments.config import SuiteConfig
from experiments.errors import UserError
from experiments.tables.reading import read_tables


def conclude(suite: SuiteConfig) -> None:
    """Of the tables as they are."""
    if not (suite.tables / "runs.parquet").exists():
        raise UserError(f"{suite.name}: no run has finished, so there is nothing to fit")
    fits = analyse(suite.tables, suite.sweep.goals)
    swept = read_tables(suite.tables)
    print(format_table(fits, swept.describe("unit"), swept.frames_per_example))
    from experiments.figures.files import draw  # matplotlib takes half a second, which every other command would pay

    pictures = draw(Path(suite.results), [suite.name])
    tables = [suite.tables / name for name in ("runs.parquet", "curves.parquet", "crossings.csv", "fits.csv")]
    print("\nwritten:", *tables, *pictures, sep="\n  ")
    print()
    compare_with_reference(suite)


def compare_with_reference(suite: SuiteConfig) -> None:
    """Print whether the sweep reproduces the reference's of its name."""
    if not (suite.reference_tables / "fits.csv").exists():
        print(f"There is no {suite.reference_tables} to compare with.")
    elif suite.reference_tables.resolve() != suite.tables.resolve():
        print(
            format_comparison(compare(suite.tables, suite.reference_tables), read_tables(suite.tables).describe("unit"))
        )
