r"""The likelihood of a Pareto front, profiled over everything but B_crit.

ln S_i = a + ln(1 + e^θ / B_i) + (σ / √w_i) ξ_i with ξ_i normal, a = ln S_min and θ = ln B_crit. A censored i says only
that S_i is greater than its budget. At a fixed θ this is a censored linear regression with nothing but an intercept,
whose likelihood is concave in (γ, δ) = (1/σ, a/σ) (Olsen 1978), so Newton's method finds its one maximum, for a whole
grid of θ at once.

Shapes: `log_b`, `weights` (n,), `y`, `censored` (..., n), `theta` (..., g); results (..., g).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Noise in ln S below which two fits count as equally exact; it keeps 1/σ finite for points that lie on the curve
# exactly.
RESOLUTION = 1e-7
NEWTON_STEPS = 60
# A Newton decrement below this leaves -2 ln L within its square of the maximum.
CONVERGED = 1e-5
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


def hazard(z: Floats) -> Floats:
    """φ(z)/P(ξ > z) of a standard normal ξ, which is E[ξ | ξ > z]."""
    return np.sqrt(2 / np.pi) / erfcx(z / np.sqrt(2))


def _hazard_slope(z: Floats, rate: Floats) -> Floats:
    """The derivative h(z)(h(z) - z) of the hazard h, which tends to 1; far out the difference is lost to rounding."""
    return np.where(z > 1e4, 1.0, rate * (rate - z))


def profile(points: Points, theta: Floats) -> tuple[Floats, Floats, Floats]:
    """-2 ln L at its maximum over a and σ, and that a and σ, for every θ."""
    offset = points.y[..., None, :] - shape(theta, points.log_b)
    observed = np.broadcast_to(~points.censored[..., None, :], offset.shape)
    weights = np.where(observed, points.weights, 0.0)
    total = weights.sum(-1)
    a = (weights * offset).sum(-1) / total
    count = observed.sum(-1)
    variance = (weights * (offset - a[..., None]) ** 2).sum(-1) / count + RESOLUTION**2
    sigma = np.sqrt(variance)
    if not points.censored.any():
        return count * (np.log(2 * np.pi * variance) + 1) - np.log(points.weights).sum(), a, sigma
    return _newton(offset, observed, points.weights, a, sigma)


def _newton(
    offset: Floats, observed: Bools, weights: Floats, a: Floats, sigma: Floats
) -> tuple[Floats, Floats, Floats]:
    """-2 ln L, a and σ at the maximum, from a start that leaves the censored points out."""
    # In units of the start, whose a and σ are then 0 and 1: exact points make σ ten million times smaller than a.
    root = np.sqrt(weights)
    x = root * (offset - a[..., None]) / sigma[..., None]
    floor = (RESOLUTION / sigma) ** 2
    count = observed.sum(-1)
    gamma, delta = np.ones_like(a), np.zeros_like(a)
    for _ in range(NEWTON_STEPS):
        z = gamma[..., None] * x - delta[..., None] * root
        rate = hazard(z)
        pull = np.where(observed, z, rate)
        stiffness = np.where(observed, 1.0, _hazard_slope(z, rate))
        grad_gamma = count / gamma - (pull * x).sum(-1) - count * floor * gamma
        grad_delta = (pull * root).sum(-1)
        h_gg = count / gamma**2 + (stiffness * x * x).sum(-1) + count * floor
        h_gd = -(stiffness * x * root).sum(-1)
        h_dd = (stiffness * weights).sum(-1)
        det = h_gg * h_dd - h_gd**2
        step_gamma = (h_dd * grad_gamma - h_gd * grad_delta) / det
        step_delta = (h_gg * grad_delta - h_gd * grad_gamma) / det
        decrement = np.sqrt(np.maximum(step_gamma * grad_gamma + step_delta * grad_delta, 0.0))
        # The damping that keeps Newton's method inside the domain of a self-concordant function (here, γ > 0).
        damping = np.where(decrement > 0.25, 1 / (1 + decrement), 1.0)
        gamma, delta = gamma + damping * step_gamma, delta + damping * step_delta
        if decrement.max() < CONVERGED:
            break
    a, sigma = a + sigma * delta / gamma, sigma / gamma
    return _deviance(offset, observed, weights, a, sigma), a, sigma


def _deviance(offset: Floats, observed: Bools, weights: Floats, a: Floats, sigma: Floats) -> Floats:
    z = np.sqrt(weights) * (offset - a[..., None]) / sigma[..., None]
    log_density = 0.5 * np.log(2 * np.pi / weights) + np.log(sigma)[..., None] + 0.5 * z * z
    return 2 * np.where(observed, log_density, -log_ndtr(-z)).sum(-1) + observed.sum(-1) * (RESOLUTION / sigma) ** 2


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
    room = np.maximum(limit - best, 0.0)
    observed = ~points.censored
    reach = sigma * np.sqrt(np.expm1(room / observed.sum()) * observed.sum() / points.weights[observed].sum())
    if not points.censored.any():
        return a - reach, a + reach
    offset = points.y - shape(theta, points.log_b)
    edges = []
    for sign in (-1.0, 1.0):
        distance = reach
        for _ in range(SECANT_STEPS):
            # -2 ln L grows about as the square of the distance.
            gained = _deviance_at(offset, observed, points.weights, a + sign * distance, sigma) - best
            distance = distance * np.sqrt(np.divide(room, gained, out=np.ones_like(room), where=gained > 0))
        edges.append(a + sign * distance)
    return edges[0], edges[1]


def _deviance_at(offset: Floats, observed: Bools, weights: Floats, a: Floats, sigma: Floats) -> Floats:
    """-2 ln L at (θ, a), maximised over σ by Newton's method in γ."""
    x = np.sqrt(weights) * (offset - a[:, None])
    count = observed.sum()
    gamma = 1 / np.hypot(sigma, np.sqrt(np.where(observed, x * x, 0.0).sum(-1) / count))
    for _ in range(NEWTON_STEPS):
        z = gamma[:, None] * x
        rate = hazard(z)
        grad = count / gamma - (np.where(observed, z, rate) * x).sum(-1) - count * RESOLUTION**2 * gamma
        curvature = count / gamma**2 + (np.where(observed, 1.0, _hazard_slope(z, rate)) * x * x).sum(-1)
        decrement = np.abs(grad) / np.sqrt(curvature)
        gamma = gamma + np.where(decrement > 0.25, 1 / (1 + decrement), 1.0) * grad / curvature
        if decrement.max() < CONVERGED:
            break
    return _deviance(offset, np.broadcast_to(observed, offset.shape), weights, a, 1 / gamma)
