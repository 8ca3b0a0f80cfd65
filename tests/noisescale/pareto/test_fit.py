"""The fit of S = S_min (1 + B_crit/B): exact curves, planted truth and its coverage, the paper's points, bad input."""

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import f as f_distribution
from scipy.stats import norm

from noisescale.pareto.bootstrap import bootstrap_seeds
from noisescale.pareto.fit import fit_pareto

PAPER = Path(__file__).parents[3] / "results" / "paper"
POWERS = 2.0 ** np.arange(10)


def curve(batch, s_min=100.0, b_crit=20.0):
    return s_min * (1 + b_crit / np.asarray(batch))


def paper_points():
    points = defaultdict(list)
    with (PAPER / "pareto_points_digitised.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            points[row["task"], row["goal"]].append((float(row["batch_size"]), float(row["steps"])))
    return points


def paper_refits():
    with (PAPER / "pareto_refits.csv").open(newline="") as file:
        return [
            (row["task"], row["goal"], float(row["B_crit"]), float(row["rel_se_Bcrit"])) for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize("reached", [POWERS > 0, POWERS > 2], ids=["all reached", "two censored"])
def test_points_on_the_curve_give_the_curve(reached):
    fit = fit_pareto(POWERS, curve(POWERS), reached=reached)
    assert fit.determined
    assert fit.b_crit.value == pytest.approx(20, rel=1e-5)
    assert fit.s_min.value == pytest.approx(100, rel=1e-5)
    assert fit.e_min.value == pytest.approx(2000, rel=1e-5)
    assert fit.n == reached.sum()
    assert fit.n_censored == (~reached).sum()
    assert (fit.smallest, fit.largest) == (POWERS[reached][0], 512)
    for estimate in (fit.b_crit, fit.s_min, fit.e_min):
        assert estimate.low == pytest.approx(estimate.value, rel=1e-4)
        assert estimate.high == pytest.approx(estimate.value, rel=1e-4)
    np.testing.assert_allclose(fit.steps(POWERS), curve(POWERS), rtol=1e-5)
    np.testing.assert_allclose(fit.examples(POWERS), POWERS * curve(POWERS), rtol=1e-5)
    assert fit.e_min.value == pytest.approx(fit.b_crit.value * fit.s_min.value)


def test_agrees_with_a_generic_optimiser_on_the_censored_likelihood():
    rng = np.random.default_rng(0)
    log_steps = np.log(curve(POWERS)) + 0.15 * rng.standard_normal(10)
    reached = log_steps < np.log(700)
    log_steps = np.minimum(log_steps, np.log(700))
    weights = rng.uniform(0.5, 2, 10)
    weights /= weights.mean()

    def negative(parameters):
        a, theta, log_sigma = parameters
        z = (log_steps - a - np.log1p(np.exp(theta) / POWERS)) * np.sqrt(weights) / np.exp(log_sigma)
        return -np.where(reached, norm.logpdf(z) - log_sigma, norm.logsf(z)).sum()

    found = minimize(
        negative,
        [np.log(100), np.log(20), np.log(0.1)],
        method="Nelder-Mead",
        options={"xatol": 1e-7, "fatol": 1e-10, "maxiter": 4000},
    )
    fit = fit_pareto(POWERS, np.exp(log_steps), reached=reached, weights=weights)
    assert fit.n_censored > 0
    assert np.log(fit.s_min.value) == pytest.approx(found.x[0], abs=1e-4)
    assert np.log(fit.b_crit.value) == pytest.approx(found.x[1], abs=1e-4)

    # The interval's ends have the likelihood that defines them, all other parameters at their best.
    n = fit.n
    drop = n / 2 * np.log1p(f_distribution.ppf(0.95, 1, n - 2) / (n - 2))
    for end in (fit.b_crit.low, fit.b_crit.high):
        held = minimize(
            lambda p, end=end: negative([p[0], np.log(end), p[1]]),
            found.x[[0, 2]],
            method="Nelder-Mead",
            options={"xatol": 1e-7, "fatol": 1e-10},
        )
        assert held.fun - found.fun == pytest.approx(drop, rel=1e-3)
    for end in (fit.s_min.low, fit.s_min.high):
        held = minimize(
            lambda p, end=end: negative([np.log(end), *p]),
            found.x[1:],
            method="Nelder-Mead",
            options={"xatol": 1e-7, "fatol": 1e-10},
        )
        assert held.fun - found.fun == pytest.approx(drop, rel=1e-2)
    for end in (fit.e_min.low, fit.e_min.high):
        held = minimize(
            lambda p, end=end: negative([np.log(end) - p[0], *p]),
            found.x[1:],
            method="Nelder-Mead",
            options={"xatol": 1e-7, "fatol": 1e-10},
        )
        assert held.fun - found.fun == pytest.approx(drop, rel=1e-2)


def test_a_run_that_missed_a_goal_that_others_reached():
    """Filled in above its budget by the spread of the complete batch sizes; the budget itself would be too small."""
    rng = np.random.default_rng(4)
    found, naive = [], []
    for _ in range(100):
        steps = curve(POWERS)[:, None] * np.exp(0.2 * rng.standard_normal((10, 3)))
        reached = steps < 1050
        batch, steps = np.repeat(POWERS, 3), np.minimum(steps, 1050).ravel()
        found.append(fit_pareto(batch, steps, reached=reached.ravel()).b_crit.value / 20)
        naive.append(fit_pareto(batch, steps).b_crit.value / 20)
    assert np.mean(np.log(naive)) < -0.1
    assert abs(np.mean(np.log(found))) < 0.04


def test_runs_at_one_batch_size_count_as_their_mean():
    rng = np.random.default_rng(1)
    steps = curve(POWERS)[:, None] * np.exp(0.1 * rng.standard_normal((10, 3)))
    every = fit_pareto(np.repeat(POWERS, 3), steps.ravel())
    means = fit_pareto(POWERS, np.exp(np.log(steps).mean(1)))
    assert every.b_crit.value == pytest.approx(means.b_crit.value)
    assert every.b_crit.high == pytest.approx(means.b_crit.high)
    assert every.n == 10


def test_rescaling_batch_sizes_steps_or_weights_changes_nothing_else():
    rng = np.random.default_rng(2)
    steps = curve(POWERS) * np.exp(0.1 * rng.standard_normal(10))
    plain = fit_pareto(POWERS, steps)
    scaled = fit_pareto(1e6 * POWERS, 1e3 * steps, weights=np.full(10, 7.0))
    assert scaled.b_crit.value == pytest.approx(1e6 * plain.b_crit.value, rel=1e-5)
    assert scaled.b_crit.low == pytest.approx(1e6 * plain.b_crit.low, rel=1e-5)
    assert scaled.s_min.high == pytest.approx(1e3 * plain.s_min.high, rel=1e-5)
    assert scaled.e_min.low == pytest.approx(1e9 * plain.e_min.low, rel=1e-5)


def test_a_censored_batch_size_pulls_towards_more_steps():
    steps = curve(POWERS) * np.exp(0.1 * np.sin(5 * np.arange(10)))
    without = fit_pareto(POWERS[1:], steps[1:])
    budget = np.where(POWERS == 1, 2 * steps[0], steps)
    censored = fit_pareto(POWERS, budget, reached=POWERS > 1)
    assert censored.b_crit.value > without.b_crit.value


def sweep(rng, batches, seeds, noise, *, candidates=1, censored=0.0, shared=0.0):
    """A simulated sweep: noise per run and per batch size, a budget, and the candidate with the best mean."""
    batch = 4 * 2.0 ** np.arange(batches)
    b_crit = 4 * 2 ** ((batches - 1) * rng.uniform(0.35, 0.65))
    truth = curve(batch, b_crit=b_crit)
    log_steps = np.log(truth)[:, None, None] + noise * rng.standard_normal((batches, candidates, seeds))
    log_steps += shared * rng.standard_normal((batches, 1, 1))
    budget = np.log(1.02 * np.quantile(truth, 1 - censored)) if censored else np.inf
    reached = log_steps < budget
    log_steps = np.minimum(log_steps, budget)
    best = (log_steps.mean(-1) + 1e3 * (~reached).mean(-1)).argmin(1)
    rows = np.arange(batches)
    return np.repeat(batch, seeds), np.exp(log_steps[rows, best].ravel()), reached[rows, best].ravel(), b_crit


@pytest.mark.parametrize(
    ("batches", "seeds", "noise", "options"),
    [
        (6, 2, 0.05, {}),
        (6, 3, 0.2, {}),
        (9, 3, 0.1, {"shared": 0.1}),
        (12, 2, 0.2, {}),
        (8, 3, 0.1, {"censored": 0.25}),
        (12, 2, 0.2, {"candidates": 5, "censored": 0.25}),
        (8, 3, 0.1, {"candidates": 5}),
    ],
)
def test_the_interval_of_b_crit_covers_the_truth_in_92_to_98_of_100_sweeps(batches, seeds, noise, options):
    rng = np.random.default_rng(12345)
    covered = 0
    for _ in range(500):
        batch, steps, reached, truth = sweep(rng, batches, seeds, noise, **options)
        fit = fit_pareto(batch, steps, reached=reached)
        covered += fit.b_crit.low <= truth <= fit.b_crit.high
    assert 0.92 <= covered / 500 <= 0.98


def test_s_min_and_e_min_are_covered_too():
    rng = np.random.default_rng(54321)
    covered = np.zeros(2)
    for _ in range(500):
        batch, steps, reached, truth = sweep(rng, 8, 3, 0.1)
        fit = fit_pareto(batch, steps, reached=reached)
        covered += [fit.s_min.low <= 100 <= fit.s_min.high, fit.e_min.low <= 100 * truth <= fit.e_min.high]
    assert np.all((covered / 500 >= 0.92) & (covered / 500 <= 0.98))


def test_dropping_censored_batch_sizes_would_be_worse():
    """Runs that a budget cut off are the slow ones: without them the small batch sizes look too fast."""
    rng = np.random.default_rng(7)
    kept, dropped = [], []
    for _ in range(250):
        batch, steps, reached, truth = sweep(rng, 8, 1, 0.3, censored=0.4)
        if reached.sum() >= 4:
            kept.append(fit_pareto(batch, steps, reached=reached).b_crit.value / truth)
            dropped.append(fit_pareto(batch[reached], steps[reached]).b_crit.value / truth)
    assert np.median(dropped) < 0.9
    assert np.median(kept) == pytest.approx(1, abs=0.08)


@pytest.mark.parametrize(("task", "goal", "b_crit", "relative_error"), paper_refits())
def test_the_papers_points(task, goal, b_crit, relative_error):
    batch, steps = np.array(paper_points()[task, goal]).T
    fit = fit_pareto(batch, steps)
    assert np.isfinite(fit.b_crit.value)
    assert fit.b_crit.value > 0
    if relative_error < 0.1:
        assert fit.b_crit.value == pytest.approx(b_crit, rel=0.25)
        assert fit.determined


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (np.full(10, 100.0), "steps may not depend on the batch size"),
        (1e4 / POWERS, "steps may fall as 1/B throughout"),
        (POWERS, "steps may not depend on the batch size"),
        (1e6 / POWERS**2, "steps may fall as 1/B throughout"),
        (np.exp(np.random.default_rng(3).uniform(0, 9, 10)), "no bend"),
    ],
)
def test_points_with_no_bend_determine_nothing(steps, words):
    fit = fit_pareto(POWERS, steps * np.exp(0.02 * np.sin(7 * np.arange(10))))
    assert fit.status == "not_determined"
    assert fit.remark.startswith("not determined: ")
    assert words in fit.remark
    assert fit.b_crit.low == 0 or fit.b_crit.high == np.inf


