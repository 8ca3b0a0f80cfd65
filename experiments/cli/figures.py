"""Draw all figures, or those named: `python -m experiments.cli.figures [name or sweep ...]`."""

import sys
from collections.abc import Sequence

from experiments.cli.command import told
from experiments.figures.files import draw
from experiments.tables.reading import REFERENCE


def main(arguments: Sequence[str]) -> int:
    """Names of figures or sweeps."""
    return told(lambda: print(*draw(REFERENCE, arguments), sep="\n"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
