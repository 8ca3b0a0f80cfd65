r"""A positive trend in two coordinates through measurements that may be negative: μ = exp of a quadratic.

Coefficients β minimise the convex Σ w (μ − y ln μ), whose gradient Σ w (μ − y) x asks only that the weighted sums of
measurements and trend agree: a quasi-Poisson regression, unbiased for any noise of mean 0 (McCullagh and Nelder 1989,
ch. 9). Their prior is normal with standard deviation `PRIOR`, weighed against the noise that the measurements show: a
bend that they don't ask for stays away.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Of a coefficient, in ln μ over the range of the coordinates.
PRIOR = 1.0
# ln of the largest factor from the mean.
LARGEST = 30.0
PASSES, STEPS, TOLERANCE = 10, 50, 1e-8


@dataclass(frozen=True)
class Trend:
    """`centre`, `scale` (2,) of the coordinates, `mean` of the measurements, `coefficients` (6,)."""

    centre: Floats
    scale: Floats
    mean: float
    coefficients: Floats

    def at(self, x: Floats, y: Floats) -> Floats:
        """μ at the points (x, y), arrays of one shape."""
        return self.mean * _exp(_terms(x, y, self.centre, self.scale), self.coefficients)


def fit_trend(x: Floats, y: Floats, values: Floats, weight: Floats) -> Trend:
    """Through `values` (m,) at (x, y); flat where their weighted mean isn't positive."""
    points = np.array([x, y])
    low, high = points.min(axis=1), points.max(axis=1)
    trend = Trend((low + high) / 2, np.maximum(high - low, 1e-9), float(weight @ values / weight.sum()), np.zeros(6))
    if trend.mean <= 0:
        return trend
    terms = _terms(x, y, trend.centre, trend.scale)
    relative, share = values / trend.mean, weight / weight.sum()
    beta = trend.coefficients
    mean = np.ones(len(values))
    for _ in range(PASSES):
        dispersion = share @ (relative - mean) ** 2 / (share @ mean)
        ridge = max(dispersion * (share @ share) / PRIOR**2, TOLERANCE)
        beta = _newton(terms, relative, share, beta, ridge)
        mean = _exp(terms, beta)
    return Trend(trend.centre, trend.scale, trend.mean, beta)


def _exp(terms: Floats, beta: Floats) -> Floats:
    return np.exp(np.clip(terms @ beta, -LARGEST, LARGEST))


def _terms(x: Floats, y: Floats, centre: Floats, scale: Floats) -> Floats:
    u, v = (x - centre[0]) / scale[0], (y - centre[1]) / scale[1]
    return np.stack([np.ones_like(u), u, v, u * u, u * v, v * v], axis=-1)


def _newton(terms: Floats, values: Floats, share: Floats, beta: Floats, ridge: float) -> Floats:
    penalty = ridge * np.diag([0.0, *np.ones(len(beta) - 1)])
    for _ in range(STEPS):
        mean = _exp(terms, beta)
        slope = terms.T @ (share * (mean - values)) + penalty @ beta
        step = np.linalg.solve((terms.T * (share * mean)) @ terms + penalty, slope)
        largest = np.abs(step).max()
        beta = beta - step / max(1.0, largest / 2)
        if largest < TOLERANCE:
            break
    return beta