@pytest.mark.parametrize(("b_crit", "words"), [(0.4, "below the smallest batch"), (1500, "above the largest batch")])
def test_a_bend_outside_the_scan_is_not_determined(b_crit, words):
    fit = fit_pareto(POWERS, curve(POWERS, b_crit=b_crit))
    assert not fit.determined
    assert words in fit.remark
    assert fit.b_crit.value == pytest.approx(b_crit, rel=1e-4)


@pytest.mark.parametrize("usable", [0, 1, 2, 3])
def test_too_few_batch_sizes(usable):
    fit = fit_pareto(POWERS, curve(POWERS), reached=POWERS[10 - usable] <= POWERS if usable else POWERS < 0)
    assert not fit.determined
    assert "reached the goal, at least 4 are needed" in fit.remark
    assert np.isnan(fit.b_crit.value) == (usable < 3)
    assert (fit.n, fit.n_censored) == (usable, 10 - usable)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([], []), "no runs"),
        (([1, 2], [1, 2, 3]), r"steps has shape \(3,\)"),
        (([1, 0], [1, 2]), r"batch_size\[1\] is 0"),
        (([1, 2], [1, -2]), r"steps\[1\] is -2"),
        (([1, 2], [1, np.nan]), r"steps\[1\] is nan"),
        (([1, 2], [np.inf, 1]), r"steps\[0\] is inf"),
    ],
)
def test_bad_input_is_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        fit_pareto(*arguments)


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="confidence"):
        fit_pareto(POWERS, POWERS, confidence=95)
    with pytest.raises(ValueError, match=r"weights\[0\] is 0"):
        fit_pareto(POWERS, POWERS, weights=np.zeros(10))
    with pytest.raises(ValueError, match="reached has shape"):
        fit_pareto(POWERS, POWERS, reached=[True])


