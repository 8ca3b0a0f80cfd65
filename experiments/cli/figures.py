"""Draw all figures, or those named: `python -m experiments.cli.figures [from=results/own] [name or sweep ...]`."""

import sys
from collections.abc import Sequence

from experiments.cli.command import told, where_from
from experiments.figures.files import draw
from experiments.tables.reading import written_to


def main(arguments: Sequence[str]) -> int:
    """Names of figures or sweeps."""
    return told(lambda: _draw(arguments))


def _draw(arguments: Sequence[str]) -> None:
    results, names = where_from(arguments)
    print(*draw(results, names, written_to(results)), sep="\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
