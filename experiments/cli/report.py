"""Tables and figures into report.md and report.html: `python -m experiments.cli.report`."""

import sys
from collections.abc import Sequence

from experiments.cli.command import told
from experiments.report.pages import README, report
from experiments.tables.reading import REFERENCE


def main(arguments: Sequence[str]) -> int:
    """Takes no arguments."""
    return told(lambda: print(*report(REFERENCE, README), sep="\n"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
