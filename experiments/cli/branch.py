"""B_crit by branching from one run: `python -m experiments.cli.branch task=… branch.<key>=…`."""

import sys
from collections.abc import Sequence

from experiments.cli.command import start
from experiments.single_run.branching import BranchConfig, measure


def main(arguments: Sequence[str]) -> int:
    """`branch.<key>=value` goes to `BranchConfig`, the rest to the suite."""
    return start(arguments, "branch", BranchConfig, measure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
