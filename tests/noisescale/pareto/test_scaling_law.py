import numpy as np
import pytest

from noisescale.pareto.scaling_law import KAPLAN_ALPHA, KAPLAN_B_STAR, fit_scaling

LOSS = np.array([6.0, 5.0, 4.5, 4.0, 3.5, 3.2])


def intervals(b_crit, sigma):
    return b_crit * np.exp(-1.959964 * sigma), b_crit * np.exp(1.959964 * sigma)


def test_an_exact_power_law_comes_back():
    b_crit = KAPLAN_B_STAR / LOSS ** (1 / KAPLAN_ALPHA)
    fit = fit_scaling(LOSS, b_crit, *intervals(b_crit, np.linspace(0.1, 0.3, 6)))
    assert fit.b_star.value == pytest.approx(KAPLAN_B_STAR)
    assert fit.alpha.value == pytest.approx(KAPLAN_ALPHA)
    assert fit.rms == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(fit.b_crit(LOSS), b_crit)
    assert fit.alpha.low < KAPLAN_ALPHA < fit.alpha.high


def test_weighted_least_squares_by_hand():
    b_crit = np.array([10.0, 25.0, 30.0, 70.0, 60.0, 200.0])
    sigma = np.array([0.1, 0.4, 0.2, 0.3, 0.1, 0.5])
    fit = fit_scaling(LOSS, b_crit, *intervals(b_crit, sigma))
    slope, intercept = np.polyfit(-np.log(LOSS), np.log(b_crit), 1, w=1 / sigma)
    assert fit.exponent.value == pytest.approx(slope)
    assert fit.b_star.value == pytest.approx(np.exp(intercept))


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    sigma = np.array([0.1, 0.2, 0.3, 0.3, 0.2, 0.1])
    true = 1e4 / LOSS**3
    inside = np.zeros(2)
    for _ in range(1000):
        b_crit = true * np.exp(sigma * rng.standard_normal(6))
        fit = fit_scaling(LOSS, b_crit, *intervals(b_crit, sigma))
        inside += [fit.exponent.low < 3 < fit.exponent.high, fit.b_star.low < 1e4 < fit.b_star.high]
    assert (inside >= 940).all()  # a shared scale is never taken below the intervals' own word, so at least 95%


def test_scatter_beyond_the_intervals_widens_them():
    b_crit = 1e4 / LOSS**3 * np.exp(np.array([0.5, -0.5, 0.5, -0.5, 0.5, -0.5]))
    narrow = fit_scaling(LOSS, b_crit, *intervals(b_crit, np.full(6, 0.01)))
    wide = fit_scaling(LOSS, b_crit, *intervals(b_crit, np.full(6, 0.1)))
    assert narrow.exponent.low == pytest.approx(wide.exponent.low)
    assert narrow.exponent.low < 3 < narrow.exponent.high


def test_a_flat_b_crit_leaves_alpha_unbounded():
    b_crit = np.array([100.0, 104.0, 98.0, 101.0, 99.0, 103.0])
    fit = fit_scaling(LOSS, b_crit, *intervals(b_crit, np.full(6, 0.1)))
    assert fit.exponent.low < 0 < fit.exponent.high
    assert fit.alpha.high == np.inf
    assert fit.alpha.low == pytest.approx(1 / fit.exponent.high)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update({k: v[:2] for k, v in c.items()}), "2 goals"),
        (lambda c: c.update(high=c["high"] * np.inf), "positive and finite"),
        (lambda c: c.update(low=c["low"] * 0), "positive and finite"),
        (lambda c: c.update(low=c["b_crit"] * 1.1), "within its interval"),
        (lambda c: c.update(loss=np.full(6, 3.0)), "the same loss 3"),
        (lambda c: c.update(loss=LOSS[:4]), "one shape"),
        (lambda c: c.update(confidence=1.0), "confidence"),
    ],
)
def test_errors(change, message):
    b_crit = 1e4 / LOSS
    low, high = intervals(b_crit, np.full(6, 0.1))
    columns = {"loss": LOSS, "b_crit": b_crit, "low": low, "high": high}
    change(columns)
    with pytest.raises(ValueError, match=message):
        fit_scaling(**columns)
