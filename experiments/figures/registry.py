"""Each figure's name, and the function from the results folder that draws it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from experiments.analysis.sweep_summary import read_sweep
from experiments.figures import fig01_to_03_theory as theory
from experiments.figures import fig05_15_17_local_noise as local_noise
from experiments.figures import fig06_07_09_to_14_tasks as tasks
from experiments.figures import fig08_16_18_19 as rest
from experiments.figures import one_sweep
from experiments.figures.fig04_claim import figure4
from experiments.figures.pareto_fronts import fronts
from experiments.tables.reading import sweep_folders

Draw = Callable[[Path], Figure]
OF_A_SWEEP = {
    "curves": one_sweep.curves,
    "pareto": fronts,
    "noise": one_sweep.noise,
    "lr": one_sweep.learning_rates,
}

OF_THE_PAPER: dict[int, Draw] = {
    1: theory.figure1,
    2: theory.figure2,
    3: theory.figure3,
    4: figure4,
    5: local_noise.figure5,
    6: tasks.figure6,
    7: tasks.figure7,
    8: rest.figure8,
    9: tasks.figure9,
    10: tasks.figure10,
    11: tasks.figure11,
    12: tasks.figure12,
    13: tasks.figure13,
    14: tasks.figure14,
    15: local_noise.figure15,
    16: rest.figure16,
    17: local_noise.figure17,
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
