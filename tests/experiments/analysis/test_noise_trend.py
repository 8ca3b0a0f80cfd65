import numpy as np
import pytest

from experiments.analysis.noise_trend import fit_trend


def planted(x, y):
    return 3 * np.exp(-0.6 * x + 0.2 * y + 0.1 * x * x - 0.03 * x * y)


def points(count, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(0, 4, count), rng.uniform(1, 7, count), rng


def test_exact_values_give_back_the_trend_also_between_them():
    x, y, _ = points(500)
    there = planted(np.linspace(0, 4, 9), np.linspace(1, 7, 9))
    found = fit_trend(x, y, planted(x, y), np.ones(500)).at(np.linspace(0, 4, 9), np.linspace(1, 7, 9))
    np.testing.assert_allclose(found, there, rtol=0.02)


def test_noise_that_makes_a_fifth_negative_leaves_no_bias():
    x, y, rng = points(4000)
    ratios = []
    for _ in range(20):
        factor = 1 + 2 * (rng.chisquare(2, 4000) / 2 - 1)
        assert (factor < 0).mean() > 0.2
        ratios.append(fit_trend(x, y, planted(x, y) * factor, np.ones(4000)).at(x, y) / planted(x, y))
    assert np.mean(ratios) == pytest.approx(1, abs=0.02)
    assert np.std(np.mean(ratios, axis=1)) < 0.1


def test_weights_say_which_measurements_count():
    x, y, _ = points(200)
    doubled = np.arange(200) % 2 == 0
    values = np.where(doubled, 2, 1) * planted(x, y)
    for chosen, factor in ((doubled, 2), (~doubled, 1)):
        found = fit_trend(x, y, values, chosen.astype(float)).at(x, y)
        np.testing.assert_allclose(found, factor * planted(x, y), rtol=0.05)


@pytest.mark.parametrize("count", [1, 3])
def test_few_points_bend_nothing(count):
    x, y = np.arange(float(count)), np.zeros(count)
    found = fit_trend(x, y, np.full(count, 5.0), np.ones(count)).at(np.linspace(-1, count, 5), np.zeros(5))
    np.testing.assert_allclose(found, 5, rtol=1e-6)


def test_a_negative_mean_is_flat():
    x, y, _ = points(10)
    assert set(fit_trend(x, y, -np.ones(10), np.ones(10)).at(x, y)) == {-1.0}
