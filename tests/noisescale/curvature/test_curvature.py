"""B_noise against exact values: a noisy quadratic, and a small network's dense Hessian."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jacrev, vmap

from noisescale import fit_line_searches, hessian_noise, line_search, ratio_of_means

SCALES = torch.tensor([1.0, 2.0, 5.0, 0.5], dtype=torch.float64)
SPREAD = torch.tensor([3.0, 1.0, 2.0, 0.1], dtype=torch.float64)


class Quadratic(nn.Module):
    """L(θ; ξ) = ½ θᵀ diag(SCALES) θ + mean of ξᵀθ: G = Hθ, Σ = diag(SPREAD²)."""

    def __init__(self):
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([1.0, -1.0, 0.5, 2.0], dtype=torch.float64))

    def forward(self, noise):
        return 0.5 * (SCALES * self.theta**2).sum() + (noise @ self.theta).mean()


def quadratic_truth():
    gradient = SCALES * Quadratic().theta.detach()
    return (gradient * SCALES * gradient).sum().item(), (SCALES * SPREAD**2).sum().item()


def noise(size, generator):
    return SPREAD * torch.randn(size, 4, dtype=torch.float64, generator=generator)


def call(model, batch):
    return model(batch)


@pytest.mark.parametrize("sizes", [(8, 8), (4, 32)])
def test_hessian_products_are_unbiased_on_the_quadratic(sizes):
    generator, model = torch.Generator().manual_seed(0), Quadratic()
    draws = [
        hessian_noise(model, call, (noise(sizes[0], generator), noise(sizes[1], generator), noise(1, generator)))
        for _ in range(1500)
    ]
    moments = np.array([[d.grad_hess_grad.item(), d.trace_hess_cov.item()] for d in draws])
    for column, truth in zip(moments.T, quadratic_truth(), strict=True):
        assert abs(column.mean() - truth) < 4 * column.std() / math.sqrt(len(column))
    grad_hess_grad, trace_hess_cov = quadratic_truth()
    ratio = ratio_of_means(moments[:, 1], moments[:, 0])
    assert ratio.value == pytest.approx(trace_hess_cov / grad_hess_grad, rel=0.05)
    assert ratio.low < trace_hess_cov / grad_hess_grad < ratio.high


def test_hessian_products_agree_with_a_dense_float64_hessian():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    inputs, labels = torch.randn(50, 4, dtype=torch.float64), torch.arange(50) % 5 % 3
    names, shapes = zip(*[(n, p.shape) for n, p in model.named_parameters()], strict=True)
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()

    def flat_loss(vector, x, y):
        pieces = vector.split([s.numel() for s in shapes])
        parameters = {n: v.view(s) for n, v, s in zip(names, pieces, shapes, strict=True)}
        return nn.functional.cross_entropy(functional_call(model, parameters, x), y)

    each = vmap(grad(flat_loss), in_dims=(None, 0, 0))(flat, inputs[:, None], labels[:, None])
    dense = jacrev(grad(flat_loss))(flat, inputs, labels)
    mean = each.mean(0)
    grad_hess_grad = (mean @ dense @ mean).item()
    trace_hess_cov = (dense @ torch.cov(each.T, correction=0)).trace().item()

    generator = torch.Generator().manual_seed(1)

    def batch(size):
        picked = torch.randint(50, (size,), generator=generator)
        return inputs[picked], labels[picked]

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    draws = [hessian_noise(model, loss, (batch(16), batch(16), batch(16))) for _ in range(400)]
    moments = np.array([[d.grad_hess_grad.item(), d.trace_hess_cov.item()] for d in draws])
    for column, truth in zip(moments.T, (grad_hess_grad, trace_hess_cov), strict=True):
        assert abs(column.mean() - truth) < 4 * column.std() / math.sqrt(len(column))
    # Given the whole set as the third batch and its parts as the first two, one call is exact linear algebra.
    one = hessian_noise(model, loss, ((inputs[:20], labels[:20]), (inputs[20:], labels[20:]), (inputs, labels)))
    g1, g2 = each[:20].mean(0), each[20:].mean(0)
    assert one.grad_hess_grad.item() == pytest.approx((g1 @ dense @ g2).item(), rel=1e-9)
    spread = ((g1 - g2) @ dense @ (g1 - g2)).item()
    assert one.trace_hess_cov.item() == pytest.approx(spread / (1 / 20 + 1 / 30), rel=1e-9)


def test_complex_weights_count_as_pairs_of_real_ones():
    class Pairs(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = nn.Parameter(weight)

        def forward(self, x):
            weight = self.weight if self.weight.is_complex() else torch.view_as_complex(self.weight)
            return ((x @ weight).abs() ** 3).mean()

    torch.manual_seed(0)
    weight, x = torch.randn(4, 3, dtype=torch.complex128), torch.randn(3, 8, 4, dtype=torch.complex128)
    found = hessian_noise(Pairs(weight), call, tuple(x))
    expected = hessian_noise(Pairs(torch.view_as_real(weight).clone()), call, tuple(x))
    assert found.grad_hess_grad.item() == pytest.approx(expected.grad_hess_grad.item(), rel=1e-9)
    assert found.trace_hess_cov.item() == pytest.approx(expected.trace_hess_cov.item(), rel=1e-9)


def test_measuring_leaves_gradients_buffers_and_random_state_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1), nn.Linear(1, 1))
    model[4].requires_grad_(False)
    x = torch.randn(3, 8, 4)
    model(x[0]).sum().backward()
    before = [t.clone() for t in (*model.parameters(), *model.buffers(), model[0].weight.grad, torch.get_rng_state())]
    hessian_noise(model, lambda m, b: m(b).square().mean(), tuple(x))
    with torch.no_grad():
        directions = [[torch.ones_like(p) for p in model.parameters() if p.requires_grad]]
        line_search(model.eval(), lambda m: m(x[0]).square().mean(), directions)
    after = (*model.parameters(), *model.buffers(), model[0].weight.grad, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_attention_can_be_differentiated_twice():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    batches = tuple(torch.randn(3, 2, 5, 8))
    assert hessian_noise(model, lambda m, b: m(b).square().mean(), batches).trace_hess_cov.isfinite()


def test_sizes_that_cannot_be_read_are_asked_for():
    with pytest.raises(ValueError, match="give sizes"):
        hessian_noise(Quadratic(), lambda m, b: m(b()), (lambda: 0,) * 3)
    with pytest.raises(ValueError, match="sizes must be positive"):
        hessian_noise(Quadratic(), call, (torch.zeros(1, 4),) * 3, sizes=(0, 4))
    with pytest.raises(ValueError, match="no parameter"):
        hessian_noise(Quadratic().requires_grad_(False), call, (torch.zeros(1, 4),) * 3)


def true_loss(model):
    return 0.5 * (SCALES * model.theta**2).sum()


def test_line_search_is_exact_on_the_quadratic():
    model = Quadratic()
    before = model.theta.detach().clone()
    g = SCALES * before
    found = line_search(model, true_loss, [[g]])
    curved = (g * SCALES * g).sum()
    assert found.step == pytest.approx(((g @ g) / curved).item(), rel=1e-3)
    assert found.decrease == pytest.approx(((g @ g) ** 2 / curved / 2).item(), rel=1e-6)
    assert torch.equal(model.theta.detach(), before)
    assert line_search(model, true_loss, [[-g]]) == (0.0, 0.0)  # uphill: no step helps


@pytest.mark.parametrize("beyond", [torch.nan, torch.inf, 0.5])
def test_line_search_stays_where_the_loss_is_a_number_and_falls(beyond):
    """The loss is (1 − θ)² to θ = 1.2 and `beyond` from there on: not a number, or a plateau higher up."""
    theta = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    model = torch.nn.Module()
    model.theta = theta

    def loss(_):
        return ((1 - theta) ** 2).sum() if theta.item() < 1.2 else torch.tensor(beyond)

    found = line_search(model, loss, [[torch.tensor([-1.0], dtype=torch.float64)]])
    assert found.step == pytest.approx(1, abs=1e-3) and found.decrease == pytest.approx(1, abs=1e-6)


def test_line_searches_recover_b_noise_of_the_quadratic():
    generator, model = torch.Generator().manual_seed(0), Quadratic()
    grad_hess_grad, trace_hess_cov = quadratic_truth()
    sizes, repetitions = [1, 2, 4, 8, 16], 6
    g = SCALES * model.theta.detach()
    decreases = np.array(
        [
            [
                line_search(model, true_loss, [[g + noise(size, generator).mean(0)] for _ in range(60)]).decrease
                for _ in range(repetitions)
            ]
            for size in sizes
        ]
    )
    fit = fit_line_searches(sizes, decreases)
    truth = trace_hess_cov / grad_hess_grad
    assert fit.determined and fit.low < truth < fit.high and fit.b_noise == pytest.approx(truth, rel=0.2)


def test_the_fits_interval_covers():
    rng, sizes, covered = np.random.default_rng(0), 2.0 ** np.arange(2, 10), 0
    exact = 3.0 / (1 + 50 / sizes)
    for _ in range(500):
        fit = fit_line_searches(sizes, exact[:, None] * (1 + 0.15 * rng.standard_normal((8, 5))))
        covered += fit.low <= 50 <= fit.high
    assert 0.92 <= covered / 500 <= 0.98


def test_the_fit_recovers_planted_values_and_says_when_it_cannot():
    sizes, rng = 2.0 ** np.arange(8), np.random.default_rng(0)
    wobble = 1 + 0.02 * rng.standard_normal((8, 3))
    fit = fit_line_searches(sizes, (2 / (1 + 10 / sizes))[:, None] * wobble)
    assert fit.b_noise == pytest.approx(10, rel=0.1) and fit.max_decrease == pytest.approx(2, rel=0.05)
    proportional = fit_line_searches(sizes, (1e-6 * sizes)[:, None] * wobble)
    assert not proportional.determined and proportional.high == math.inf and "largest batch, 128" in proportional.remark
    flat = fit_line_searches(sizes, np.ones(8)[:, None] * wobble)
    assert not flat.determined and flat.low == 0 and "smallest batch, 1" in flat.remark
    with pytest.raises(ValueError, match="no decrease at B = 1"):
        fit_line_searches(sizes, 0 * wobble)
    with pytest.raises(ValueError, match="3 batch sizes"):
        fit_line_searches(sizes[:2], wobble[:2])
    with pytest.raises(ValueError, match="repetitions"):
        fit_line_searches(sizes, wobble[:3])


def test_line_searches_name_what_is_wrong():
    model = nn.Linear(3, 1)
    mean = lambda model: model(torch.ones(2, 3)).square().mean()  # noqa: E731
    good = [torch.ones(1, 3), torch.ones(1)]
    for directions, words in (
        ([], "at least one direction"),
        ([good[:1]], r"a direction has shapes \[\(1, 3\)\], the parameters .* \[\(1, 3\), \(1,\)\]"),
        ([good, [good[0] * math.nan, good[1]]], "a direction holds values that aren't finite"),
    ):
        with pytest.raises(ValueError, match=words):
            line_search(model, mean, directions)
    with pytest.raises(ValueError, match="the loss at the present weights is nan"):
        line_search(model, lambda model: mean(model) * math.nan, [good])


@pytest.mark.parametrize(
    ("sizes", "decreases", "options", "words"),
    [
        ([0, 1, 2], [[0.1, 0.2]] * 3, {}, "batch sizes must be positive and finite, got 0"),
        ([-1, 1, 2], [[0.1, 0.2]] * 3, {}, "batch sizes must be positive and finite, got -1"),
        ([1, 2, 4], [[0.1, 0.2], [math.inf, 0.2], [0.1, 0.3]], {}, "a decrease at B = 2 isn't finite"),
        ([1, 2, 4], [[0.1, 0.2], [0.1, 0.2], [0.1, math.nan]], {}, "a decrease at B = 4 isn't finite"),
        ([1, 2, 4], [[0.1, 0.2], [0.15, 0.2], [0.1, 0.3]], {"confidence": 95}, "confidence must lie between 0 and 1"),
    ],
)
def test_fits_name_what_is_wrong(sizes, decreases, options, words):
    with pytest.raises(ValueError, match=words):
        fit_line_searches(sizes, decreases, **options)
