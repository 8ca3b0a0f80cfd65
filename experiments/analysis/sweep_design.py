"""Whether a sweep was large enough for what it says of a goal: four checks, from its runs' crossings alone.

Batch sizes count at which a tuned run reached the goal:

- the best learning rate lies inside its grid at each of them;
- each has `SEEDS` seeds or more at its best learning rate;
- B_crit lies `MARGIN` times or more above the smallest of them and below the largest, so that both arms of the front
  are seen;
- at the largest of them, which takes the fewest steps, tuned runs take `STEPS` steps or more on (geometric) average, so
  that the first steps of training don't decide.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from experiments.analysis.learning_rate_choice import Grid

SEEDS, MARGIN, STEPS = 3, 4.0, 30.0
Check = Literal["learning rate", "seeds", "range", "steps"]


@dataclass(frozen=True)
class Design:
    """Of one goal. `sizes` are the batch sizes that count, in order; `open_ends` how many ends of each one's grid of
    learning rates the best one lies at, `seeds` how many it has; `below` is B_crit over the smallest, `above` the
    largest over B_crit (NaN where B_crit isn't known), `steps` those at the largest.
    """

    sizes: tuple[int, ...]
    open_ends: tuple[int, ...]
    seeds: tuple[int, ...]
    below: float
    above: float
    steps: float

    @property
    def faults(self) -> dict[Check, str]:
        """The checks that fail, and how, in words."""
        said: dict[Check, str] = {}
        edges = [size for size, ends in zip(self.sizes, self.open_ends, strict=True) if ends]
        if edges:
            said["learning rate"] = f"best learning rate on the edge of its grid at {_at(edges)}"
        few = [size for size, count in zip(self.sizes, self.seeds, strict=True) if count < SEEDS]
        if few:
            where = f" at {_at(few)}" if len(few) < len(self.sizes) else ""
            said["seeds"] = f"fewer than {SEEDS} seeds ({min(self.seeds)}){where}"
        near = [
            f"{times:.1f} times {where}"
            for times, where in (
                (self.below, f"above the smallest batch size, {self.sizes[0]:,}"),
                (self.above, f"below the largest, {self.sizes[-1]:,}"),
            )
            if times < MARGIN
        ]
        if near:
            said["range"] = f"B_crit is only {' and '.join(near)}"
        elif math.isnan(self.below):
            said["range"] = "B_crit isn't known"
        if self.steps < STEPS:
            said["steps"] = f"only {self.steps:.0f} steps at {_at(self.sizes[-1:])}"
        return said


def design(found: Sequence[Grid], b_crit: float) -> Design | None:
    """Of the goal to which `found` are the learning-rate grids; None where no tuned run reached it after step 0."""
    steps = {grid.batch_size: _steps(grid) for grid in found}
    arrived = sorted((grid for grid in found if steps[grid.batch_size].size), key=lambda grid: grid.batch_size)
    if not arrived:
        return None
    sizes = tuple(grid.batch_size for grid in arrived)
    return Design(
        sizes=sizes,
        open_ends=tuple(grid.open_ends for grid in arrived),
        seeds=tuple(len(grid.seeds) for grid in arrived),
        below=b_crit / sizes[0],
        above=sizes[-1] / b_crit if b_crit > 0 else math.nan,
        steps=float(np.exp(np.log(steps[sizes[-1]]).mean())),
    )


def _steps(grid: Grid) -> np.ndarray:
    """Of the tuned runs that reached the goal after step 0."""
    best = grid.best()
    return grid.steps[best][grid.reached[best] & (grid.steps[best] > 0)]


def _at(sizes: Sequence[int]) -> str:
    return f"B = {', '.join(f'{size:,}' for size in sizes)}"
