"""Ratio of means and its interval: exact values, coverage, what is dropped, what survives a restart."""

import io
import math

import numpy as np
import pytest
import torch

from noisescale import MomentAverage, ratio_of_means

REPETITIONS = 500


def simulated_steps(rng, steps, correlation, parts=4, dimension=20):
    """|G|² and tr Σ of Gaussian gradients whose noise is an AR(1) from step to step; B_simple = `dimension`."""
    noise = rng.standard_normal((steps, parts, dimension))
    for t in range(1, steps):
        noise[t] = correlation * noise[t - 1] + math.sqrt(1 - correlation**2) * noise[t]
    gradients = noise
    gradients[..., 0] += 1
    of_mean = (gradients.mean(1) ** 2).sum(-1)
    mean_of = (gradients**2).sum(-1).mean(-1)
    return (parts * of_mean - mean_of) / (parts - 1), parts * (mean_of - of_mean) / (parts - 1)


def coverage(steps, correlation, **average):
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(REPETITIONS):
        grad_sq_norm, trace_cov = simulated_steps(rng, steps, correlation)
        mean = MomentAverage(**average)
        for pair in zip(grad_sq_norm, trace_cov, strict=True):
            mean.update(*pair, examples=4)
        estimate = mean.estimate()
        covered += estimate.low <= 20 <= estimate.high
    return covered / REPETITIONS


@pytest.mark.parametrize(
    ("steps", "correlation", "average"),
    [
        (100, 0.0, {"window": 100}),
        (200, 0.5, {"window": 200}),
        (200, 0.7, {"window": 150}),
        (200, 0.0, {"decay": 0.98}),
        (300, 0.6, {"decay": 0.99}),
    ],
)
def test_interval_covers_the_truth_92_to_98_times_in_100(steps, correlation, average):
    assert 0.92 <= coverage(steps, correlation, **average) <= 0.98


def test_independent_rows_cover_with_unequal_weights_and_noise():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        weights = rng.choice([1.0, 10.0], 40)
        noise = rng.standard_normal((2, 40)) / np.sqrt(weights)
        ratio = ratio_of_means(6 + 3 * noise[0], 2 + noise[1], weights)
        covered += ratio.low <= 3 <= ratio.high
    assert 0.92 <= covered / 2000 <= 0.98


def test_ignoring_the_correlation_would_fail_the_same_test():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(REPETITIONS):
        grad_sq_norm, trace_cov = simulated_steps(rng, 200, 0.7)
        ratio = ratio_of_means(trace_cov, grad_sq_norm)
        covered += ratio.low <= 20 <= ratio.high
    assert covered / REPETITIONS < 0.9


def test_interval_is_fiellers():
    n, d = np.array([9.0, 11, 10, 12, 8]), np.array([1.0, 1.2, 0.9, 1.1, 0.8])
    ratio = ratio_of_means(n, d)
    for end in (ratio.low, ratio.high):
        z = n - end * d
        assert abs(z.mean()) / (z.std(ddof=1) / math.sqrt(5)) == pytest.approx(2.7764451, rel=1e-6)
    assert ratio.value == pytest.approx(10) and ratio.low < 10 < ratio.high and ratio.rows == pytest.approx(5)
    assert ratio.denominator_error == pytest.approx(d.std(ddof=1) / math.sqrt(5))


def test_ratio_of_means_is_not_a_mean_of_ratios():
    assert ratio_of_means([1.0, 2, 3], [1.0, 1, 2]).value == 6 / 4
    assert ratio_of_means([1.0, 2, 3], [1.0, 1, 2], weights=[0, 1, 3]).value == 11 / 7


def test_not_determined_keeps_the_plain_ratio_and_has_no_upper_end():
    rng = np.random.default_rng(0)
    numerator, denominator = 10 + rng.standard_normal(50), rng.standard_normal(50)
    ratio = ratio_of_means(numerator, denominator)
    assert not ratio.determined and ratio.high == math.inf and "isn't clearly positive" in ratio.remark
    assert ratio.value == pytest.approx(numerator.mean() / denominator.mean())
    assert 0 < ratio.low < math.inf  # tr Σ is certain, so B_simple is at least this


