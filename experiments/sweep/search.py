"""Which runs a sweep still wants: a pure function of the runs that are finished.

For each batch size by itself, on the lattice ε_j = lr (1 + noise/B)^-alpha · ratio^j:

1. seed 0 scans the grid, which is widened while the best learning rate of any goal lies on its edge;
2. the best of each goal and its neighbours get all seeds, and the grid moves on while the best by the mean over seeds
   has a neighbour that hasn't.

Since nothing but finished runs decides, an interrupted sweep goes on where it stopped, and the order in which runs end
does not matter.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from experiments.config import SweepConfig
from noisescale.planning.theory import search_centre


class Point(NamedTuple):
    """A run of the sweep."""

    batch_size: int
    lr: float
    seed: int


@dataclass(frozen=True)
class Outcome:
    """Of one finished run: steps to each goal of the sweep (inf where not reached), and whether it diverged."""

    steps: Sequence[float]
    diverged: bool


def grid_lr(sweep: SweepConfig, batch_size: int, j: int) -> float:
    """The lattice's learning rate, to four digits, so that it reads well and hashes the same everywhere."""
    centre = float(search_centre(batch_size, sweep.lr, sweep.noise, sweep.alpha))
    return float(f"{centre * sweep.ratio**j:.4g}")


def wanted(sweep: SweepConfig, finished: Mapping[Point, Outcome]) -> list[Point]:
    """Runs to make next, all batch sizes together; empty when the search is over."""
    return [point for size in sweep.batch_sizes for point in _wanted_at(sweep, size, finished)]


def _wanted_at(sweep: SweepConfig, batch_size: int, finished: Mapping[Point, Outcome]) -> list[Point]:
    half = sweep.points // 2
    lowest, highest = -half - sweep.widen, half + sweep.widen

    def at(j: int, seed: int) -> Point:
        return Point(batch_size, grid_lr(sweep, batch_size, j), seed)

    missing = [at(j, 0) for j in range(-half, half + 1) if at(j, 0) not in finished]
    if missing:
        return missing
    scanned = {j: finished[at(j, 0)] for j in range(lowest, highest + 1) if at(j, 0) in finished}

    edges: set[int] = set()
    bests: set[int] = set()
    for goal in range(len(sweep.goals)):
        best = min(scanned, key=lambda j: (scanned[j].steps[goal], j))
        if math.isfinite(scanned[best].steps[goal]):
            bests.add(best)
            edges |= {best - 1, best + 1}
        elif scanned[min(scanned)].diverged:
            edges.add(min(scanned) - 1)
        elif not scanned[max(scanned)].diverged:
            edges.add(max(scanned) + 1)
    missing = [at(j, 0) for j in sorted(edges) if lowest <= j <= highest and j not in scanned]
    if missing:
        return missing

    full = {j for best in bests for j in (best - 1, best, best + 1) if lowest <= j <= highest}
    while True:
        missing = [at(j, seed) for j in sorted(full) for seed in range(sweep.seeds) if at(j, seed) not in finished]
        if missing:
            return missing
        grown = full | {
            j
            for best in _bests_by_mean(sweep, {j: [finished[at(j, s)] for s in range(sweep.seeds)] for j in full})
            for j in (best - 1, best + 1)
            if lowest <= j <= highest
        }
        if grown == full:
            return []
        full = grown


def _bests_by_mean(sweep: SweepConfig, outcomes: Mapping[int, Sequence[Outcome]]) -> set[int]:
    """For each goal the lattice index whose log steps are smallest on average over seeds; where one seed fails, the
    index counts as failing.
    """
    bests = set()
    for goal in range(len(sweep.goals)):
        means = {j: sum(math.log(max(o.steps[goal], 1e-9)) for o in runs) / len(runs) for j, runs in outcomes.items()}
        best = min(means, key=lambda j: (means[j], j), default=None)
        if best is not None and math.isfinite(means[best]):
            bests.add(best)
    return bests