def seeds_sweep(seed, noise=0.1, seeds=3, budget=np.inf):
    rng = np.random.default_rng(seed)
    batch, candidate, _ = np.meshgrid(4 * 2.0 ** np.arange(8), np.arange(4), np.arange(seeds), indexing="ij")
    log_steps = (
        np.log(curve(batch, b_crit=40.0)) + 0.05 * (candidate - 1.4) ** 2 + noise * rng.standard_normal(batch.shape)
    )
    reached = log_steps < np.log(budget)
    return batch.ravel(), np.exp(np.minimum(log_steps, np.log(budget))).ravel(), candidate.ravel(), reached.ravel()


@pytest.mark.parametrize("budget", [np.inf, 800.0])
def test_the_bootstraps_value_is_the_fits(budget):
    batch, steps, candidate, reached = seeds_sweep(0, budget=budget)
    assert budget == np.inf or not reached.all()
    estimate = bootstrap_seeds(batch, steps, candidate=candidate, reached=reached, replicates=200)
    best = np.zeros(batch.size, dtype=bool)
    for size in np.unique(batch):
        scores = {}
        for label in range(4):
            mine = (batch == size) & (candidate == label)
            scores[label] = (-reached[mine].mean(), np.log(steps[mine]).mean())
        best |= (batch == size) & (candidate == min(scores, key=scores.__getitem__))
    fit = fit_pareto(batch[best], steps[best], reached=reached[best])
    assert estimate.value == pytest.approx(fit.b_crit.value, rel=1e-5)
    assert estimate.low < estimate.value < estimate.high


