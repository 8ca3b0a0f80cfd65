"""A bootstrap over seeds for B_crit, in which every replicate chooses its learning rates again."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from noisescale.pareto.fit import FEWEST_FOR_A_CURVE, Estimate
from noisescale.pareto.likelihood import Bools, Floats, Points, maximum
from noisescale.pareto.points import checked, filled

ROWS_AT_ONCE = 100

Select = Callable[[Floats, Floats], np.ndarray]


def fastest(mean_log_steps: Floats, share_reached: Floats) -> np.ndarray:
    """The candidate of smallest mean ln S among those that most seeds reached the goal with; (r, c), (r, c) → (r,)."""
    complete = share_reached == share_reached.max(-1, keepdims=True)
    return np.where(complete, mean_log_steps, np.inf).argmin(-1)


def _resampled(log_steps: Floats, reached: Bools, replicates: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Mean ln S and share reached, (1 + replicates,) each: of the m runs themselves, then of as many drawn again.

    The mean's deviation is stretched by √(m/(m - 1)), without which m = 2 would give half the variance.
    """
    m = log_steps.size
    draws = np.vstack([np.arange(m), rng.integers(m, size=(replicates, m))])
    centre = log_steps.mean()
    return centre + (log_steps[draws].mean(-1) - centre) * np.sqrt(m / max(m - 1, 1)), reached[draws].mean(-1)


def bootstrap_seeds(
    batch_size: ArrayLike,
    steps: ArrayLike,
    *,
    candidate: ArrayLike | None = None,
    reached: ArrayLike | None = None,
    select: Select = fastest,
    replicates: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """B_crit with the percentile interval of fits to resampled seeds, one entry a run in every column.

    In each replicate the runs of every (batch size, candidate) are drawn again, `select` picks a candidate for each
    batch size from their mean ln S and share reached, (replicates, candidates) each, and the front is fitted to the
    picked means, a batch size being censored where no run of the picked candidate reached the goal. Batch sizes all
    weigh the same. Runs that missed a goal that others reached are filled in first, as in `fit_pareto`.

    This interval holds the seeds' noise and the choice of learning rates, and nothing else. `fit_pareto`'s holds all
    that moves a point off the curve, seeds included, and is the one to report. In simulated sweeps
    (`benchmarks/pareto.py`) the fit's interval covers the truth in 94 to 97%; the bootstrap's in 93 to 98%, but in 63%
    where each batch size has an error of its own (0.1 in ln S, as from a coarse learning-rate grid); the wider of the
    two in up to 99%. The bootstrap answers whether more seeds would help: where it is much narrower than the fit's
    interval, they would not.

    Args:
        batch_size: (m,) examples per step, one entry a run.
        steps: (m,) optimizer steps to the goal; where not reached, the steps that the run was given.
        candidate: (m,) what was chosen from at each batch size, such as the learning rate; one for all by default.
        reached: (m,) False where a run did not reach the goal; default all True.
        select: (mean ln S, share reached), (replicates, candidates) each → (replicates,) the one picked.
        replicates: sweeps drawn.
        confidence: of the interval.
        seed: of the draws; the same seed gives the same interval.

    Raises:
        ValueError: as `fit_pareto`, and where no (batch size, candidate) has two runs: no seeds to resample.
    """
    batch, run_steps, done, _ = checked(batch_size, steps, reached, None)
    labels = np.zeros(batch.size) if candidate is None else np.asarray(candidate)
    if labels.shape != batch.shape:
        raise ValueError(f"candidate has shape {labels.shape} and batch_size {batch.shape}; both need one entry a run")
    sizes, size_of = np.unique(batch, return_inverse=True)
    _, cell = np.unique(np.unique(labels, return_inverse=True)[1] + batch.size * size_of, return_inverse=True)
    if np.bincount(cell).max() < 2:
        raise ValueError("every batch size and candidate has one run; a bootstrap over seeds needs two somewhere")
    log_steps, hopeless = filled(np.log(run_steps), done, np.ones(batch.size), cell)
    rng = np.random.default_rng(seed)
    rows = np.arange(1 + replicates)
    means, censored = np.empty((rows.size, sizes.size)), np.empty((rows.size, sizes.size), dtype=bool)
    for column in range(sizes.size):
        cells = np.unique(cell[size_of == column])
        drawn = [_resampled(log_steps[cell == c], done[cell == c], replicates, rng) for c in cells]
        mean, share = (np.stack([d[part] for d in drawn], -1) for part in (0, 1))
        chosen = select(mean, share)
        means[:, column], censored[:, column] = mean[rows, chosen], hopeless[cells[chosen]]
    b_crit = np.exp(_best(np.log(sizes), means, censored))
    # Replicates may be infinite, so that the ends are order statistics rather than interpolated quantiles; one with
    # too few points for a fit could be anything, and counts as 0 for the lower end and as inf for the upper.
    tail = int((1 - confidence) / 2 * replicates)
    unknown = np.isnan(b_crit[1:])
    low = np.sort(np.where(unknown, 0.0, b_crit[1:]))[tail]
    high = np.sort(np.where(unknown, np.inf, b_crit[1:]))[-1 - tail]
    return Estimate(float(b_crit[0]), float(low), float(high))


def _best(log_b: Floats, y: Floats, censored: Bools) -> Floats:
    """ln B_crit of greatest likelihood for each row of y (r, n); NaN where fewer than three points are not censored."""
    theta = np.full(len(y), np.nan)
    for pattern in np.unique(censored, axis=0):
        rows = np.flatnonzero((censored == pattern).all(-1))
        if (~pattern).sum() >= FEWEST_FOR_A_CURVE:
            for part in np.array_split(rows, -(-rows.size // ROWS_AT_ONCE)):
                theta[part] = maximum(Points(log_b, y[part], pattern, np.ones(log_b.size)))[0]
    return theta
