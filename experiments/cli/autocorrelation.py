"""How long the gradient keeps its direction (Fig. 18):
`python -m experiments.cli.autocorrelation task=… lag.<key>=…`.
"""

import sys
from collections.abc import Sequence

from experiments.cli.command import start
from experiments.single_run.autocorrelation import LagConfig, measure


def main(arguments: Sequence[str]) -> int:
    """`lag.<key>=value` goes to `LagConfig`, the rest to the suite."""
    return start(arguments, "lag", LagConfig, measure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
