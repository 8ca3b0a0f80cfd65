"""The noise scale of a sweep's tuned runs: at the start, where they pass a goal, and averaged up to it.

Every estimate is one ratio of means over the runs (`noisescale.average.ratio_of_means`), each run a row, so its
interval is made of the scatter between runs. The pair is (tr Σ, |G|²) for B_simple and (tr HΣ, GᵀHG) for B_noise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from noisescale.average import Ratio, ratio_of_means

Floats = NDArray[np.float64]

# Rows count as "at" a step within this factor of it.
NEAR = 1.25
# Rows are pooled until they hold this many times B + 𝓑 examples before anything is divided by them: 1/(g + t/B) is
# then off by a few per cent at most, -2 (B + 𝓑)/(n d) for n examples whose gradients scatter in d directions.
POOL = 20


@dataclass(frozen=True)
class Curve:
    """A run's rows with a measurement: `step` of the row, `since` the row before (so the row speaks for the steps
    between), the measured pair and the `examples` behind it."""

    batch_size: int
    step: Floats
    since: Floats
    trace: Floats
    square: Floats
    examples: Floats


def curve(rows: pd.DataFrame, batch_size: int, trace: str = "trace_cov", square: str = "grad_sq_norm") -> Curve:
    """From a run's part of `curves.parquet`, in the order of steps; a row without a measurement is left to the next
    one that has."""
    pair = rows[[trace, square]].to_numpy(float)
    seen = np.isfinite(pair).all(axis=1) & (rows["noise_examples"].to_numpy(float) > 0)
    step = rows["step"].to_numpy(float)[seen]
    return Curve(
        batch_size=batch_size,
        step=step,
        since=np.concatenate([[0.0], step[:-1]])[: len(step)],
        trace=pair[seen, 0],
        square=pair[seen, 1],
        examples=rows["noise_examples"].to_numpy(float)[seen],
    )


def at_start(curves: Sequence[Curve], seeds: Sequence[int]) -> Ratio:
    """From the measurements at step 0, a row a seed: all runs of a seed start from the same weights."""
    by_seed: dict[int, list[tuple[float, float, float]]] = {}
    for run, seed in zip(curves, seeds, strict=True):
        found = _mean_near(run, 0.0)
        if found is not None:
            by_seed.setdefault(seed, []).append(found)
    rows = np.array([np.mean(found, axis=0) for found in by_seed.values()]).reshape(-1, 3)
    return ratio_of_means(rows[:, 0], rows[:, 1], rows[:, 2])


def at_steps(curves: Sequence[Curve], steps: Sequence[float]) -> Ratio:
    """From the rows within a factor `NEAR` of each run's own step, and the nearest row where there is none."""
    target = dict(zip(map(id, curves), steps, strict=True))
    return _over_runs(curves, lambda run: _mean_near(run, target[id(run)]))


def averaged(curves: Sequence[Curve], steps: Sequence[float]) -> Ratio:
    r"""⟨𝓑⟩ = ∫𝓑 ds / ∫ds up to each run's own step, the value that B_crit should have: S_min = ∫ds and E_min = ∫𝓑 ds.

    A step at batch size B is worth ds = dS/(1 + 𝓑/B) full-batch steps. With 𝓑 = t/g (t = tr Σ, g = |G|²) both
    integrands have the same denominator, ds = dS · g/(g + t/B) and 𝓑 ds = dS · t/(g + t/B), and that is E|Ḡ|², the
    mean square of the batch's own gradient: never small by chance, whatever the sign of the estimate g.
    """
    runs = [_until(run, step) for run, step in zip(curves, steps, strict=True)]
    rough = _rough(np.array([(run.examples @ run.trace, run.examples @ run.square, 1.0) for run in runs]))
    return _over_runs(runs, lambda run: _integrals(run, POOL * (run.batch_size + rough)), POOL)


def _over_runs(
    curves: Sequence[Curve], measure: Callable[[Curve], tuple[float, float, float] | None], scale: float = 1.0
) -> Ratio:
    """Each run's (t, g, n examples) → Σ w t / Σ w g with w = n/(n + scale · 𝓑).

    So runs count in proportion to n where sampling noise dominates and equally where it doesn't: the largest batches
    don't outvote the rest.
    """
    rows = np.array([found for run in curves if (found := measure(run)) is not None], dtype=float).reshape(-1, 3)
    trace, square, examples = rows.T
    return ratio_of_means(trace, square, examples / (examples + scale * _rough(rows)))


def _rough(rows: Floats) -> float:
    """𝓑 to within its order, for weights: Σ n t/Σ n g of the rows (t, g, n), or 0 where that isn't positive."""
    top, bottom = rows[:, 2] @ rows[:, :2] if len(rows) else (0.0, 0.0)
    return max(float(top / bottom), 0.0) if bottom > 0 else 0.0


def _mean_near(run: Curve, step: float) -> tuple[float, float, float] | None:
    if not run.step.size:
        return None
    if step == 0:
        near = run.step == 0
    else:
        with np.errstate(divide="ignore"):
            distance = np.abs(np.log(run.step / step))
        near = distance <= max(np.log(NEAR), distance.min())
    examples = run.examples[near]
    total = examples.sum()
    if total == 0:
        return None
    return float(examples @ run.trace[near] / total), float(examples @ run.square[near] / total), float(total)


def _until(run: Curve, end: float) -> Curve:
    """The run up to step `end`: the last row is cut there, or stretched to it where the rows end before."""
    kept = run.since < end
    step = np.minimum(run.step[kept], end)
    step[-1:] = end
    kept_rows = (run.since[kept], run.trace[kept], run.square[kept], run.examples[kept])
    return Curve(run.batch_size, step, *kept_rows)


def _integrals(run: Curve, pool: float) -> tuple[float, float, float] | None:
    """∫t/(g + t/B) dS and ∫g/(g + t/B) dS with g + t/B from stretches of `pool` examples or more, and the examples
    behind them.

    None where a stretch's g + t/B isn't positive: B_noise has no such average while the curvature along the gradient
    is negative.
    """
    width = run.step - run.since
    total = run.examples.sum()
    stretch = np.minimum((np.cumsum(run.examples) - run.examples) // pool, max(total // pool - 1, 0)).astype(int)
    trace, square = (np.bincount(stretch, width * values) for values in (run.trace, run.square))
    occupied = np.bincount(stretch, width)
    used = occupied > 0
    mean_square = (square + trace / run.batch_size)[used] / occupied[used]
    if not mean_square.size or (mean_square <= 0).any():
        return None
    return float((trace[used] / mean_square).sum()), float((square[used] / mean_square).sum()), float(total)
