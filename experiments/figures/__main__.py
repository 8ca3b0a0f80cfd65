"""Draw all figures, or those named, into results/figures."""

import sys
from collections.abc import Sequence

from experiments.entry import told
from experiments.figures.draw import draw
from experiments.tables import RESULTS


def main(arguments: Sequence[str]) -> int:
    """`python -m experiments.figures [name ...]`."""
    return told(lambda: print(*draw(RESULTS, arguments), sep="\n"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
