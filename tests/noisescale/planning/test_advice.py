"""The table of what a batch size costs, against the front worked out by hand."""

import math

import numpy as np
import pytest

from noisescale.averaging import MomentAverage, NoiseScale, ratio_of_means
from noisescale.formatting import number, table, whole, with_interval
from noisescale.pareto.fit import Estimate, fit_pareto
from noisescale.planning.advice import advise

B_CRIT = Estimate(200.0, 150.0, 260.0)


def row(advice, batch_size):
    return next(row for row in advice.rows if row.batch_size == batch_size)


def test_steps_examples_hours_and_cost_of_one_row():
    advice = advise(B_CRIT, [100, 200, 400], [0.1, 0.15, 0.3], devices=8, run=(200, 10_000))
    here = row(advice, 100)
    assert here.steps.value == pytest.approx(15_000)
    assert here.examples.value == pytest.approx(1_500_000)
    assert here.hours.value == pytest.approx(1500 / 3600)
    assert here.device_hours.value == pytest.approx(8 * 1500 / 3600)
    assert here.time.value == pytest.approx(1500 / (10_000 * 0.15))
    assert here.steps.low == pytest.approx(10_000 * (1 + 1.5) / (1 + 0.75))
    assert here.steps.high == pytest.approx(10_000 * (1 + 2.6) / (1 + 1.3))
    assert row(advice, 200).steps == Estimate(*[pytest.approx(10_000)] * 3)


def test_without_a_run_everything_is_relative():
    advice = advise(200.0, [100, 200, 400], [0.1, 0.1, 0.1])
    here = row(advice, 400)
    assert (here.steps.value, here.examples.value) == (1.5, 3)
    assert math.isnan(here.hours.value)
    assert row(advice, 100).time.value == pytest.approx(3 / 1.5)
    assert "hours" not in str(advice)
    assert "steps/S_min" in str(advice)


def test_a_fitted_front_brings_its_own_steps():
    batch = 2.0 ** np.arange(10)
    fit = fit_pareto(batch, 100 * (1 + 20 / batch))
    advice = advise(fit, [4, 64], [0.1, 0.1])
    assert row(advice, 4).steps.value == pytest.approx(600, rel=1e-4)
    assert row(advice, 64).examples.value == pytest.approx(64 * 131.25, rel=1e-4)


def test_a_measured_noise_scale_brings_its_interval():
    noise = NoiseScale(1.0, 0.1, 200.0, 5.0, 200.0, 150.0, 260.0, 0.95, 1e5, 1e3, 0, True, "")
    assert advise(noise, [1, 2], [1, 1]).b_crit == B_CRIT
    undetermined = NoiseScale(0.1, 0.3, 200.0, 5.0, 2000.0, -5.0, math.inf, 0.95, 1e5, 1e3, 0, False, "too noisy")
    assert advise(undetermined, [1, 2], [1, 1]).b_crit == Estimate(2000.0, 0.0, math.inf)


def test_doublings_between_measurements_are_interpolated_and_nothing_beyond():
    advice = advise(B_CRIT, [32, 300], [0.1, 0.4])
    assert [r.batch_size for r in advice.rows] == [32, 64, 128, 256, 300]
    assert [r.measured for r in advice.rows] == [True, False, False, False, True]
    slope = math.log(4) / math.log(300 / 32)
    assert row(advice, 128).step_seconds == pytest.approx(0.1 * 4**slope)
    assert str(advice).count("~") == 3


def test_with_devices_for_each_batch_only_measured_rows_are_shown():
    advice = advise(B_CRIT, [256, 32], [0.1, 0.1], devices=[8, 1])
    assert [(r.batch_size, r.devices) for r in advice.rows] == [(32, 1), (256, 8)]
    assert (advice.fastest.batch_size, advice.cheapest.batch_size) == (256, 32)
    assert "cost/cheapest" in str(advice)


@pytest.mark.parametrize("b_crit", [90.0, 181.1, 1000.0])
def test_with_devices_in_proportion_doubling_stops_at_b_crit(b_crit):
    """S(2B) E(2B) < S(B) E(B) as long as the middle of B and 2B in ratio, √2 B, is below B_crit."""
    batch = 2.0 ** np.arange(14)
    advice = advise(b_crit, batch, [0.1] * 14, devices=batch)
    assert advice.stops.value / 2 < b_crit / math.sqrt(2) <= advice.stops.value


def test_with_fixed_devices_doubling_stops_where_training_gets_slower():
    advice = advise(B_CRIT, [16, 64, 256, 1024], [0.1, 0.1, 0.1, 0.4], devices=4)
    times = {r.batch_size: r.time.value for r in advice.rows}
    assert advice.stops.value == min(b for b in times if 2 * b in times and times[2 * b] >= times[b])
    assert advice.fastest.batch_size == advice.stops.value
    assert "the fastest and the cheapest" in str(advice)


def test_batch_sizes_that_are_no_doublings_are_compared_all_the_same():
    advice = advise(10, [32, 100, 310], [0.1, 0.31, 1.0], devices=[1, 2, 3])
    assert advice.stops == Estimate(32, 32, 32)
    assert "from there to 100 it adds a larger share to the cost" in str(advice)
    advice = advise(200, [32, 256, 2048], [0.1] * 3, devices=[1, 8, 64])
    assert advice.stops.value == 256 and "stops paying at B = 256: from there to 2,048" in str(advice)
    advice = advise(200, [32, 100, 310], [0.1] * 3, devices=[1, 3, 10])
    assert advice.stops.value == 100
    advice = advise(1e6, [32, 100, 310], [0.1] * 3, devices=[1, 3, 10])
    assert math.isinf(advice.stops.value)


