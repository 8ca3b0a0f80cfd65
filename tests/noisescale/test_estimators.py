"""The unbiased pair against exact per-example answers."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from noisescale import gradient_moments, ratio_of_means

TRIALS = 4000


@pytest.fixture(scope="module")
def population():
    """Exact per-example gradients of a small CNN in float64: (examples, parameters)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(27, 4)).double()
    images, labels = torch.randn(200, 1, 8, 8, dtype=torch.float64), torch.arange(200) % 8 % 5 % 4
    parameters = dict(model.named_parameters())

    def loss(parameters, image, label):
        return nn.functional.cross_entropy(functional_call(model, parameters, image[None]), label[None])

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, images, labels)
    return torch.cat([g.detach().flatten(1) for g in gradients.values()], dim=1)


def exact(population):
    mean = population.mean(0)
    return (mean @ mean).item(), ((population - mean) ** 2).sum(1).mean().item()


def draw(population, sizes, seed=0):
    """`TRIALS` batches with replacement, cut into parts: squared norms (trials, k), of the mean (trials)."""
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(len(population), (TRIALS, sum(sizes)), generator=generator)
    parts = [population[part].mean(1) for part in indices.split(sizes, dim=1)]
    weights = torch.tensor(sizes, dtype=torch.float64)[:, None, None] / sum(sizes)
    stacked = torch.stack(parts)
    return (stacked**2).sum(-1).T, ((weights * stacked).sum(0) ** 2).sum(-1)


@pytest.mark.parametrize("sizes", [[16, 16], [8] * 4, [2] * 16, [1] * 32, [1, 31], [5, 20, 7]], ids=str)
def test_unbiased_within_its_own_error_and_ratio_within_5_per_cent(population, sizes):
    grad_sq_norm, trace_cov = exact(population)
    norms, mean = draw(population, sizes)
    moments = gradient_moments(norms, sizes, mean)
    for estimate, truth in ((moments.grad_sq_norm, grad_sq_norm), (moments.trace_cov, trace_cov)):
        assert estimate.isfinite().all()
        assert abs(estimate.mean() - truth) < 4 * estimate.std() / TRIALS**0.5
    assert (moments.grad_sq_norm < 0).any()  # not clamped
    ratio = ratio_of_means(moments.trace_cov.numpy(), moments.grad_sq_norm.numpy())
    assert ratio.low < trace_cov / grad_sq_norm < ratio.high
    if sizes[0] > 1:
        assert ratio.value == pytest.approx(trace_cov / grad_sq_norm, rel=0.05)


def test_unequal_parts_that_count_the_same_are_unbiased_too(population):
    """DDP averages ranks, not examples: with local batches of 2, 6 and 24 the reduced gradient is another mean."""
    sizes = [2, 6, 24]
    generator = torch.Generator().manual_seed(2)
    indices = torch.randint(len(population), (TRIALS, 32), generator=generator)
    stacked = torch.stack([population[part].mean(1) for part in indices.split(sizes, dim=1)])
    norms, mean = (stacked**2).sum(-1).T, (stacked.mean(0) ** 2).sum(-1)
    moments = gradient_moments(norms, sizes, mean, weights=[1, 1, 1])
    for estimate, truth in zip(moments, exact(population), strict=True):
        assert abs(estimate.mean() - truth) < 4 * estimate.std() / TRIALS**0.5
    wrong = gradient_moments(norms, sizes, mean)
    assert abs(wrong.trace_cov.mean() - exact(population)[1]) > 10 * wrong.trace_cov.std() / TRIALS**0.5


def test_mean_of_ratios_of_means_within_5_per_cent(population):
    grad_sq_norm, trace_cov = exact(population)
    norms, mean = draw(population, [8] * 4, seed=1)
    moments = gradient_moments(norms, [8] * 4, mean)
    runs = [part.mean(1) for part in (m.reshape(20, -1) for m in (moments.trace_cov, moments.grad_sq_norm))]
    assert (runs[0] / runs[1]).mean().item() == pytest.approx(trace_cov / grad_sq_norm, rel=0.05)


def test_the_fields_shortcuts_are_wrong_here(population):
    grad_sq_norm, trace_cov = exact(population)
    norms, mean = draw(population, [4] * 4)
    moments = gradient_moments(norms, [4] * 4, mean)
    truth = trace_cov / grad_sq_norm
    average_of_ratios = (moments.trace_cov / moments.grad_sq_norm).mean().item()
    clamped = (moments.trace_cov.mean() / moments.grad_sq_norm.clamp(min=0).mean()).item()
    plugged_in = (moments.trace_cov.mean() / mean.mean()).item()
    for wrong in (average_of_ratios, clamped, plugged_in):
        assert abs(wrong / truth - 1) > 0.15
    assert plugged_in < 16  # saturates at the batch size


def test_full_split_equals_the_sample_covariance(population):
    batch = population[:10]
    moments = gradient_moments((batch**2).sum(1), [1] * 10, (batch.mean(0) ** 2).sum())
    variance = torch.cov(batch.T).trace()
    assert moments.trace_cov.item() == pytest.approx(variance.item(), rel=1e-12)
    assert moments.grad_sq_norm.item() == pytest.approx(((batch.mean(0) ** 2).sum() - variance / 10).item(), rel=1e-12)


def test_numpy_tensors_and_batches_agree():
    norms, mean = np.array([[3.0, 5.0, 4.0], [1.0, 1.0, 1.0]]), np.array([2.0, 1.0])
    from_numpy = gradient_moments(norms, [2, 3, 4], mean)
    from_torch = gradient_moments(torch.from_numpy(norms).float(), torch.tensor([2, 3, 4]), torch.from_numpy(mean))
    assert isinstance(from_numpy.trace_cov, np.ndarray) and from_torch.trace_cov.dtype == torch.float64
    np.testing.assert_array_equal(from_numpy.trace_cov, from_torch.trace_cov.numpy())
    one = gradient_moments(norms[0].tolist(), [2, 3, 4], 2.0)
    assert float(one.grad_sq_norm) == from_numpy.grad_sq_norm[0]
    assert from_numpy.trace_cov[1] == 0 and from_numpy.grad_sq_norm[1] == 1


def test_half_precision_norms_are_accumulated_in_float64():
    norms = torch.tensor([60000.0, 60000.0], dtype=torch.float16)
    assert gradient_moments(norms, [1, 1], torch.tensor(60000.0)).grad_sq_norm.item() == pytest.approx(60000, rel=1e-3)


def test_all_zero_gradients_give_zero_and_nan_passes_through():
    zero = gradient_moments(torch.zeros(4), [1] * 4, torch.tensor(0.0))
    assert zero.grad_sq_norm == 0 and zero.trace_cov == 0
    assert gradient_moments(torch.tensor([1.0, torch.nan]), [1, 1], torch.tensor(1.0)).trace_cov.isnan()


@pytest.mark.parametrize(
    ("sq_norms", "sizes", "mean", "message"),
    [
        ([1.0], [4], 1.0, "k = 1 gradient"),
        (3.0, 1, 1.0, "last dimension"),
        ([1.0, 2.0], [4, 0], 1.0, "positive"),
        (torch.ones(2), torch.tensor([4, -1]), torch.ones(()), "positive"),
        ([1.0, 2.0], [4, 4, 4], 1.0, "don't fit"),
        ([1.0, 2.0], [4, 4], [1.0], "one per set"),
    ],
)
def test_errors_say_what_is_wrong(sq_norms, sizes, mean, message):
    with pytest.raises(ValueError, match=message):
        gradient_moments(sq_norms, sizes, mean)
