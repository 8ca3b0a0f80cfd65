"""The adaptive batch size: where it goes, when it stays, what the learning rate does, and after a restart."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

from noisescale import theory
from noisescale.averaging import MomentAverage, NoiseScale
from noisescale.estimators import gradient_moments
from noisescale.planning.adaptive_batch import AdaptiveBatchSampler, AdaptiveBatchSize


def noise(b_simple, determined=True):
    return NoiseScale(1.0, 0.1, b_simple, 0.1, b_simple, b_simple / 2, 2 * b_simple, 0.95, 1e4, 100, 0, determined, "")


def schedule(**options):
    return AdaptiveBatchSize(**({"r": 100, "start": 64, "smallest": 16, "largest": 1024} | options))


def test_the_batch_is_the_root_of_r_times_the_noise_scale():
    adaptive = schedule(powers_of_two=False, hysteresis=1, unit=2)
    for b_simple in (9.0, 144.0, 400.0, 2500.0, 1e4):
        assert adaptive.update(noise(b_simple)) == round(float(theory.adaptive_batch(b_simple, 100)) / 2) * 2
        assert adaptive.accumulation * 2 == adaptive.batch_size


def test_powers_of_two_times_the_unit_nearest_in_ratio():
    adaptive = schedule(unit=24, start=96, smallest=24, largest=800, hysteresis=1)
    sizes = {adaptive.update(noise(b**2 / 100)) for b in np.geomspace(5, 5000, 300)}
    assert sizes == {24, 48, 96, 192, 384, 768}
    assert adaptive.update(noise(135.0**2 / 100)) == 96
    assert adaptive.update(noise(137.0**2 / 100)) == 192


def test_bounds_hold():
    adaptive = schedule()
    assert adaptive.update(noise(1e12)) == 1024
    assert adaptive.update(noise(1e-12)) == 16


def test_an_estimate_that_jitters_across_a_boundary_moves_nothing():
    boundary = (64 * 2**0.5) ** 2 / 100
    rng = np.random.default_rng(0)
    jitter = boundary * np.exp(0.08 * rng.standard_normal(500))
    steady, nervous = schedule(), schedule(hysteresis=1)
    assert len({steady.update(noise(b)) for b in jitter}) == 1
    moves = np.diff([nervous.update(noise(b)) for b in jitter])
    assert (moves != 0).sum() > 50


def test_hysteresis_delays_but_does_not_forbid():
    adaptive = schedule(hysteresis=1.9)
    assert adaptive.update(noise((64 * 1.85) ** 2 / 100)) == 64
    assert adaptive.update(noise((64 * 1.95) ** 2 / 100)) == 128
    assert adaptive.update(noise((128 / 1.85) ** 2 / 100)) == 128
    assert adaptive.update(noise((128 / 1.95) ** 2 / 100)) == 64


@pytest.mark.parametrize("unknown", [noise(5000.0, determined=False), noise(-30.0), noise(float("nan"))])
def test_an_estimate_that_determines_nothing_holds_the_batch(unknown):
    adaptive = schedule()
    adaptive.update(noise(400.0))
    size, factor = adaptive.batch_size, adaptive.lr_factor
    assert adaptive.update(unknown) == size
    assert (adaptive.lr_factor, adaptive.held) == (factor, 1)


@pytest.mark.parametrize("alpha", [1.0, 0.5, 0.0])
def test_the_learning_rate_goes_with_the_best_step(alpha):
    adaptive = schedule(alpha=alpha)
    assert adaptive.lr_factor == 1
    adaptive.update(noise(900.0))
    assert adaptive.batch_size == 256
    expected = theory.search_centre(256, 1, 900, alpha) / theory.search_centre(64, 1, 900, alpha)
    assert adaptive.lr_factor == pytest.approx(float(expected))
    adaptive.update(noise(41.0))
    assert (adaptive.batch_size, adaptive.lr_factor) == (64, 1)


def test_far_below_the_noise_scale_the_learning_rate_is_proportional_to_the_batch():
    adaptive = AdaptiveBatchSize(1e-3, start=1, smallest=1, largest=64)
    adaptive.update(noise(1e6))
    assert adaptive.batch_size == 32
    assert adaptive.lr_factor == pytest.approx(32, rel=1e-3)


def test_a_restart_goes_on_as_if_there_had_been_none():
    path = np.exp(np.random.default_rng(1).standard_normal(60).cumsum() / 2 + 5)
    whole, first, second = schedule(), schedule(), schedule()
    expected = [(whole.update(noise(b)), whole.lr_factor) for b in path]
    got = [(first.update(noise(b)), first.lr_factor) for b in path[:25]]
    second.load_state_dict(first.state_dict())
    got += [(second.update(noise(b)), second.lr_factor) for b in path[25:]]
    assert got == expected
    assert second.state_dict() == whole.state_dict()
    with pytest.raises(ValueError, match="saved batch size 48 is not an allowed one; the nearest is"):
        second.load_state_dict({"batch_size": 48, "lr_factor": 1.0, "held": 0})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"r": 0}, "r must be positive"),
        ({"r": float("inf")}, "r must be positive"),
        ({"unit": 0}, "unit ≥ 1"),
        ({"smallest": 2048}, "smallest ≤ largest"),
        ({"hysteresis": 0.9}, "hysteresis must be at least 1"),
        ({"alpha": 2}, "alpha must lie between"),
        ({"start": 0}, "start must be at least 1 example, got 0"),
        ({"start": -64}, "start must be at least 1 example, got -64"),
        ({"start": 64.0}, "start must be a whole number of examples, got 64.0"),
        ({"unit": 16.0}, "unit must be a whole number of examples, got 16.0"),
        ({"start": 48}, "start 48 is not an allowed batch size; the nearest is"),
        ({"start": 32, "unit": 24}, "the nearest is 24"),
        ({"start": 20, "smallest": 17, "largest": 23}, "no unit · 2\\^k lies between 17 and 23"),
        ({"unit": 600, "smallest": 700, "powers_of_two": False}, "no multiple of unit"),
    ],
)
def test_bad_arguments_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        schedule(**options)


def test_the_sampler_follows_the_schedule():
    data = TensorDataset(torch.arange(400))
    adaptive = schedule()
    sampler = AdaptiveBatchSampler(SequentialSampler(data), adaptive)
    seen, sizes = [], []
    for (batch,) in DataLoader(data, batch_sampler=sampler):
        sizes.append(len(batch))
        seen += batch.tolist()
        adaptive.update(noise(164.0 if len(sizes) == 1 else 10.0))
    assert sizes[:3] == [64, 128, 32]
    assert seen == list(range(len(seen)))
    assert len(seen) > 400 - 32


def test_planted_gradient_noise_sets_the_batch():
    """tr Σ/|G|² = 1,600, measured with the schedule's own micro-batches, leads to √(64 · 1600) = 320, so 256."""
    generator = torch.Generator().manual_seed(0)
    gradient = torch.zeros(50, dtype=torch.float64)
    gradient[0] = 0.5
    adaptive = AdaptiveBatchSize(64, start=32, smallest=32, largest=4096, unit=16)
    average = MomentAverage(window=400)
    for step in range(1, 2001):
        shape = (adaptive.accumulation, 50)
        parts = gradient + (400 / 50 / 16) ** 0.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
        moments = gradient_moments((parts**2).sum(1), torch.full((shape[0],), 16.0), (parts.mean(0) ** 2).sum())
        average.update(moments.grad_sq_norm, moments.trace_cov, adaptive.batch_size)
        if step % 50 == 0:
            adaptive.update(average.estimate())
    assert adaptive.batch_size == 256
    assert adaptive.lr_factor == pytest.approx((1 + 1600 / 32) / (1 + 1600 / 256), rel=0.3)


def test_a_loader_has_the_length_of_the_moment():
    adaptive, data = schedule(), TensorDataset(torch.arange(400))
    loader = DataLoader(data, batch_sampler=AdaptiveBatchSampler(SequentialSampler(data), adaptive))
    assert len(loader) == len(list(loader)) == 400 // 64
    adaptive.update(noise(164.0))
    assert len(loader) == len(list(loader)) == 400 // 128


def test_sizes_may_be_numpy_numbers():
    start, smallest, largest, unit = np.array([64, 32, 128, 16])
    schedule = AdaptiveBatchSize(r=100, start=start, smallest=smallest, largest=largest, unit=unit)
    assert schedule.accumulation == 4
    assert type(schedule.state_dict()["batch_size"]) is int