def test_what_is_not_determined_is_said():
    noise = NoiseScale(1, 0.1, 200, 0.1, 200.0, -math.inf, math.inf, 0.95, 100, 10, 0, False, "|G|² isn't positive")
    assert str(advise(noise, [32, 256], [0.05, 0.08])).startswith("B_simple not determined: |G|² isn't positive.\n")
    batch = np.array([4.0, 8, 16, 32])
    fit = fit_pareto(batch, 1e4 / batch * np.array([1.0, 1.1, 0.9, 1.05]))
    assert not fit.determined and str(advise(fit, [32, 256], [0.05, 0.08])).startswith(f"B_crit {fit.remark}.\n")
    assert advise(200.0, [32, 256], [0.05, 0.08]).remark == ""


def test_doubling_may_pay_throughout():
    advice = advise(1e6, [32, 256], [0.1, 0.11])
    assert advice.stops == Estimate(math.inf, math.inf, math.inf)
    assert "pays up to the largest batch size given, 256." in str(advice)


def test_what_was_measured_is_called_by_its_name():
    average = MomentAverage(window=50)
    for step in range(50):
        average.update(1.0 + step % 3, 200.0 + step % 5, examples=8)
    assert "B_simple 102" in str(advise(average.estimate(), [32, 256], [0.05, 0.08]))
    assert "B_crit 101" in str(advise(101.0, [32, 256], [0.05, 0.08]))
    with pytest.raises(ValueError, match="B_simple must be a positive number"):
        advise(MomentAverage(window=5).estimate(), [32, 256], [0.05, 0.08])


def test_an_open_interval_gives_open_ranges():
    advice = advise(Estimate(200.0, 0.0, math.inf), [32, 256, 2048], [0.05, 0.08, 0.5], run=(256, 1000))
    assert row(advice, 32).steps == Estimate(pytest.approx(1000 * 7.25 / 1.78125), 1000, 8000)
    relative = row(advise(Estimate(200.0, 0.0, math.inf), [32, 256], [0.05, 0.08]), 32)
    assert (relative.steps.low, relative.steps.high) == (1, math.inf)
    assert (relative.examples.low, relative.examples.high) == (1, math.inf)
    assert "[?]" in str(advice)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((-12.0, [1, 2], [1, 1]), {}, "B_crit must be a positive number"),
        ((float("nan"), [1, 2], [1, 1]), {}, "B_crit must be a positive number, got nan$"),
        ((MomentAverage(window=9).estimate(), [1, 2], [1, 1]), {}, "B_simple must be .* got nan; measure longer"),
        ((Estimate(5.0, 6.0, 7.0), [1, 2], [1, 1]), {}, "within its interval, low ≤ value ≤ high, got value 5, low 6"),
        ((5.0, [8], [1]), {}, "two batch sizes or more, got 1"),
        ((5.0, [8, 8], [1, 2]), {}, "batch size 8 is given twice"),
        ((5.0, [8, 16], [1, 0]), {}, r"step_seconds\[1\] is 0"),
        ((5.0, [8, 16], [1]), {}, "step_seconds has shape"),
        ((5.0, [8, 16], [1, 1]), {"devices": [1, 2, 3]}, "devices has shape"),
        ((5.0, [8, 16], [1, 1]), {"devices": 0}, r"devices\[0\] is 0"),
        ((5.0, [8, 16], [1, 1]), {"run": (8, -1)}, "run must be"),
        ((5.0, [8, 16], [1, 1]), {"run": 100}, "run must be .* got 100"),
        ((5.0, [8, 16], [1, 1]), {"run": (100,)}, "run must be"),
        ((5.0, [8, 16], [1, 1]), {"run": (100, None)}, "run must be"),
        ((5.0, [8, 16], [1, 1]), {"run": "12"}, "run must be .* got '12'"),
        ((None, [8, 16], [1, 1]), {}, "b_crit must be a number, .* got None"),
        ((ratio_of_means([1.0, 2], [1.0, 2]), [8, 16], [1, 1]), {}, r"Estimate\(value, low, high\)"),
    ],
)
def test_bad_input_is_named(arguments, options, words):
    with pytest.raises(ValueError, match=words):
        advise(*arguments, **options)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.01234, 3, "0.0123"), (9.996, 3, "10.0"), (1234.5, 3, "1,230"), (123456, 2, "120,000"), (0, 3, "0"),
        (-4.5, 2, "-4.5"), (2.1e12, 2, "2.1e12"), (1e-6, 2, "1.0e-6"), (math.inf, 3, "∞"), (-math.inf, 3, "-∞"),
        (math.nan, 3, "–"),
    ],
)  # fmt: skip
def test_numbers(value, digits, text):
    assert number(value, digits) == text


def test_intervals():
    assert with_interval(Estimate(118.3, 95, 151.2)) == "120 [95, 150]"
    assert with_interval(Estimate(118.3, 117.9, 118.8)) == "118.3 [117.9, 118.8]"
    assert with_interval(Estimate(5, 5, 5)) == "5.000"
    assert with_interval(Estimate(118.3, 95, math.inf)) == "120 [>95]"
    assert with_interval(Estimate(118.3, 0, 151.2)) == "120 [<150]"
    assert with_interval(Estimate(118.3, 0, math.inf)) == "120 [?]"
    assert with_interval(Estimate(math.nan, 0, math.inf)) == "–"
    assert with_interval(Estimate(1.3e8, 9.1e7, 2e8)) == "1.3e8 [9.1e7, 2.0e8]"
    assert (whole(1048576), whole(0.5)) == ("1,048,576", "0.500")
    assert table(["a", "bb"], [["100", "2"]]) == "a    bb\n───────\n100   2"
