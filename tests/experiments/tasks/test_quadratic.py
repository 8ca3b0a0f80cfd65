from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from pydantic import ValidationError

from experiments.tasks.quadratic import QuadraticConfig, QuadraticTask
from experiments.tasks.quadratic_theory import NoisyQuadratic

CPU = torch.device("cpu")


def config(**fields) -> QuadraticConfig:
    return QuadraticConfig(name="quadratic", **fields)


def simulate(exact: NoisyQuadratic, batch_size: int, lr: float, steps: int, runs: int) -> np.ndarray:
    """θ of shape (steps + 1, runs, d), by the update rule itself."""
    rng = np.random.default_rng(0)
    theta = np.tile(exact.start, (runs, 1))
    path = [theta]
    for _ in range(steps):
        noise = rng.standard_normal(theta.shape) * np.sqrt(exact.cov / batch_size)
        theta = theta - lr * (exact.curvature * theta + noise)
        path.append(theta)
    return np.array(path)


def test_yaml_lists_every_field_with_its_default():
    fields = yaml.safe_load(Path("configs/task/quadratic.yaml").read_text())
    assert QuadraticConfig(**fields) == config()
    assert list(fields) == ["name", "dim", "condition", "noise_power", "trace_cov", "initial_loss"]


@pytest.mark.parametrize("bad", [{"dim": 1}, {"condition": 0.5}, {"trace_cov": 0}, {"curvature": 1}])
def test_config_refuses(bad):
    with pytest.raises(ValidationError):
        config(**bad)


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5])
def test_spectrum_covariance_and_start(power):
    exact = config(dim=10, condition=50, noise_power=power, trace_cov=3, initial_loss=2).theory()
    assert exact.curvature[[0, -1]] == pytest.approx([1, 1 / 50])
    assert exact.cov.sum() == pytest.approx(3)
    assert exact.cov / exact.cov[0] == pytest.approx(exact.curvature**power)
    assert exact.curvature * exact.start**2 / 2 == pytest.approx(np.full(10, 0.2))


def test_per_example_gradients_are_h_theta_plus_xi_with_covariance_sigma():
    task = QuadraticTask(config(dim=6), 0, CPU)
    exact = config(dim=6).theory()
    n = 40_000
    (xi,) = task.batch(n, torch.Generator().manual_seed(0))
    for example in xi[:5]:
        (gradient,) = torch.autograd.grad(task.loss((example[None],)), task.model.weights)
        assert gradient.numpy() == pytest.approx(exact.curvature * exact.start + example.numpy(), rel=1e-5)
    covariance = np.cov(xi.double().numpy().T)
    scale = np.sqrt(np.outer(exact.cov, exact.cov))
    assert np.abs(covariance - np.diag(exact.cov)).max() < 5 * np.sqrt(2 / n) * scale.max()
    assert np.abs(xi.mean(0).numpy() / np.sqrt(exact.cov)).max() < 5 / np.sqrt(n)


def test_the_mean_over_a_batch_is_the_mean_of_its_examples():
    task = QuadraticTask(config(), 0, CPU)
    (xi,) = task.batch(32, torch.Generator().manual_seed(0))
    single = torch.stack([task.loss((x[None],)) for x in xi])
    assert task.loss((xi,)).item() == pytest.approx(single.mean().item(), rel=1e-5)


def test_evaluation_is_the_exact_loss_and_global_state_is_untouched():
    state = torch.get_rng_state()
    task = QuadraticTask(config(initial_loss=2.5), 3, CPU)
    assert task.evaluate() == pytest.approx((2.5, 2.5), rel=1e-6)
    task.batch(4, torch.Generator().manual_seed(0))
    assert torch.get_rng_state().equal(state)


def test_second_moments_against_the_recursion_itself():
    exact = config(dim=20).theory()
    h, moments = exact.curvature, exact.start**2
    for step in range(50):
        assert exact.second_moments(8, 1.3, [step])[0] == pytest.approx(moments, rel=1e-10)
        moments = (1 - 1.3 * h) ** 2 * moments + 1.3**2 * exact.cov / 8


@pytest.mark.parametrize(("batch_size", "lr"), [(4, 0.2), (64, 1.2)])
def test_expected_loss_and_noise_scales_against_simulated_runs(batch_size, lr):
    exact = config().theory()
    path = simulate(exact, batch_size, lr, steps=40, runs=300)
    moments = exact.second_moments(batch_size, lr, np.arange(41))
    gradient = exact.curvature * path
    for simulated, expected in (
        (exact.loss(path**2), exact.loss(moments)),
        ((gradient**2).sum(2), exact.cov.sum() / exact.b_simple(moments)),
        ((exact.curvature * gradient**2).sum(2), (exact.curvature * exact.cov).sum() / exact.b_noise(moments)),
    ):
        error = simulated.std(1) / np.sqrt(300)
        assert (np.abs(simulated.mean(1) - expected) <= 4.5 * error + 1e-12).all()
        assert (error < 0.05 * expected).all()


def test_expected_steps_is_the_crossing_of_the_expected_loss():
    exact = config().theory()
    steps = exact.expected_steps(64, 1.0, 0.05)
    assert exact.loss(exact.second_moments(64, 1.0, [steps]))[0] == pytest.approx(0.05, rel=1e-6)
    whole = exact.loss(exact.second_moments(64, 1.0, np.arange(400)))
    assert (whole <= 0.05).argmax() == np.ceil(steps)
    assert exact.expected_steps(1, 1.5, 0.05) == np.inf  # the noise floor is above the goal
    assert exact.expected_steps(64, 2.0, 0.05) == np.inf  # unstable


def test_one_direction_has_the_textbook_answer():
    exact = NoisyQuadratic(np.ones(1), np.zeros(1), np.full(1, 2.0**0.5))
    assert exact.expected_steps(1, 0.1, 0.25) == pytest.approx(np.log(0.25) / (2 * np.log(0.9)), rel=1e-6)


def test_best_run_beats_every_other_learning_rate():
    exact = config().theory()
    for batch_size in (2, 32, 1024):
        best = exact.best_run(batch_size, 0.1)
        others = [exact.expected_steps(batch_size, lr, 0.1) for lr in np.geomspace(0.01, 1.999, 400)]
        assert best.steps <= min(others) * (1 + 1e-9)
        assert best.steps == pytest.approx(min(others), rel=0.01)
        assert exact.expected_steps(batch_size, best.lr, 0.1) == best.steps


def test_steps_follow_the_hyperbola_of_the_default_problem():
    exact = config().theory()
    sizes = 2.0 ** np.arange(1, 12)
    steps = np.array([exact.exact_steps(b, 0.1) for b in sizes])
    slope, s_min = np.polyfit(1 / sizes, steps, 1, w=1 / steps)
    assert np.abs(steps / (s_min + slope / sizes) - 1).max() < 0.05
    assert 50 < slope / s_min < 70
    averages = exact.averages(64, 0.1)
    assert 0.5 < averages.b_noise / (slope / s_min) < 1.5
    assert averages.b_simple > averages.b_noise


@pytest.mark.parametrize("goal", [0.0, 1.0, -1.0])
def test_impossible_goals_and_learning_rates_are_refused(goal):
    exact = config().theory()
    with pytest.raises(ValueError, match="not between 0 and the loss at the start"):
        exact.expected_steps(8, 0.1, goal)
    with pytest.raises(ValueError, match="stable"):
        exact.second_moments(8, 2.5, [1])
    with pytest.raises(ValueError, match=r"no learning rate .* goal=1e-09"):
        exact.exact_steps(1, 1e-9)
