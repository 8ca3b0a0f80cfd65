"""From the runs of a sweep to one point a batch size."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from noisescale.pareto.censoring import hazard
from noisescale.pareto.likelihood import Bools, Floats, Points

FILL_STEPS = 200


def checked(
    batch_size: ArrayLike, steps: ArrayLike, reached: ArrayLike | None, weights: ArrayLike | None
) -> tuple[Floats, Floats, Bools, Floats]:
    """The four columns as arrays (m,) of one length, or a ValueError that names the first wrong entry."""
    batch = np.atleast_1d(np.asarray(batch_size, dtype=float))
    columns = {
        "batch_size": batch,
        "steps": np.atleast_1d(np.asarray(steps, dtype=float)),
        "weights": np.ones(batch.shape) if weights is None else np.atleast_1d(np.asarray(weights, dtype=float)),
    }
    done = np.ones(batch.shape, dtype=bool) if reached is None else np.atleast_1d(np.asarray(reached, dtype=bool))
    for name, values in {**columns, "reached": done}.items():
        if values.shape != batch.shape or values.ndim != 1:
            raise ValueError(f"{name} has shape {values.shape} and batch_size {batch.shape}; both need one entry a run")
    if batch.size == 0:
        raise ValueError("no runs to fit")
    for name, values in columns.items():
        wrong = ~(np.isfinite(values) & (values > 0))
        if wrong.any():
            raise ValueError(f"{name}[{wrong.argmax()}] is {values[wrong][0]:g}; positive finite numbers are needed")
    return batch, columns["steps"], done, columns["weights"]


def filled(log_steps: Floats, reached: Bools, weights: Floats, cell: NDArray[np.intp]) -> tuple[Floats, Bools]:
    r"""ln S with what a cell's other runs say of those that did not reach the goal, and the cells of which none did.

    A cell is what was run with several seeds: a batch size, or a batch size and a learning rate. Where some of its runs
    reached the goal and others did not, ln S ~ N(μ, s²/w) with μ the cell's and s that of all cells whose runs all
    reached it (of all runs that reached it where no cell of several is complete); μ is found by maximum likelihood and
    a missing ln S, known to be above ln c, becomes its mean E[ln S | ln S > ln c]. Where no two runs of any cell
    reached the goal, s is 0, and the run counts as having reached it at c.

    Shapes: runs (m,), `cell` their cell's number; results (m,) and (cells,).
    """
    values = log_steps.copy()
    total = np.bincount(cell, weights)
    runs, arrived = np.bincount(cell), np.bincount(cell, reached)
    missing = ~reached & (arrived > 0)[cell]
    s = _spread(log_steps, weights, cell, (runs == arrived)[cell]) or _spread(log_steps, weights, cell, reached)
    if s > 0 and missing.any():
        spread = s / np.sqrt(weights[missing])
        for _ in range(FILL_STEPS):
            mean = np.bincount(cell, weights * values) / total
            z = (log_steps[missing] - mean[cell[missing]]) / spread
            values[missing] = mean[cell[missing]] + spread * hazard(z)
    return values, arrived == 0


def _spread(log_steps: Floats, weights: Floats, cell: NDArray[np.intp], chosen: Bools) -> float:
    """The standard deviation of ln S at weight 1 within cells, over the chosen runs; 0 where no cell has two of
    them."""
    y, w = log_steps[chosen], weights[chosen]
    cells, index = np.unique(cell[chosen], return_inverse=True)
    if y.size == cells.size:
        return 0.0
    mean = np.bincount(index, w * y) / np.bincount(index, w)
    return float(np.sqrt((w * (y - mean[index]) ** 2).sum() / (y.size - cells.size)))


def gather(batch: Floats, log_steps: Floats, reached: Bools, weights: Floats) -> Points:
    """One point a batch size: the weighted mean of ln S over its runs, censored where none of them reached the goal."""
    sizes, index = np.unique(batch, return_inverse=True)
    values, censored = filled(log_steps, reached, weights, index)
    total = np.bincount(index, weights)
    mean = np.bincount(index, weights * values) / total
    # Equal weights of any size fit alike; of size one they keep the likelihood's numbers small.
    return Points(np.log(sizes), mean, censored, total / total.mean())
