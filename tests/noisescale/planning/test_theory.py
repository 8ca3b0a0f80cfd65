"""The theory's predictions against a quadratic worked out in full, and against the identities they satisfy."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from noisescale import theory


class Quadratic:
    """L(θ) = ½ θᵀHθ with per-example gradients Hθ + ξ, ξ ~ N(0, Σ)."""

    def __init__(self, seed=0, size=5):
        rng = np.random.default_rng(seed)
        root = rng.standard_normal((size, size))
        self.hessian = root @ root.T + np.eye(size)
        root = rng.standard_normal((size, size))
        self.covariance = 9 * root @ root.T
        self.theta = rng.standard_normal(size)
        self.gradient = self.hessian @ self.theta
        self.grad_sq_norm = self.gradient @ self.gradient
        self.grad_hess_grad = self.gradient @ self.hessian @ self.gradient
        self.trace_hess_cov = np.trace(self.hessian @ self.covariance)
        self.b_noise = self.trace_hess_cov / self.grad_hess_grad

    def loss(self, theta):
        return 0.5 * np.einsum("...i,ij,...j", theta, self.hessian, theta)

    def change(self, lr, batch):
        return theory.loss_change(lr, batch, self.grad_sq_norm, self.grad_hess_grad, self.trace_hess_cov)


def test_loss_change_is_the_mean_over_noisy_steps():
    q = Quadratic()
    rng = np.random.default_rng(1)
    batch, lr = 16, 0.02
    noise = rng.multivariate_normal(np.zeros(5), q.covariance / batch, size=200_000)
    changes = q.loss(q.theta - lr * (q.gradient + noise)) - q.loss(q.theta)
    error = changes.std() / np.sqrt(changes.size)
    assert abs(changes.mean() - q.change(lr, batch)) < 4 * error


@pytest.mark.parametrize("batch", [1, 30, 1000, 1e9])
def test_best_step_and_gain_are_the_minimum_of_the_loss_change(batch):
    q = Quadratic()
    eps_max = theory.largest_step(q.grad_sq_norm, q.grad_hess_grad)
    found = minimize_scalar(
        lambda lr: float(q.change(lr, batch)),
        bounds=(0, 2 * float(eps_max)),
        method="bounded",
        options={"xatol": 1e-12},
    )
    assert theory.best_step(batch, q.b_noise, eps_max) == pytest.approx(found.x, rel=1e-6)
    gain_max = theory.largest_gain(q.grad_sq_norm, q.grad_hess_grad)
    assert theory.best_gain(batch, q.b_noise, gain_max) == pytest.approx(-found.fun, rel=1e-9)


def test_best_step_at_the_noise_scale_is_half_the_largest():
    np.testing.assert_allclose(theory.best_step([50, 100, 1e12], 100), [1 / 3, 1 / 2, 1])


def test_steps_and_examples_lie_on_the_front():
    batch = np.array([1.0, 10, 100, 1000])
    s, e = theory.steps(batch, 200, 50), theory.examples(batch, 200, 50)
    np.testing.assert_allclose(e, batch * s)
    np.testing.assert_allclose((s / 200 - 1) * (e / (200 * 50) - 1), 1)
    assert theory.steps(50, 200, 50) == 400
    assert theory.examples(50, 200, 50) == 2 * 200 * 50


def test_batches_for_time_and_cost_invert_the_front():
    ratio = np.array([1.01, 1.5, 2, 10])
    np.testing.assert_allclose(theory.steps(theory.batch_for_time(ratio, 50), 1, 50), ratio)
    np.testing.assert_allclose(theory.examples(theory.batch_for_cost(ratio, 50), 1, 50) / 50, ratio)
    np.testing.assert_allclose(theory.adaptive_slowdown(ratio), theory.steps(theory.batch_for_cost(ratio, 50), 1, 50))
    for refuse in (theory.batch_for_time, theory.batch_for_cost, theory.adaptive_slowdown):
        with pytest.raises(ValueError, match="must be greater than 1, got 1"):
            refuse(1, 50)


def test_full_batch_steps_average_the_noise_scale_to_b_crit():
    """A run of fixed B through a noise scale that changes: E_min/S_min is the mean of B_noise weighted by ds."""
    noise = np.geomspace(10, 1000, 200)
    ds = np.full(200, 3.0)
    s_min, e_min = ds.sum(), (noise * ds).sum()
    for batch in (4, 256):
        taken = ds * (1 + noise / batch)
        weights = theory.full_batch_steps(taken, batch, noise)
        np.testing.assert_allclose(weights, ds)
        assert (weights * noise).sum() / weights.sum() == pytest.approx(e_min / s_min)


def test_gamma():
    assert theory.gamma(np.full(7, 30.0), 2.0) == pytest.approx(1)
    assert theory.gamma([1.0, 9.0], 1.0) == pytest.approx(16 / 20)
    assert theory.gamma([1.0, 9.0], [3.0, 1.0]) == pytest.approx(36 / 48)
    assert theory.gamma([1.0, 9.0, 5.0], [3.0, 1.0, 0.0]) == pytest.approx(36 / 48)
    for bad in ([], [0.0, 1.0], [-1.0, 2.0]):
        with pytest.raises(ValueError, match="b_noise > 0"):
            theory.gamma(bad, 1.0)


@pytest.mark.parametrize("r", [0.1, 1.0, 50.0])
def test_the_adaptive_schedule_lies_on_its_own_front_and_no_fixed_batch_is_cheaper(r):
    noise = np.geomspace(10, 3000, 100)
    ds = np.linspace(1, 2, 100)
    s, e = theory.adaptive_totals(noise, ds, r)
    s_min, e_min = ds.sum(), (noise * ds).sum()
    assert s / s_min == pytest.approx(theory.adaptive_slowdown(e / e_min, theory.gamma(noise, ds)))
    fixed = np.geomspace(1, 1e5, 500)
    assert (
        e + r * s < (theory.examples(fixed, s_min, e_min / s_min) + r * theory.steps(fixed, s_min, e_min / s_min)).min()
    )
    # … and neither is any other schedule nearby.
    rng = np.random.default_rng(0)
    other = theory.adaptive_batch(noise, r) * np.exp(0.1 * rng.standard_normal((20, 100)))
    assert e + r * s < (((noise + other) + r * (1 + noise / other)) * ds).sum(-1).min()


def test_search_centre():
    np.testing.assert_allclose(theory.search_centre([96, 96e9], 0.27, 96), [0.135, 0.27])
    assert theory.search_centre(96, 0.27, 96, alpha=0.5) == pytest.approx(0.27 / np.sqrt(2))
    # ε = .27 B/(96 + B), the paper's rule for SVHN with SGD
    batch = np.array([1, 16, 512.0])
    np.testing.assert_allclose(theory.search_centre(batch, 0.27, 96), 0.27 * batch / (96 + batch))


def test_temperature_is_unchanged_where_step_and_batch_grow_together():
    np.testing.assert_allclose(theory.temperature([0.1, 0.4], [32, 128]), 0.1 / 32)
    assert theory.temperature(0.1, 32, momentum=0.9) == pytest.approx(10 * theory.temperature(0.1, 32))


def test_arguments_broadcast():
    assert theory.steps(np.ones((3, 1)), np.ones(4), 2.0).shape == (3, 4)
    assert theory.loss_change(0.1, np.ones((2, 1)), 1.0, np.ones(3), 1.0).shape == (2, 3)
