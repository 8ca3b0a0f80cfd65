"""Statistics over tasks, with the 95% percentiles of a bootstrap that draws whole tasks.

Each task weighs the same, however many values it has. Every statistic is an array whose first entry is of the tasks as
they are and whose others are of `REPLICATES` draws, the same ones each time.
"""

import numpy as np
from numpy.typing import NDArray

from noisescale.pareto.fit import Estimate

Floats = NDArray[np.float64]

REPLICATES = 2000


class TaskBootstrap:
    """For values (n,) that belong to the tasks of `of` (n,), names."""

    def __init__(self, of: list[str]) -> None:
        names, self._task, counts = np.unique(of, return_inverse=True, return_counts=True)
        self.tasks = len(names)
        drawn = np.random.default_rng(0).multinomial(self.tasks, np.full(self.tasks, 1 / self.tasks), size=REPLICATES)
        self._weight = (np.vstack([np.ones(self.tasks), drawn]) / counts)[:, self._task]

    def mean(self, values: Floats) -> Floats:
        """Of `values`, (n,) or (1 + replicates, n); NaN where a value that counts is."""
        return np.where(self._weight > 0, self._weight * values, 0.0).sum(axis=1) / self._weight.sum(axis=1)

    def median(self, values: Floats) -> Floats:
        """Of `values` (n,)."""
        return _median(values, self._weight)

    def slope(self, x: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Of a least-squares line, and the correlation."""
        slope, _, _, correlation = _least_squares(x, y, self._weight)
        return slope, correlation

    def others_median(self, values: Floats) -> Floats:
        """At each value the median of the other tasks', (1 + replicates, n); NaN where a draw has no other task."""
        return np.stack([_median(values, self._others(task)) for task in range(self.tasks)], axis=1)[:, self._task]

    def others_line(self, x: Floats, y: Floats, lowest: float, highest: float) -> Floats:
        """At each x what the least-squares line through the other tasks says, its slope held between `lowest` and
        `highest`, (1 + replicates, n); NaN where a draw has no other task."""
        guess = np.empty_like(self._weight)
        for task in range(self.tasks):
            slope, middle_x, middle_y, _ = _least_squares(x, y, self._others(task))
            own = self._task == task
            held = np.clip(slope, lowest, highest)[:, None]
            guess[:, own] = middle_y[:, None] + held * (x[own] - middle_x[:, None])
        return guess

    def _others(self, task: int) -> Floats:
        return np.where(self._task == task, 0.0, self._weight)


def interval(values: Floats) -> Estimate:
    """The first of `values`, and the 95% percentiles of those others that are known (NaN where none is)."""
    known = np.sort(values[1:][~np.isnan(values[1:])])
    tail = round(0.025 * len(known))
    low, high = (known[tail], known[-1 - tail]) if len(known) else (np.nan, np.nan)
    return Estimate(float(values[0]), float(low), float(high))


def _least_squares(x: Floats, y: Floats, weight: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Slope (0 where x doesn't vary), mean x, mean y and correlation (NaN where either doesn't vary), one a row of
    `weight`."""
    with np.errstate(invalid="ignore", divide="ignore"):
        share = weight / weight.sum(axis=1, keepdims=True)
        middle_x, middle_y = share @ x, share @ y
        dx, dy = x - middle_x[:, None], y - middle_y[:, None]
        xx, yy, xy = ((share * a * b).sum(axis=1) for a, b in ((dx, dx), (dy, dy), (dx, dy)))
        varies = xx > 1e-12
        correlation = np.where(varies & (yy > 1e-12), xy / np.sqrt(xx * yy), np.nan)
        return np.where(varies, xy / xx, 0.0), middle_x, middle_y, correlation


def _median(values: Floats, weight: Floats) -> Floats:
    """One a row of `weight`: the value with half the weight on either side, or the middle of two; NaN where there is no
    weight."""
    order = np.argsort(values, kind="stable")
    ordered, below = values[order], np.cumsum(weight[:, order], axis=1)
    half, slack = below[:, -1:] / 2, 1e-9
    lower, upper = (np.argmax(below >= half + side, axis=1) for side in (-slack, slack))
    return np.where(below[:, -1] > 0, (ordered[lower] + ordered[upper]) / 2, np.nan)
