r"""Exact answers for SGD with a constant learning rate on a noisy quadratic, L(θ) = ½ Σ_i h_i θ_i², ξ ~ N(0, diag(σ²)).

With batch size B and learning rate ε the second moment m_i = E[θ_i²] obeys

    m_i(t+1) = ρ_i m_i(t) + ε² σ_i² / B,    ρ_i = (1 − ε h_i)²,

so m_i(t) = v_i + ρ_i^t (m_i(0) − v_i) with the stationary v_i = ε σ_i² / (B h_i (2 − ε h_i)). All else follows from m.
The closed form holds between whole steps too, which is how a goal's crossing is interpolated.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar

Floats = NDArray[np.float64]

STEP_GRID = np.geomspace(0.05, 1e6, 120)
LR_GRID = np.concatenate(
    [np.geomspace(1e-4, 0.5, 50), np.linspace(0.52, 0.995, 20)]
)  # shares of the largest stable one


class BestRun(NamedTuple):
    """The constant learning rate that reaches a goal in the fewest expected steps."""

    lr: float
    steps: float


class RunAverages(NamedTuple):
    """Means over a run, weighted by full-batch steps ds = dS/(1 + B_noise/B)."""

    b_simple: float
    b_noise: float


@dataclass(frozen=True, eq=False)
class NoisyQuadratic:
    """`curvature` h, `cov` σ² (variances of per-example gradients) and `start` θ(0), each of shape (d,)."""

    curvature: Floats
    cov: Floats
    start: Floats

    @property
    def stable_lr(self) -> float:
        """2 / max h: at and above it SGD does not settle."""
        return 2 / float(self.curvature.max())

    def second_moments(self, batch_size: float, lr: float, steps: ArrayLike) -> Floats:
        """E[θ_i²] after `steps` of shape (s,): (s, d). ValueError where `lr` is not stable; `batch_size` may be inf."""
        if not 0 < lr < self.stable_lr:
            raise ValueError(f"lr={lr} is outside (0, {self.stable_lr}), where SGD on this quadratic is stable")
        contraction = 1 - lr * self.curvature
        stationary = lr * self.cov / (batch_size * self.curvature * (1 + contraction))
        decay = np.abs(contraction) ** (2 * np.asarray(steps, dtype=np.float64)[..., None])
        return stationary + decay * (self.start**2 - stationary)

    def loss(self, moments: ArrayLike) -> Floats:
        """E[L] = ½ Σ h m, for second moments (or squared weights) of shape (…, d)."""
        return 0.5 * (np.asarray(moments) @ self.curvature)

    def b_simple(self, moments: ArrayLike) -> Floats:
        """tr Σ / E|G|² with E|G|² = Σ h² m (eq. 2.9), in examples; B_simple at θ where `moments` are θ²."""
        return self.cov.sum() / (np.asarray(moments) @ self.curvature**2)

    def b_noise(self, moments: ArrayLike) -> Floats:
        """tr(HΣ) / E[GᵀHG] with E[GᵀHG] = Σ h³ m (eq. 2.8), in examples."""
        return (self.curvature @ self.cov) / (np.asarray(moments) @ self.curvature**3)

    def expected_steps(self, batch_size: float, lr: float, goal: float) -> float:
        """Steps until E[L] first falls to `goal`; inf where it does not within a million steps or `lr` is unstable."""
        start = float(self.loss(self.start**2))
        if not 0 < goal < start:
            raise ValueError(f"goal={goal} is not between 0 and the loss at the start, {start}")
        if lr >= self.stable_lr:
            return np.inf
        low, high, grid = 0.0, 0.0, STEP_GRID
        for _ in range(4):
            below = self.loss(self.second_moments(batch_size, lr, grid)) <= goal
            if not below.any():
                return np.inf
            first = int(below.argmax())
            low, high = (float(grid[first - 1]) if first else low), float(grid[first])
            grid = np.linspace(low, high, 33)[1:]
        before, after = self.loss(self.second_moments(batch_size, lr, np.array([low, high])))
        return float(low + (high - low) * (before - goal) / (before - after))

    def best_run(self, batch_size: float, goal: float) -> BestRun:
        """The best constant learning rate, by a grid and Brent's method around its minimum.

        ValueError where no learning rate of the grid (from 1e-4 of the largest stable one) reaches the goal.
        """
        grid = self.stable_lr * LR_GRID
        steps = np.array([self.expected_steps(batch_size, lr, goal) for lr in grid])
        best = int(steps.argmin())
        if not np.isfinite(steps[best]):
            raise ValueError(f"no learning rate from {grid[0]:.2g} up reaches goal={goal} at batch_size={batch_size}")
        found = minimize_scalar(
            lambda lr: self.expected_steps(batch_size, lr, goal),
            bounds=(grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]),
            method="bounded",
            options={"xatol": 1e-7},
        )
        return min(
            BestRun(float(found.x), float(found.fun)),
            BestRun(float(grid[best]), float(steps[best])),
            key=lambda r: r.steps,
        )

    def exact_steps(self, batch_size: float, goal: float) -> float:
        """S(B): the fewest expected steps to `goal` under any constant learning rate."""
        return self.best_run(batch_size, goal).steps

    def averages(self, batch_size: float, goal: float, points: int = 513) -> RunAverages:
        """Expected B_simple and B_noise averaged over the best run to `goal`.

        The local theory (every step at its own best learning rate) has dS = (1 + B_noise/B) ds, so that
        S = S_min + ∫B_noise ds / B and the average of B_noise is what it predicts for B_crit.
        """
        lr, steps = self.best_run(batch_size, goal)
        moments = self.second_moments(batch_size, lr, np.linspace(0, steps, points))
        simple, noise = self.b_simple(moments), self.b_noise(moments)
        weight = 1 / (1 + noise / batch_size)
        weight[[0, -1]] /= 2  # the trapezoidal rule
        return RunAverages(float(np.average(simple, weights=weight)), float(np.average(noise, weights=weight)))
