r"""What the theory of arXiv 1812.06162 predicts from the noise scale: the best step, its gain, steps, examples, time
and cost.

Every function takes scalars or arrays that broadcast against each other and returns float64. `batch_size`, `b_noise`,
`b_crit` and examples are in the task's unit. In practice B_simple stands in for B_noise.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def _floats(*values: ArrayLike) -> tuple[Floats, ...]:
    return tuple(np.asarray(value, dtype=float) for value in values)


def loss_change(
    lr: ArrayLike, batch_size: ArrayLike, grad_sq_norm: ArrayLike, grad_hess_grad: ArrayLike, trace_hess_cov: ArrayLike
) -> Floats:
    r"""Expected change of the loss by one SGD step, to second order (eq. 2.5).

    E[L(θ - ε Ĝ)] - L(θ) = -ε |G|² + ½ ε² (GᵀHG + tr(HΣ)/B), negative where the step helps, in units of the loss.

    Args:
        lr: ε.
        batch_size: B, in examples.
        grad_sq_norm: |G|².
        grad_hess_grad: GᵀHG, as `hessian_noise` measures it.
        trace_hess_cov: tr(HΣ), in the same times one example.
    """
    eps, batch, g2, ghg, noise = _floats(lr, batch_size, grad_sq_norm, grad_hess_grad, trace_hess_cov)
    return -eps * g2 + 0.5 * eps**2 * (ghg + noise / batch)


def largest_step(grad_sq_norm: ArrayLike, grad_hess_grad: ArrayLike) -> Floats:
    """ε_max = |G|²/GᵀHG, the learning rate that gains most when the gradient is exact (eq. 2.6 at B → ∞).

    Args:
        grad_sq_norm, grad_hess_grad: |G|² and GᵀHG.
    """
    g2, ghg = _floats(grad_sq_norm, grad_hess_grad)
    return g2 / ghg


def largest_gain(grad_sq_norm: ArrayLike, grad_hess_grad: ArrayLike) -> Floats:
    """ΔL_max = ½ |G|⁴/GᵀHG, what a step of ε_max along the exact gradient takes off the loss (eq. 2.7 at B → ∞).

    Args:
        grad_sq_norm, grad_hess_grad: |G|² and GᵀHG; the gain is in units of the loss.
    """
    g2, ghg = _floats(grad_sq_norm, grad_hess_grad)
    return 0.5 * g2**2 / ghg


def best_step(batch_size: ArrayLike, b_noise: ArrayLike, eps_max: ArrayLike = 1.0) -> Floats:
    """ε_opt(B) = ε_max/(1 + B_noise/B) (eq. 2.6); with the default, ε_opt/ε_max.

    Args:
        batch_size, b_noise: B and B_noise, in examples.
        eps_max: `largest_step`, a learning rate.
    """
    batch, noise, largest = _floats(batch_size, b_noise, eps_max)
    return largest / (1 + noise / batch)


def best_gain(batch_size: ArrayLike, b_noise: ArrayLike, gain_max: ArrayLike = 1.0) -> Floats:
    """ΔL_opt(B) = ΔL_max/(1 + B_noise/B), what a step of ε_opt(B) takes off the loss (eq. 2.7).

    Args:
        batch_size, b_noise: B and B_noise, in examples.
        gain_max: `largest_gain`, in units of the loss; with the default ΔL_opt/ΔL_max.
    """
    return best_step(batch_size, b_noise, gain_max)


def steps(batch_size: ArrayLike, s_min: ArrayLike, b_crit: ArrayLike) -> Floats:
    """S(B) = S_min (1 + B_crit/B), optimizer steps to the goal (eq. 2.11).

    Args:
        batch_size, b_crit: in examples.
        s_min: optimizer steps.
    """
    batch, least, critical = _floats(batch_size, s_min, b_crit)
    return least * (1 + critical / batch)


def examples(batch_size: ArrayLike, s_min: ArrayLike, b_crit: ArrayLike) -> Floats:
    """E(B) = B S(B) = S_min (B + B_crit), examples processed to the goal; E_min = S_min B_crit (eqs 2.11, 2.12).

    Args:
        batch_size, s_min, b_crit: as in `steps`.
    """
    batch, least, critical = _floats(batch_size, s_min, b_crit)
    return least * (batch + critical)


def batch_for_time(slowdown: ArrayLike, b_crit: ArrayLike) -> Floats:
    """The batch size that takes S/S_min times the fewest steps: B_crit/(S/S_min - 1) (eq. 2.11).

    Args:
        slowdown: S/S_min, greater than 1.
        b_crit: in examples.

    Raises:
        ValueError: a slowdown of 1 or less.
    """
    ratio, critical = _floats(slowdown, b_crit)
    if (ratio <= 1).any():
        raise ValueError(f"slowdown must be greater than 1, got {ratio.min():g}: no batch size reaches S_min")
    return critical / (ratio - 1)


def batch_for_cost(excess: ArrayLike, b_crit: ArrayLike) -> Floats:
    """The batch size that takes E/E_min times the fewest examples: B_crit (E/E_min - 1) (eq. 2.11).

    Args:
        excess: E/E_min, greater than 1.
        b_crit: in examples.

    Raises:
        ValueError: an excess of 1 or less.
    """
    ratio, critical = _floats(excess, b_crit)
    if (ratio <= 1).any():
        raise ValueError(f"excess must be greater than 1, got {ratio.min():g}: no batch size reaches E_min")
    return critical * (ratio - 1)


def full_batch_steps(step_counts: ArrayLike, batch_size: ArrayLike, b_noise: ArrayLike) -> Floats:
    """ds = dS/(1 + B_noise/B): how many exact-gradient steps dS steps at batch size B are worth (eq. 2.10, App. D).

    The weights with which B_noise along a run averages to the run's B_crit.

    Args:
        step_counts: dS, optimizer steps taken at each batch size.
        batch_size, b_noise: B and B_noise there, in examples.
    """
    counts, batch, noise = _floats(step_counts, batch_size, b_noise)
    return counts / (1 + noise / batch)


def gamma(b_noise: ArrayLike, ds: ArrayLike) -> float:
    r"""γ = (∫√𝓑 ds)²/(∫ds ∫𝓑 ds), between 0 and 1: what is left of S/S_min - 1 at equal examples when the batch
    follows the noise (App. D).

    1 where 𝓑 is constant.

    Args:
        b_noise: (n,) 𝓑 along the run, in examples.
        ds: (n,) or scalar, the full-batch steps spent at each (`full_batch_steps`).

    Raises:
        ValueError: a noise scale that isn't positive, a negative `ds`, or nothing to average over.
    """
    noise, weights = np.broadcast_arrays(*_floats(b_noise, ds))
    if noise.size == 0 or (noise <= 0).any() or (weights < 0).any() or weights.sum() <= 0:
        raise ValueError("gamma needs b_noise > 0 and ds ≥ 0 with a positive sum")
    return float((np.sqrt(noise) * weights).sum() ** 2 / (weights.sum() * (noise * weights).sum()))


def adaptive_batch(b_noise: ArrayLike, r: ArrayLike) -> Floats:
    """B = √(r 𝓑), the batch size of the adaptive schedule that trades r examples for one step (App. D).

    Args:
        b_noise: 𝓑, in examples.
        r: examples worth one step.
    """
    noise, price = _floats(b_noise, r)
    return np.sqrt(price * noise)


def adaptive_totals(b_noise: ArrayLike, ds: ArrayLike, r: float) -> tuple[float, float]:
    r"""S = ∫(1 + 𝓑/B) ds and E = ∫(𝓑 + B) ds under B = √(r 𝓑): optimizer steps and examples (App. D).

    Args:
        b_noise, ds: as in `gamma`.
        r: examples worth one step.
    """
    noise, weights = np.broadcast_arrays(*_floats(b_noise, ds))
    batch = adaptive_batch(noise, r)
    return float(((1 + noise / batch) * weights).sum()), float(((noise + batch) * weights).sum())


def adaptive_slowdown(excess: ArrayLike, gamma: ArrayLike = 1.0) -> Floats:
    """S/S_min = 1 + γ/(E/E_min - 1) at a given E/E_min; γ = 1 is the fixed batch size (eq. 2.11, App. D).

    Args:
        excess: E/E_min, greater than 1.
        gamma: γ, as `gamma` gives it.

    Raises:
        ValueError: an excess of 1 or less.
    """
    ratio, left = _floats(excess, gamma)
    if (ratio <= 1).any():
        raise ValueError(f"excess must be greater than 1, got {ratio.min():g}: no schedule reaches E_min")
    return 1 + left / (ratio - 1)


def search_centre(batch_size: ArrayLike, eps_star: float, b_star: float, alpha: float = 1.0) -> Floats:
    """ε(B) = ε*/(1 + B*/B)^α, where to look for the best learning rate (App. A.2).

    Args:
        batch_size: B, in examples.
        eps_star: ε*, a learning rate: the best where B is large.
        b_star: B*, in examples.
        alpha: 1 for SGD and momentum, between 0.5 and 1 for Adam and RMSProp.
    """
    batch = np.asarray(batch_size, dtype=float)
    return eps_star / (1 + b_star / batch) ** alpha


def temperature(lr: ArrayLike, batch_size: ArrayLike, momentum: float = 0.0) -> Floats:
    """T ∝ ε/((1 - m) B), the noise of SGD's steps where B is well below B_noise (App. C); only ratios mean anything.

    Args:
        lr: ε.
        batch_size: B, in examples.
        momentum: m, below 1.
    """
    eps, batch = _floats(lr, batch_size)
    return eps / ((1 - momentum) * batch)
