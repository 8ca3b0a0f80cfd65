"""The profile likelihood against a dense grid and a generic optimiser, on data made to be awkward."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import f as f_distribution
from scipy.stats import norm

from noisescale.pareto.censoring import hazard
from noisescale.pareto.fit import fit_pareto
from noisescale.pareto.likelihood import maximum, profile
from noisescale.pareto.points import filled, gather


def awkward(rng):
    """Batch sizes, ln S and reached: noise from 1% to a factor of 7, bounds far below, near and far above the curve."""
    n = rng.integers(4, 13)
    batch = 2.0 ** np.arange(n)
    b_crit = np.exp(rng.uniform(0, np.log(batch[-1])))
    log_steps = np.log(100 * (1 + b_crit / batch)) + rng.choice([0.01, 0.1, 0.5, 2]) * rng.standard_normal(n)
    reached = np.ones(n, dtype=bool)
    missed = rng.integers(0, n - 3)
    reached[:missed] = False
    if rng.random() < 0.5:
        reached = rng.permutation(reached)
    log_steps[~reached] -= rng.choice([0, 0.2, 2, -0.5, -3], size=missed)
    return batch, log_steps, reached


def test_the_maximum_and_the_interval_are_those_of_a_dense_grid():
    rng = np.random.default_rng(0)
    for _ in range(60):
        batch, log_steps, reached = awkward(rng)
        points = gather(batch, log_steps, reached, np.ones(batch.size))
        grid = np.linspace(points.log_b.min() - 12, points.log_b.max() + 12, 4001)
        deviance = profile(points, grid)[0]
        least = maximum(points)[1]
        assert -1e-6 < deviance.min() - least < 1
        n = reached.sum()
        inside = grid[deviance <= least + n * np.log1p(f_distribution.ppf(0.95, 1, n - 2) / (n - 2))]
        b_crit = fit_pareto(batch, np.exp(log_steps), reached=reached).b_crit
        spacing = grid[1] - grid[0]
        if inside[0] == grid[0]:
            assert b_crit.low == 0
        else:
            assert inside[0] - spacing <= np.log(b_crit.low) <= inside[0] + 1e-9
        if inside[-1] == grid[-1]:
            assert b_crit.high == np.inf
        else:
            assert inside[-1] - 1e-9 <= np.log(b_crit.high) <= inside[-1] + spacing


def test_the_profile_is_the_optimum_over_mean_and_scatter():
    rng = np.random.default_rng(1)
    for _ in range(15):
        batch, log_steps, reached = awkward(rng)
        points = gather(batch, log_steps, reached, rng.uniform(0.3, 3, batch.size))
        theta = rng.uniform(-3, 10)
        deviance, a, sigma = (x[0] for x in profile(points, np.array([theta])))
        offset = points.y - np.logaddexp(0, theta - points.log_b)

        def minus_two_log_likelihood(parameters, offset=offset, points=points):
            spread = np.exp(parameters[1]) / np.sqrt(points.weights)
            z = (offset - parameters[0]) / spread
            return -2 * np.where(points.censored, norm.logsf(z), norm.logpdf(z) - np.log(spread)).sum()

        options = {"xatol": 1e-9, "fatol": 1e-11, "maxiter": 4000}
        found = minimize(minus_two_log_likelihood, [a + 0.1, np.log(sigma)], method="Nelder-Mead", options=options)
        assert deviance == pytest.approx(found.fun, abs=1e-6)


def test_bounds_far_from_the_curve_do_not_throw_newtons_method():
    """At θ near 3.25 an undamped step from the start leaves for good; -2 ln L came out 126 too high."""
    log_steps = np.array([8.419, 7.747, 6.627, 6.081, 5.584, 5.208, 4.969, 4.781, 4.698, 4.651])
    points = gather(2.0 ** np.arange(10), log_steps, np.arange(10) > 1, np.ones(10))
    deviance = profile(points, np.linspace(3.1, 3.4, 61))[0]
    assert np.abs(np.diff(deviance, 2)).max() < 0.01


def test_whatever_comes_in_the_fit_keeps_its_promises():
    """No warning (they are errors here), no NaN, the value within its interval, the same in any order and any unit."""
    rng = np.random.default_rng(2)
    for _ in range(150):
        n, m = rng.integers(3, 13), rng.integers(1, 4)
        batch = 10.0 ** rng.uniform(-3, 6) * rng.choice([1.001, 1.1, 2, 10, 1000]) ** np.arange(n)
        b_crit = np.exp(rng.uniform(np.log(batch[0]) - 3, np.log(batch[-1]) + 3))
        shapes = [1 + b_crit / batch, np.ones(n), 1 / batch, batch, np.exp(rng.uniform(-20, 20, n))]
        log_steps = np.log(shapes[rng.integers(5)])[:, None] + rng.choice([0, 1e-9, 0.1, 3]) * rng.standard_normal(
            (n, m)
        )
        reached = rng.random((n, m)) < rng.choice([0.3, 0.8, 1])
        runs = np.repeat(batch, m), np.exp(log_steps.ravel()), reached.ravel()
        fit = fit_pareto(*runs[:2], reached=runs[2], confidence=rng.choice([0.5, 0.95, 0.999]))
        if fit.n < 3:
            continue
        for estimate in (fit.b_crit, fit.s_min, fit.e_min):
            assert estimate.low * (1 - 1e-9) <= estimate.value <= estimate.high * (1 + 1e-9)
        if fit.determined:
            assert fit.b_crit.low > 0
            assert fit.b_crit.high < np.inf
        if 0 < fit.b_crit.value < np.inf:
            assert fit.e_min.value == pytest.approx(fit.b_crit.value * fit.s_min.value, rel=1e-6)
        order = rng.permutation(batch.size * m)
        again = fit_pareto(*(1024 * x[order] for x in runs[:2]), reached=runs[2][order], confidence=fit.confidence)
        assert again.remark.split(" (")[0] == fit.remark.split(" (")[0]
        assert again.b_crit.low == pytest.approx(1024 * fit.b_crit.low, rel=1e-3)
        assert again.b_crit.high == pytest.approx(1024 * fit.b_crit.high, rel=1e-3)


def test_the_hazard_keeps_its_digits_in_both_tails():
    z = np.array([-50.0, -3.0, 0.0, 2.0, 30.0])
    np.testing.assert_allclose(hazard(z), norm.pdf(z) / norm.sf(z), rtol=1e-12)
    np.testing.assert_allclose(hazard(np.array([1e3, 1e6, 1e9])), [1e3 + 1e-3 - 2e-9, 1e6 + 1e-6, 1e9], rtol=1e-14)


def test_missing_runs_are_filled_in_by_the_maximum_likelihood_of_their_cell():
    log_steps = np.array([5.0, 5.2, 4.9, 6.0, 6.1, 6.05, 7.0, 7.0])
    reached = np.array([True, True, True, True, False, True, False, False])
    cell = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    values, hopeless = filled(log_steps, reached, np.ones(8), cell)
    assert hopeless.tolist() == [False, False, True]
    np.testing.assert_array_equal(values[reached], log_steps[reached])
    np.testing.assert_array_equal(values[cell == 2], log_steps[cell == 2])
    s = np.std([5.0, 5.2, 4.9], ddof=1)
    found = minimize(
        lambda mean: -norm.logpdf([6.0, 6.05], mean, s).sum() - norm.logsf(6.1, mean, s),
        [6.0],
        method="Nelder-Mead",
        tol=1e-10,
    )
    assert values[cell == 1].mean() == pytest.approx(found.x[0], abs=1e-6)
    assert values[4] > 6.1


def test_without_a_complete_cell_the_spread_is_that_of_the_runs_that_reached_the_goal():
    log_steps = np.array([5.0, 5.2, 5.3, 6.0, 6.4, 6.1])
    reached = np.array([True, True, False, True, True, False])
    values, hopeless = filled(log_steps, reached, np.ones(6), np.array([0, 0, 0, 1, 1, 1]))
    s = np.sqrt((2 * 0.1**2 + 2 * 0.2**2) / 2)
    mean = values[:3].mean()
    assert values[2] == pytest.approx(mean + s * float(hazard(np.array((5.3 - mean) / s))), abs=1e-6)
    assert not hopeless.any()


def test_without_two_runs_that_reached_it_a_missing_run_counts_as_its_budget():
    values, hopeless = filled(np.array([5.0, 5.3]), np.array([True, False]), np.ones(2), np.array([0, 0]))
    assert values.tolist() == [5.0, 5.3]
    assert hopeless.tolist() == [False]
