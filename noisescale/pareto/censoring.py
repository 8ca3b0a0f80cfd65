r"""The likelihood of a normal sample some of whose values are only known to exceed a bound, at its maximum.

Observed values enter through their count n, total weight C, mean and variance alone. In units in which that mean is 0
and the variance 1, with (γ, δ) = (1/σ, a/σ) (Olsen 1978) and bounds u_c of weight w_c,

    φ(γ, δ) = -ln L = ½ (n γ² + C δ²) - n ln γ - Σ ln P(ξ > √w_c (γ u_c - δ))

up to a constant. φ is convex; Newton's method finds its minimum for a whole array of such samples at once. Shapes:
`bounds` (..., c), `root` = √w (c,); results (...).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr

Floats = NDArray[np.float64]

NEWTON_STEPS = 100
# φ is then within this of its minimum.
CLOSE = 1e-11
HALVINGS = 60


def hazard(z: Floats) -> Floats:
    """φ(z)/P(ξ > z) of a standard normal ξ, which is E[ξ | ξ > z]."""
    return np.sqrt(2 / np.pi) / erfcx(z / np.sqrt(2))


def _slope(z: Floats, rate: Floats) -> Floats:
    """The derivative h(z)(h(z) - z) of the hazard h, which tends to 1; far out the difference is lost to rounding."""
    return np.where(z > 1e4, 1.0, rate * (rate - z))


def minimum(count: int, total: float, bounds: Floats, root: Floats) -> tuple[Floats, Floats, Floats]:
    """φ at its minimum, and γ and δ there."""

    def value(point: Floats) -> Floats:
        gamma, delta = point
        return _observed(count, total, gamma, delta) - log_ndtr(
            root * (delta[..., None] - gamma[..., None] * bounds)
        ).sum(-1)

    def newton(point: Floats) -> tuple[Floats, Floats]:
        gamma, delta = point
        z = root * (gamma[..., None] * bounds - delta[..., None])
        rate = hazard(z)
        curve = _slope(z, rate)
        g_gamma = count * (gamma - 1 / gamma) + (rate * root * bounds).sum(-1)
        g_delta = total * delta - (rate * root).sum(-1)
        h_gg = count * (1 + 1 / gamma**2) + (curve * (root * bounds) ** 2).sum(-1)
        h_gd = -(curve * root**2 * bounds).sum(-1)
        h_dd = total + (curve * root**2).sum(-1)
        det = h_gg * h_dd - h_gd**2
        step = np.stack([h_gd * g_delta - h_dd * g_gamma, h_gd * g_gamma - h_gg * g_delta]) / det
        return step, -(step[0] * g_gamma + step[1] * g_delta)

    start = np.stack([np.ones(bounds.shape[:-1]), np.zeros(bounds.shape[:-1])])
    phi, (gamma, delta) = _descend(value, newton, start)
    return phi, gamma, delta


def minimum_at(count: int, total: float, bounds: Floats, root: Floats, mean: Floats) -> Floats:
    """φ at its minimum over γ alone, δ = γ · mean being held to a given mean (...)."""
    rest = bounds - mean[..., None]

    def value(gamma: Floats) -> Floats:
        return _observed(count, total, gamma[0], gamma[0] * mean) - log_ndtr(-root * gamma[0][..., None] * rest).sum(-1)

    def newton(gamma: Floats) -> tuple[Floats, Floats]:
        z = root * gamma[0][..., None] * rest
        rate = hazard(z)
        square = count + total * mean**2
        gradient = square * gamma[0] - count / gamma[0] + (rate * root * rest).sum(-1)
        step = -gradient / (square + count / gamma[0] ** 2 + (_slope(z, rate) * (root * rest) ** 2).sum(-1))
        return step[None], -step * gradient

    start = np.sqrt(count / (count + total * mean**2))
    return _descend(value, newton, start[None])[0]


def _observed(count: int, total: float, gamma: Floats, delta: Floats) -> Floats:
    """The observed values' share of φ, inf outside γ > 0."""
    inside = gamma > 0
    log_gamma = np.log(np.where(inside, gamma, 1.0))
    return np.where(inside, 0.5 * (count * gamma**2 + total * delta**2) - count * log_gamma, np.inf)


def _descend(
    value: Callable[[Floats], Floats], newton: Callable[[Floats], tuple[Floats, Floats]], point: Floats
) -> tuple[Floats, Floats]:
    """Newton's method for many convex functions at once, each step halved until it descends; `point` (parameters, ...).

    `newton` gives the step and its decrement squared, twice what the step can be expected to gain.
    """
    phi = value(point)
    for _ in range(NEWTON_STEPS):
        step, decrement = newton(point)
        open_ = decrement > CLOSE
        if not open_.any():
            break
        length = np.where(open_, 1.0, 0.0)
        rounding = 1e-12 * (1 + np.abs(phi))
        for _ in range(HALVINGS):
            trial = point + length * step
            reached = value(trial)
            short = ~(reached <= phi - 1e-4 * length * decrement + rounding)
            if not short.any():
                break
            length = np.where(short, length / 2, length)
        point, phi = trial, reached
    return phi, point
