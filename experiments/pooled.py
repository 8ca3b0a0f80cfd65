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

# Measurements count as "at" a step within this factor of it; where there is none, the nearest one within FAR does.
NEAR, FAR = 1.25, 2.0
# Rows are pooled until they hold this many times B + 𝓑 examples before anything is divided by them: 1/(g + t/B) is
# then off by a few per cent at most, -2 (B + 𝓑)/(n d) for n examples whose gradients scatter in d directions.
POOL = 20


@dataclass(frozen=True)
class Curve:
    """A run's measurements: taken at step `at`, each speaking for the steps from `since` to `until`; the pair, and the
    `examples` behind it."""

    batch_size: int
    at: Floats
    since: Floats
    until: Floats
    trace: Floats
    square: Floats
    examples: Floats


def simple_curve(rows: pd.DataFrame, batch_size: int) -> Curve:
    """(tr Σ, |G|²) from a run's part of `curves.parquet`, in the order of steps.

    A row holds means since the row before. Steps between rows without a measurement are shared by the two next to them.
    """
    columns = ("step", "trace_cov", "grad_sq_norm", "noise_examples")
    table = np.array([rows[column].to_numpy(float) for column in columns])
    begins = np.concatenate([[0.0], table[0, :-1]])[: table.shape[1]]
    seen = np.isfinite(table).all(axis=0) & (table[3] > 0)
    step, trace, square, examples = table[:, seen]
    edges = (step[:-1] + begins[seen][1:]) / 2
    since, until = np.concatenate([step[:1] * 0, edges]), np.concatenate([edges, step[-1:]])
    return Curve(batch_size, step, since, until, trace, square, examples)


def hessian_curve(rows: pd.DataFrame, batch_size: int, examples: int) -> Curve:
    """(tr HΣ, GᵀHG), which are measured at the rows' own steps, from `examples` examples each."""
    columns = ("step", "trace_hess_cov", "grad_hess_grad")
    table = np.array([rows[column].to_numpy(float) for column in columns])
    step, trace, square = table[:, np.isfinite(table).all(axis=0)]
    middles = (step[1:] + step[:-1]) / 2
    since, until = np.concatenate([step[:1] * 0, middles]), np.concatenate([middles, step[-1:]])
    return Curve(batch_size, step, since, until, trace, square, np.full(len(step), float(examples)))


def at_start(curves: Sequence[Curve], seeds: Sequence[int]) -> Ratio:
    """From the measurements at the initial weights: the probe at step 0 and the gradients of the first step.

    All runs of a seed start from the same weights, so they are one row.
    """
    by_seed: dict[int, list[Floats]] = {}
    for run, seed in zip(curves, seeds, strict=True):
        first = run.at <= 1
        pair = np.array([run.trace[first], run.square[first], run.examples[first]])
        by_seed.setdefault(seed, []).append(pair)
    pooled = [np.concatenate(pairs, axis=1) for pairs in by_seed.values()]
    rows = np.array([(pair[:2] @ pair[2]) / pair[2].sum() for pair in pooled if pair.size]).reshape(-1, 2)
    return ratio_of_means(rows[:, 0], rows[:, 1])


def at_steps(curves: Sequence[Curve], steps: Sequence[float]) -> Ratio:
    """From each run's measurements near its own step; a run that has none there is left out."""
    target = dict(zip(map(id, curves), steps, strict=True))
    return _over_runs(curves, lambda run: _mean_near(run, target[id(run)]))


def averaged(curves: Sequence[Curve], steps: Sequence[float]) -> Ratio:
    r"""⟨𝓑⟩ = ∫𝓑 ds / ∫ds up to each run's own step, the value that B_crit should have: S_min = ∫ds and E_min = ∫𝓑 ds.

    A step at batch size B is worth ds = dS/(1 + 𝓑/B) full-batch steps. With 𝓑 = t/g (t = tr Σ, g = |G|²) both
    integrands have the same denominator, ds = dS · g/(g + t/B) and 𝓑 ds = dS · t/(g + t/B), and that is E|Ḡ|², the
    mean square of the batch's own gradient: never small by chance, whatever the sign of the estimate g. A run whose
    last measurement lies more than a factor `FAR` before its step is left out.
    """
    reaching = [(run, step) for run, step in zip(curves, steps, strict=True) if (run.at * FAR >= step).any()]
    runs = [_until(run, step) for run, step in reaching]
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
    if not run.at.size:
        return None
    with np.errstate(divide="ignore"):
        distance = np.abs(np.log(run.at / step))
    near = distance <= max(np.log(NEAR), min(distance.min(), np.log(FAR)))
    examples = run.examples[near]
    total = examples.sum()
    if total == 0:
        return None
    return float(examples @ run.trace[near] / total), float(examples @ run.square[near] / total), float(total)


def _until(run: Curve, end: float) -> Curve:
    """The run up to step `end`: the last stretch is cut there, or drawn out to it where the rows end before."""
    kept = run.since < end
    until = np.minimum(run.until[kept], end)
    until[-1:] = end
    at, since, trace, square, examples = (x[kept] for x in (run.at, run.since, run.trace, run.square, run.examples))
    return Curve(run.batch_size, at, since, until, trace, square, examples)


def _integrals(run: Curve, pool: float) -> tuple[float, float, float] | None:
    """∫t/(g + t/B) dS and ∫g/(g + t/B) dS with g + t/B from stretches of `pool` examples or more, and the examples
    behind them.

    None where a stretch's g + t/B isn't positive: B_noise has no such average while the curvature along the gradient
    is negative.
    """
    width = run.until - run.since
    total = run.examples.sum()
    stretch = np.minimum((np.cumsum(run.examples) - run.examples) // pool, max(total // pool - 1, 0)).astype(int)
    trace, square = (np.bincount(stretch, width * values) for values in (run.trace, run.square))
    occupied = np.bincount(stretch, width)
    used = occupied > 0
    mean_square = (square + trace / run.batch_size)[used] / occupied[used]
    if not mean_square.size or (mean_square <= 0).any():
        return None
    return float((trace[used] / mean_square).sum()), float((square[used] / mean_square).sum()), float(total)
