r"""The covariance of the mean of a correlated series, by slow cosines (Lazarus, Lewis, Stock and Watson 2018)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BIAS = 0.05  # of the long-run variance, that the choice of the number of cosines accepts


def long_run_covariance(pairs: Array, w: Array, mean: Array) -> tuple[Array, float]:
    """Covariance of the weighted mean of a correlated series, and its degrees of freedom."""
    sum_sq = w @ w
    residuals = pairs - mean
    ratio = mean[0] / mean[1] if mean[1] != 0 else 0.0
    count = _cosines(np.column_stack([residuals, residuals[:, 0] - ratio * residuals[:, 1]]), w)
    # The projections' coefficients: ⟂ 1, so that the mean drops out; ⟂ w, so that they are uncorrelated with the mean.
    time = (np.cumsum(w**2) - w**2 / 2) / sum_sq
    slow = w[:, None] * np.cos(np.pi * np.arange(1, count + 1) * time[:, None])
    null = np.column_stack([np.ones(len(w)), w])
    spread = np.ptp(w) > 1e-12 * w.max()
    basis, _ = np.linalg.qr(np.column_stack([null if spread else null[:, :1], slow]))
    projections = basis[:, 2 if spread else 1 :].T @ residuals
    return sum_sq * projections.T @ projections / count, float(count)


def _cosines(series: Array, w: Array) -> int:
    """How many cosines: as many as an AR(1) with the series' lag-1 correlation (plus its error) allows."""
    n = 1 / (w @ w)
    power = (w**2) @ series**2
    lagged = (w[1:] * w[:-1]) @ (series[1:] * series[:-1])
    worst = float(np.max(np.abs(lagged / np.where(power > 0, power, 1.0))))
    worst = min(worst + (1 + 4 * worst) / n + 1 / math.sqrt(n), 0.99)
    curvature = 2 * worst / (1 - worst) ** 2
    count = min(n * math.sqrt(6 * BIAS / curvature) / math.pi, n ** (2 / 3), len(w) - 2)
    return max(1, int(count))
