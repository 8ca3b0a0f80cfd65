"""Does a sweep reproduce the reference's? `python -m experiments.cli.compare task=digits preset=small`."""

import sys
from collections.abc import Sequence

from experiments.cli.command import told
from experiments.config import load
from experiments.sweep.conclusion import compare_with_reference


def main(arguments: Sequence[str]) -> int:
    """Of the sweep that the overrides name, as it was last analysed."""
    return told(lambda: compare_with_reference(load(arguments)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
