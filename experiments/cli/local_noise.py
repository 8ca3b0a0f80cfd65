"""B_noise at points of one run (Figs 5, 7 and 17): `python -m experiments.cli.local_noise task=… local.<key>=…`."""

import sys
from collections.abc import Sequence

from experiments.cli.command import start
from experiments.single_run.local_noise import LocalConfig, measure


def main(arguments: Sequence[str]) -> int:
    """`local.<key>=value` goes to `LocalConfig`, the rest to the suite."""
    return start(arguments, "local", LocalConfig, measure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
