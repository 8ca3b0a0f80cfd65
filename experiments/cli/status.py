"""Where a sweep stands: `python -m experiments.cli.status task=digits preset=small`."""

import sys
from collections.abc import Sequence

from experiments.cli.command import told
from experiments.config import load
from experiments.sweep.status import report


def main(arguments: Sequence[str]) -> int:
    """Of the sweep that the overrides name."""
    return told(lambda: print(report(load(arguments))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