def test_negative_denominator_is_reported_not_clamped():
    ratio = ratio_of_means([1.0, 1.1, 0.9, 1.0], [-1.0, -1.1, -0.9, -1.0])
    assert ratio.value == pytest.approx(-1) and not ratio.determined and ratio.high == math.inf


def filled(grad_sq_norm, trace_cov, steps=100, spread=0.01):
    average, rng = MomentAverage(window=steps), np.random.default_rng(2)
    for noise in rng.standard_normal((steps, 2)) * spread:
        average.update(grad_sq_norm + noise[0], trace_cov + noise[1], 64)
    return average.estimate()


def test_a_clearly_negative_square_is_impossible_and_its_causes_are_named():
    scale = filled(-3.12, 40.0)
    assert not scale.determined and "clearly negative, which independent parts can't give" in scale.remark
    assert all(cause in scale.remark for cause in ("shard", "sum", "clipping", "share examples"))
    noisy = filled(-0.01, 40.0, spread=1.0)
    assert not noisy.determined and "isn't clearly positive" in noisy.remark and "independent" not in noisy.remark


def test_parts_with_one_gradient_are_named():
    average = MomentAverage(window=50)
    for noise in np.random.default_rng(3).standard_normal(50):
        average.update(2 + 0.1 * noise, 1e-6 * noise, 64)  # float32's rounding of equal gradients
    scale = average.estimate()
    assert not scale.determined and "same examples" in scale.remark and "not determined" in str(scale)
    assert filled(2.0, 0.5).determined  # B_simple a quarter of an example is small, and there


def test_what_is_plotted_is_a_gap_or_a_bound_but_no_negative_noise_scale():
    known = filled(2.0, 40.0)
    assert known.plotted() == (known.b_simple, known.low, known.high)
    bounded = filled(0.01, 40.0, spread=0.5)  # tr Σ is certain, |G|² isn't
    assert not bounded.determined and bounded.low > 0
    value, low, high = bounded.plotted()
    assert low == bounded.low and math.isnan(value) and math.isnan(high)
    assert all(map(math.isnan, filled(-3.12, 40.0).plotted()))
    quiet = filled(2.0, -1e-3)  # by chance: B_simple is at most its upper end
    value, low, high = quiet.plotted()
    assert quiet.b_simple < 0 < quiet.high and math.isnan(value) and (low, high) == (0, quiet.high)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_too_few_rows_have_no_interval(rows):
    ratio = ratio_of_means([1.0] * rows, [2.0] * rows)
    assert (ratio.low, ratio.high, ratio.determined) == (-math.inf, math.inf, False) and ratio.remark
    assert MomentAverage(window=10).estimate().remark == "no steps"


def test_window_and_ema_weights_are_exact():
    grad_sq_norm, trace_cov = np.random.default_rng(0).standard_normal((2, 300)) + 2
    window, ema = MomentAverage(window=100), MomentAverage(decay=0.9)
    running = None
    for g, t in zip(grad_sq_norm, trace_cov, strict=True):
        window.update(g, t, examples=32)
        ema.update(torch.tensor(g), torch.tensor(t), examples=32)
        running = np.array([g, t]) if running is None else 0.9 * running + 0.1 * np.array([g, t])
    last = window.estimate()
    assert last.grad_sq_norm == pytest.approx(grad_sq_norm[-100:].mean()) and last.steps == pytest.approx(100)
    assert last.b_simple == pytest.approx(trace_cov[-100:].mean() / grad_sq_norm[-100:].mean())
    assert last.examples == pytest.approx(3200)
    smooth = ema.estimate()
    assert smooth.grad_sq_norm == pytest.approx(running[0], rel=1e-6)
    assert smooth.trace_cov == pytest.approx(running[1], rel=1e-6)
    assert smooth.steps == pytest.approx(19, rel=1e-3) and smooth.examples == pytest.approx(19 * 32, rel=1e-3)


