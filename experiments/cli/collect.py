"""Finished records into the tables: `python -m experiments.cli.collect task=digits preset=small`."""

import sys
from collections.abc import Sequence

from experiments.cli.command import told
from experiments.config import load
from experiments.tables.collecting import collect


def main(arguments: Sequence[str]) -> int:
    """Of the sweep that the overrides name."""
    return told(lambda: _collect(arguments))


def _collect(arguments: Sequence[str]) -> None:
    suite = load(arguments)
    print(f"{suite.name}: {collect(suite)} new runs in {suite.tables}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