def test_the_bootstrap_covers_where_seeds_are_the_only_noise():
    covered = 0
    for seed in range(200):
        batch, steps, candidate, _ = seeds_sweep(seed)
        estimate = bootstrap_seeds(batch, steps, candidate=candidate, replicates=200, seed=seed)
        covered += estimate.low <= 40 <= estimate.high
    assert 0.90 <= covered / 200 <= 0.99


def test_the_bootstrap_repeats_itself_and_uses_its_seed():
    batch, steps, candidate, reached = seeds_sweep(1)
    first, again, other = (
        bootstrap_seeds(batch, steps, candidate=candidate, reached=reached, replicates=200, seed=seed)
        for seed in (5, 5, 6)
    )
    assert first == again
    assert first != other


def test_the_caller_can_choose_the_learning_rates():
    batch, steps, candidate, _ = seeds_sweep(2)
    asked = []

    def last(mean_log_steps, share_reached):
        asked.append((mean_log_steps.shape, share_reached.shape))
        return np.full(len(mean_log_steps), 3)

    estimate = bootstrap_seeds(batch, steps, candidate=candidate, select=last, replicates=100)
    mine = candidate == 3
    assert estimate.value == pytest.approx(fit_pareto(batch[mine], steps[mine]).b_crit.value, rel=1e-5)
    assert asked == [((101, 4), (101, 4))] * 8


def test_a_bootstrap_of_too_few_batch_sizes_is_open():
    batch, steps, candidate, reached = seeds_sweep(3, budget=122.0, noise=0.01)
    assert np.unique(batch[reached]).size == 2
    estimate = bootstrap_seeds(batch, steps, candidate=candidate, reached=reached, replicates=200)
    assert np.isnan(estimate.value)
    assert (estimate.low, estimate.high) == (0, np.inf)


def test_one_seed_cannot_be_resampled():
    with pytest.raises(ValueError, match="needs two"):
        bootstrap_seeds(POWERS, curve(POWERS))
