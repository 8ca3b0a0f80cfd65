"""Draw all figures, or those named, into results/figures."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from experiments.entry import told
from experiments.errors import UserError
from experiments.figures import registry
from experiments.figures.style import drawn, save
from experiments.tables import RESULTS


def draw(results: Path, names: Sequence[str] = ()) -> list[Path]:
    """Draw figures by name, or by the sweep or figure number their names begin with (all, if none); the files written.

    Raises:
        UserError: a name that fits no figure.
    """
    figures = registry(results)
    for name in names:
        if not any(_fits(figure, name) for figure in figures):
            raise UserError(f"no figure {name!r}; figures: {', '.join(figures) or 'none, as no sweep is analysed'}")
    chosen = [figure for figure in figures if not names or any(_fits(figure, name) for name in names)]
    files = []
    for name in chosen:
        files += save(drawn(partial(figures[name], results)), results / "figures" / name)
    return files


def _fits(figure: str, name: str) -> bool:
    return figure == name or figure.startswith(name + "-")


def main(arguments: Sequence[str]) -> int:
    """`python -m experiments.figures [name ...]`."""
    return told(lambda: print(*draw(RESULTS, arguments), sep="\n"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
