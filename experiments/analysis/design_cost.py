"""What would mend a sweep's design at a goal, and about what it costs, at the pace of the runs that are there.

- A seed more: three runs, since the search gives seeds to the best learning rate and its neighbours.
- A learning rate more at each open end of a grid: a run a seed.
- A batch size more, spaced as the last two, until B_crit lies `MARGIN` times inside (or longer runs at one that never
  reached the goal): as many runs as at the nearest one that did, each longer than its own as E(B) = E_min + S_min B
  beyond the largest, and as S(B) = S_min + E_min/B below the smallest.
- More steps at the crossing take a harder goal: the whole sweep again, longer at least by the steps that are missing.
"""

import math
from dataclasses import dataclass

from experiments.analysis.goal_fit import GoalFit
from experiments.analysis.sweep_design import MARGIN, SEEDS, STEPS, Check, Design
from experiments.analysis.sweep_summary import SweepResult

RATES_A_SEED = 3


@dataclass(frozen=True)
class Repair:
    """What a check asks for, in words, and the seconds of training: `at_least` where it may take more."""

    check: Check
    what: str
    seconds: float
    at_least: bool = False


def repairs(sweep: SweepResult, fit: GoalFit, found: Design) -> list[Repair]:
    """One for each check that `found`, the design of `sweep` at the goal of `fit`, fails; none for a range around a
    B_crit that isn't known."""
    mean = sweep.tables.runs.groupby("batch_size")["seconds"].mean()
    count = sweep.tables.runs.groupby("batch_size").size()
    needed = []
    for check in found.faults:
        if check == "learning rate":
            edges = zip(found.sizes, found.open_ends, found.seeds, strict=True)
            runs = {size: ends * max(seeds, SEEDS) for size, ends, seeds in edges if ends}
            seconds = sum(n * mean[size] for size, n in runs.items())
            needed.append(Repair(check, f"learning rates beyond the grid at {len(runs)} batch sizes", seconds))
        elif check == "seeds":
            missing = {size: SEEDS - n for size, n in zip(found.sizes, found.seeds, strict=True) if n < SEEDS}
            seconds = sum(RATES_A_SEED * n * mean[size] for size, n in missing.items())
            needed.append(Repair(check, f"{SEEDS} seeds at {len(missing)} batch sizes", seconds))
        elif check == "range":
            added = new_sizes(found, fit.b_crit.value)
            seconds = sum(
                count[near] * mean[near] * (_examples(fit, size) / _examples(fit, near)) * (near / min(near, size))
                for size, near in added.items()
            )
            said = [f"{size:,}{' (longer runs)' * (size in count.index)}" for size in added]
            if added:
                needed.append(Repair(check, f"B = {', '.join(said)}", seconds))
        else:
            total = float(sweep.tables.runs["seconds"].sum())
            needed.append(Repair(check, "a harder goal", total * STEPS / found.steps, at_least=True))
    return needed


def new_sizes(found: Design, b_crit: float) -> dict[int, int]:
    """Batch sizes, rising, that put `b_crit` far enough inside, each with the nearest one there is."""
    sizes = found.sizes
    if len(sizes) < 2 or not (b_crit > 0 and math.isfinite(b_crit)):
        return {}
    up, down = sizes[-1] / sizes[-2], sizes[1] / sizes[0]
    above, below = (
        math.ceil(round(math.log(missing) / math.log(step), 6))
        for missing, step in ((MARGIN / found.above, up), (MARGIN / found.below, down))
    )
    return {max(1, round(sizes[0] / down**k)): sizes[0] for k in range(below, 0, -1)} | {
        round(sizes[-1] * up**k): sizes[-1] for k in range(1, above + 1)
    }


def _examples(fit: GoalFit, size: int) -> float:
    return fit.e_min.value + fit.s_min.value * size
