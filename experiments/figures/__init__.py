"""Committed tables → pictures: `python -m experiments.figures [name or sweep ...]`.

`registry(results)` maps each figure's name to a function from the results folder to a matplotlib figure.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from experiments.figures import fronts, headline, local, rest, sweeps, tasks, theory
from experiments.summary import read_sweep
from experiments.tables import sweep_folders

Draw = Callable[[Path], Figure]
OF_A_SWEEP = {
    "curves": sweeps.curves,
    "pareto": fronts.fronts,
    "noise": sweeps.noise,
    "lr": sweeps.learning_rates,
}

OF_THE_PAPER: dict[int, Draw] = {
    1: theory.figure1,
    2: theory.figure2,
    3: theory.figure3,
    4: headline.figure4,
    5: local.figure5,
    6: tasks.figure6,
    7: tasks.figure7,
    8: rest.figure8,
    9: tasks.figure9,
    10: tasks.figure10,
    11: tasks.figure11,
    12: tasks.figure12,
    13: tasks.figure13,
    14: tasks.figure14,
    15: local.figure15,
    16: rest.figure16,
    17: local.figure17,
    18: rest.figure18,
    19: rest.figure19,
}


def registry(results: Path) -> dict[str, Draw]:
    """Every figure that can be drawn from `results`: of each analysed sweep, then the paper's."""
    figures: dict[str, Draw] = {}
    for folder in sweep_folders(results):
        if (folder / "fits.csv").exists():
            figures |= {f"{folder.name}-{kind}": partial(of_sweep, folder.name, kind) for kind in OF_A_SWEEP}
    return figures | {f"fig{number:02d}": draw for number, draw in OF_THE_PAPER.items()}


def of_sweep(name: str, kind: str, results: Path) -> Figure:
    """The figure `kind` of the sweep `name`."""
    return OF_A_SWEEP[kind](read_sweep(results / name), results)
