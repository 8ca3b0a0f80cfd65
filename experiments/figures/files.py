"""Figures into files, a share of them on each core."""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path

from experiments.errors import UserError
from experiments.figures.registry import registry
from experiments.figures.style import drawn, save

FIGURES_A_PROCESS = 10  # at least: a process takes as long to start as two figures


def draw(results: Path, names: Sequence[str] = (), out: Path | None = None) -> list[Path]:
    """Draw figures by name, or by the sweep or figure number their names begin with (all, if none), into `figures/`
    below `out` (`results` where None); the files written.

    Raises:
        UserError: a name that fits no figure.
    """
    figures = list(registry(results))
    for name in names:
        if not any(_fits(figure, name) for figure in figures):
            raise UserError(f"no figure {name!r}; figures: {', '.join(figures) or 'none, as no sweep is analysed'}")
    chosen = [figure for figure in figures if not names or any(_fits(figure, name) for name in names)]
    one = partial(draw_one, results, out or results)
    workers = min(len(os.sched_getaffinity(0)), len(chosen) // FIGURES_A_PROCESS)
    if workers < 2:
        return list(chain.from_iterable(map(one, chosen)))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(chain.from_iterable(pool.map(one, chosen)))


def draw_one(results: Path, out: Path, name: str) -> list[Path]:
    """The figure `name` as PDF and PNG."""
    return save(drawn(partial(registry(results)[name], results)), out / "figures" / name)


def _fits(figure: str, name: str) -> bool:
    return figure == name or figure.startswith(name + "-")
