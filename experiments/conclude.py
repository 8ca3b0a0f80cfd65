"""The end of a sweep: fit, draw, print the verdict and name the files."""

from experiments.analyse import analyse, format_table
from experiments.config import SuiteConfig
from experiments.errors import UserError


def conclude(suite: SuiteConfig) -> None:
    """Of the tables as they are."""
    if not (suite.tables / "runs.parquet").exists():
        raise UserError(f"{suite.name}: no run has finished, so there is nothing to fit")
    print(format_table(analyse(suite.tables, suite.sweep.goals)))
    print(f"\nwritten: {suite.tables}/{{runs,curves}}.parquet, {{fits,crossings}}.csv")