def test_steps_that_are_not_finite_are_dropped_and_counted():
    clean, dirty = MomentAverage(window=50), MomentAverage(window=50)
    for step in range(40):
        clean.update(1.0 + step % 3, 5.0 + step % 5, examples=8)
        dirty.update(torch.tensor(1.0 + step % 3), torch.tensor(5.0 + step % 5), examples=8)
        if step % 10 == 0:
            dirty.update(torch.tensor(torch.nan), torch.tensor(1.0), examples=8)
            dirty.update(torch.tensor(1.0), torch.tensor(torch.inf), examples=8)
    assert dirty.estimate().dropped == 8
    assert dirty.estimate().b_simple == clean.estimate().b_simple and clean.estimate().dropped == 0


def test_groups_are_averaged_side_by_side():
    groups, single = MomentAverage(window=20), MomentAverage(window=20)
    for step in range(20):
        values = torch.tensor([1.0, 2.0 + step % 4])
        groups.update(values, 3 * values + step % 2, examples=4)
        single.update(values[1], 3 * values[1] + step % 2, examples=4)
    assert groups.estimate(index=1) == single.estimate()
    with pytest.raises(ValueError, match="index must pick one"):
        groups.estimate()


@pytest.mark.parametrize("average", [{"window": 90}, {"decay": 0.97}])
@pytest.mark.parametrize("stop", [1, 63, 64, 65, 130])
def test_resume_gives_the_same_bits(average, stop):
    rng = np.random.default_rng(0)
    steps = rng.standard_normal((200, 2)) + 1
    straight, first, second = (MomentAverage(**average) for _ in range(3))
    for step, pair in enumerate(steps):
        straight.update(*pair, examples=16)
        if step == stop:
            second.load_state_dict(first.state_dict())
        (first if step < stop else second).update(*pair, examples=16)
    assert straight.estimate() == second.estimate()
    one, two = straight.state_dict(), second.state_dict()
    assert torch.equal(one.pop("rows"), two.pop("rows")) and one == two


def test_errors_say_what_is_wrong():
    with pytest.raises(ValueError, match="either window or decay"):
        MomentAverage()
    with pytest.raises(ValueError, match="decay must lie"):
        MomentAverage(decay=1.0)
    with pytest.raises(ValueError, match="window must be"):
        MomentAverage(window=0)
    with pytest.raises(ValueError, match="saved with window=5"):
        MomentAverage(window=4).load_state_dict(MomentAverage(window=5).state_dict())
    with pytest.raises(ValueError, match="aren't finite"):
        ratio_of_means([1.0, math.nan], [1.0, 1.0])
    with pytest.raises(ValueError, match="weights for"):
        ratio_of_means([1.0, 2.0], [1.0, 1.0], weights=[1.0])
    with pytest.raises(ValueError, match="negative"):
        ratio_of_means([1.0, 2.0], [1.0, 1.0], weights=[1.0, -1.0])
    with pytest.raises(ValueError, match="confidence"):
        ratio_of_means([1.0, 2.0], [1.0, 1.0], confidence=95)


def test_estimate_prints_its_interval():
    mean = MomentAverage(window=30)
    for step in range(30):
        mean.update(1.0 + 0.1 * (step % 3), 5.0 + step % 2, examples=8)
    assert "95% interval" in str(mean.estimate()) and "240 examples" in str(mean.estimate())
    assert "not determined" in str(MomentAverage(window=3).estimate())


def test_a_ratio_is_plain_floats_so_that_a_checkpoint_holding_it_can_be_read_back():
    drawn = np.random.default_rng(0)
    ratio = ratio_of_means(drawn.normal(3, 1, 50), drawn.normal(2, 0.1, 50))
    assert {type(value) for value in (ratio.value, ratio.low, ratio.high)} == {float}


@pytest.mark.parametrize("examples", [-3, 0, math.nan])
def test_examples_are_positive(examples):
    with pytest.raises(ValueError, match="examples must be positive"):
        MomentAverage(window=5).update(1.0, 2.0, examples)


@pytest.mark.parametrize("memory", [{"window": np.int64(5)}, {"decay": np.float64(0.9)}], ids=str)
def test_a_memory_given_as_a_numpy_number_comes_back_out_of_a_checkpoint(memory):
    file = io.BytesIO()
    torch.save(MomentAverage(**memory).state_dict(), file)
    file.seek(0)
    MomentAverage(**memory).load_state_dict(torch.load(file, weights_only=True))
