r"""The likelihood of a Pareto front, profiled over everything but B_crit.

ln S_i = a + ln(1 + e^θ / B_i) + (σ / √w_i) ξ_i with ξ_i normal, a = ln S_min and θ = ln B_crit. A censored i says only
that S_i is greater than its budget. At a fixed θ this is a normal sample, partly censored, whose best a and σ are found
for a whole grid of θ at once.

Shapes: `log_b`, `weights`, `censored` (n,), `y` (..., n), `theta` (..., g); results (..., g).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from noisescale.pareto.censoring import minimum, minimum_at

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Noise in ln S below which two fits count as equally exact; it keeps 1/σ finite for points that lie on the curve
# exactly.
RESOLUTION = 1e-7
SECANT_STEPS = 4
# The scan of θ goes this far beyond the batch sizes: 1 + B_crit/B is then flat, or 1/B, to within 1e-5.
BEYOND = 12.0
SCAN = 121
ZOOM = 33
ZOOMS = 5
# Two fits whose -2 ln L differ by less are told apart by nothing in the data.
AS_GOOD = 1e-3


@dataclass(frozen=True)
class Points:
    """One point a batch size: ln S, or ln of the budget where `censored`, with relative precision `weights`."""

    log_b: Floats
    y: Floats
    censored: Bools
    weights: Floats


def shape(theta: Floats, log_b: Floats) -> Floats:
    """ln(1 + e^θ/B), shape (..., g, n); θ = -inf gives 0."""
    return np.logaddexp(0.0, theta[..., None] - log_b)


def profile(points: Points, theta: Floats) -> tuple[Floats, Floats, Floats]:
    """-2 ln L at its maximum over a and σ, and that a and σ, for every θ."""
    seen = _Observed.of(points, theta)
    if not points.censored.any():
        return seen.deviance(0.5 * seen.count), seen.a, seen.sigma
    bounds = (seen.offset[..., points.censored] - seen.a[..., None]) / seen.sigma[..., None]
    phi, gamma, delta = minimum(seen.count, seen.total, bounds, np.sqrt(points.weights[points.censored]))
    return seen.deviance(phi), seen.a + seen.sigma * delta / gamma, seen.sigma / gamma


@dataclass(frozen=True)
class _Observed:
    """What the points that are not censored say at each θ: the best a and σ; `offset` is ln S - ln(1 + e^θ/B) of
    all."""

    offset: Floats
    a: Floats
    sigma: Floats
    count: int
    total: float
    log_weights: float

    @classmethod
    def of(cls, points: Points, theta: Floats) -> "_Observed":
        offset = points.y[..., None, :] - shape(theta, points.log_b)
        weights = points.weights[~points.censored]
        mine = offset[..., ~points.censored]
        a = mine @ weights / weights.sum()
        variance = (mine - a[..., None]) ** 2 @ weights / weights.size + RESOLUTION**2
        return cls(offset, a, np.sqrt(variance), weights.size, float(weights.sum()), float(np.log(weights).sum()))

    def deviance(self, phi: Floats | float) -> Floats:
        """-2 ln L from `censored`'s φ."""
        return 2 * phi + self.count * (np.log(2 * np.pi) + 2 * np.log(self.sigma)) - self.log_weights


def scan(points: Points) -> Floats:
    """A grid (g,) of θ that ends where the curve has no bend left within the batch sizes."""
    return np.linspace(points.log_b.min() - BEYOND, points.log_b.max() + BEYOND, SCAN)


def maximum(points: Points) -> tuple[Floats, Floats]:
    """The θ of greatest likelihood and its -2 ln L, shapes (...); -inf or inf where no bend does as well as any."""
    grid = np.broadcast_to(scan(points), (*points.y.shape[:-1], SCAN))
    deviance = profile(points, grid)[0]
    flat, inverse = deviance[..., 0], deviance[..., -1]
    for _ in range(ZOOMS):
        k = deviance.argmin(-1, keepdims=True)
        left, right = (np.take_along_axis(grid, np.clip(k + i, 0, grid.shape[-1] - 1), -1) for i in (-1, 1))
        grid = left + (right - left) * np.linspace(0, 1, ZOOM)
        deviance = profile(points, grid)[0]
    k = deviance.argmin(-1, keepdims=True)
    theta, least = np.take_along_axis(grid, k, -1)[..., 0], np.take_along_axis(deviance, k, -1)[..., 0]
    theta = np.where(flat <= least + AS_GOOD, -np.inf, np.where(inverse <= least + AS_GOOD, np.inf, theta))
    return theta, least


def intercept_range(points: Points, theta: Floats, limit: float) -> tuple[Floats, Floats]:
    """Lowest and highest a with -2 ln L, maximised over σ alone, at `limit`, for θ (g,) whose best a lies below it."""
    best, a, sigma = profile(points, theta)
    seen = _Observed.of(points, theta)
    room = np.maximum(limit - best, 0.0)
    reach = sigma * np.sqrt(np.expm1(room / seen.count) * seen.count / seen.total)
    if not points.censored.any():
        return a - reach, a + reach
    bounds = (seen.offset[..., points.censored] - seen.a[..., None]) / seen.sigma[..., None]
    root = np.sqrt(points.weights[points.censored])
    edges = []
    for sign in (-1.0, 1.0):
        distance = reach
        for _ in range(SECANT_STEPS):
            # -2 ln L grows about as the square of the distance.
            mean = (a + sign * distance - seen.a) / seen.sigma
            gained = seen.deviance(minimum_at(seen.count, seen.total, bounds, root, mean)) - best
            distance = distance * np.sqrt(np.divide(room, gained, out=np.ones_like(room), where=gained > 0))
        edges.append(a + sign * distance)
    return edges[0], edges[1]
