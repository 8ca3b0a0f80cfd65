r"""B_noise = tr(HΣ) / GᵀHG (eq. 2.8) by Hessian-vector products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from noisescale.per_example.vmap import leading
from noisescale.side_effects import undisturbed

Loss = Callable[[nn.Module, Any], Tensor]


class Curvature(NamedTuple):
    r"""Unbiased estimates of GᵀHG and tr(HΣ) from three batches, 0-dim float64 tensors; either may be negative.

    `grad_hess_grad` is in loss per unit of squared step, `trace_hess_cov` in the same times one example. Feed many of
    them to `ratio_of_means(trace_hess_cov, grad_hess_grad)` (independent triples) or to a `MomentAverage` (one a step).
    """

    grad_hess_grad: Tensor
    trace_hess_cov: Tensor


def hessian_noise(
    model: nn.Module, loss: Loss, batches: tuple[Any, Any, Any], sizes: tuple[int, int] | None = None
) -> Curvature:
    r"""GᵀHG and tr(HΣ), whose ratio is B_noise (eq. 2.8), from two Hessian-vector products on a third batch.

        E[G₁ᵀ H₃ G₂] = GᵀHG        E[(G₁ − G₂)ᵀ H₃ (G₁ − G₂)] = (1/b₁ + 1/b₂) tr(HΣ)

    Needs a loss that can be differentiated twice: attention runs on its plain kernel and recurrent layers without cuDNN
    meanwhile. Gradients in `.grad`, buffers and random state stay as they were.

    Args:
        model: its parameters with `requires_grad` are differentiated.
        loss: `loss(model, batch)`, a scalar: the mean over the batch's examples.
        batches: three independent batches in whatever form `loss` takes.
        sizes: examples in the first two; by default the leading dimension that their tensors have in common.

    Raises:
        ValueError: a size that can't be read off or isn't positive, or no parameter to differentiate.
    """
    b1, b2 = sizes if sizes is not None else (_size(batches[0]), _size(batches[1]))
    if min(b1, b2) < 1:
        raise ValueError(f"sizes must be positive, got {(b1, b2)}")
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameter that requires a gradient")
    cudnn_off = torch.backends.cudnn.flags(enabled=False) if parameters[0].is_cuda else nullcontext()
    with undisturbed(model), sdpa_kernel(SDPBackend.MATH), cudnn_off:
        first = _gradient(loss(model, batches[0]), parameters)
        second = _gradient(loss(model, batches[1]), parameters)
        slope = torch.autograd.grad(
            loss(model, batches[2]), parameters, create_graph=True, allow_unused=True, materialize_grads=True
        )
        h_first = _hessian_product(slope, parameters, first, retain_graph=True)
        h_second = _hessian_product(slope, parameters, second, retain_graph=False)
    cross = _dot(first, h_second)
    difference = _dot(first, h_first) - cross - _dot(second, h_first) + _dot(second, h_second)
    return Curvature(cross, difference / (1 / b1 + 1 / b2))


def _size(batch: Any) -> int:
    try:
        return leading(batch)
    except ValueError as error:
        raise ValueError(f"{error}; or give sizes=(b1, b2)") from None


def _gradient(loss: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)


def _hessian_product(
    slope: Sequence[Tensor], parameters: Sequence[Tensor], vector: Sequence[Tensor], retain_graph: bool
) -> tuple[Tensor, ...]:
    curved = [(s, v) for s, v in zip(slope, vector, strict=True) if s.requires_grad]
    if not curved:
        return tuple(torch.zeros_like(v) for v in vector)
    outputs, weights = zip(*curved, strict=True)
    return torch.autograd.grad(
        outputs, parameters, weights, retain_graph=retain_graph, allow_unused=True, materialize_grads=True
    )


def _dot(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    products = [(_reals(a) * _reals(b)).sum() for a, b in zip(left, right, strict=True)]
    return torch.stack(products).sum()


def _reals(x: Tensor) -> Tensor:
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).double()
