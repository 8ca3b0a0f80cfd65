"""The noise scale of a sweep's tuned runs at the start and where they pass a goal.

Every estimate is one ratio of means over the runs (`noisescale.averaging.ratio_of_means`), each run a row, so its
interval is made of the scatter between runs. The pair is (tr Σ, |G|²) for B_simple and (tr HΣ, GᵀHG) for B_noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.analysis.crossings import monotone
from noisescale.averaging import Ratio, ratio_of_means

Floats = NDArray[np.float64]

# Measurements count as "at" a step within this factor of it; where there is none, the nearest one within FAR does.
NEAR, FAR = 1.25, 2.0


@dataclass(frozen=True)
class Curve:
    """A run's measurements, and the curve of its metric.

    `at` (m,): the row's step; `middle` (m,): the step that the measurement is of, on average; `trace`, `square` (m,):
    the pair; `examples` (m,) behind it. `step`, `metric` (n,): the evaluations, the metric made monotone.
    """

    batch_size: int
    at: Floats
    middle: Floats
    trace: Floats
    square: Floats
    examples: Floats
    step: Floats
    metric: Floats


def simple_curve(rows: pd.DataFrame, batch_size: int, direction: Literal["min", "max"] = "min") -> Curve:
    """(tr Σ, |G|²) from a run's part of `curves.parquet`, in the order of steps; a row holds means since the row
    before.
    """
    columns = ("step", "trace_cov", "grad_sq_norm", "noise_examples")
    table = np.array([rows[column].to_numpy(float) for column in columns])
    before = np.concatenate([[0.0], table[0, :-1]])[: table.shape[1]]
    seen = np.isfinite(table).all(axis=0) & (table[3] > 0)
    at, trace, square, examples = table[:, seen]
    middle = np.maximum(before[seen], (before[seen] + at - 1) / 2)
    return Curve(batch_size, at, middle, trace, square, examples, *_monotone(rows, direction))


def hessian_curve(
    rows: pd.DataFrame, batch_size: int, examples: int, direction: Literal["min", "max"] = "min"
) -> Curve:
    """(tr HΣ, GᵀHG), which are measured at the rows' own steps, from `examples` examples each."""
    columns = ("step", "trace_hess_cov", "grad_hess_grad")
    table = np.array([rows[column].to_numpy(float) for column in columns])
    at, trace, square = table[:, np.isfinite(table).all(axis=0)]
    return Curve(batch_size, at, at, trace, square, np.full(len(at), float(examples)), *_monotone(rows, direction))


def _monotone(rows: pd.DataFrame, direction: Literal["min", "max"]) -> tuple[Floats, Floats]:
    return monotone(rows["step"].to_numpy(float), rows["metric"].to_numpy(float), direction)


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
    """From each run's measurements near its own step; a run that has none there is left out.

    The weight of a run with n examples is n/(n + 𝓑): runs count in proportion to n where sampling noise dominates and
    equally where it doesn't, so that the largest batches don't outvote the rest.
    """
    found = [_mean_near(run, step) for run, step in zip(curves, steps, strict=True)]
    trace, square, examples = np.array([mean for mean in found if mean is not None], dtype=float).reshape(-1, 3).T
    return ratio_of_means(trace, square, weigh(trace, square, examples))


def weigh(trace: Floats, square: Floats, examples: Floats) -> Floats:
    """n/(n + 𝓑), with 𝓑 to within its order from Σ n t/Σ n g, or 0 where that isn't positive."""
    top, bottom = examples @ trace, examples @ square
    return examples / (examples + max(top / bottom, 0.0)) if bottom > 0 else np.ones(len(examples))


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
