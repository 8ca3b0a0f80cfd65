r"""The unbiased pair (|G|², tr Σ) from any split of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar, overload

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

T = TypeVar("T")


class Moments(NamedTuple, Generic[T]):
    r"""Unbiased estimates of |G|² and tr Σ from one batch. Either may be negative, and stays so.

    `grad_sq_norm` is in (loss / parameter)²; `trace_cov` in the same times one example, so that Var Ḡ = Σ/B.
    """

    grad_sq_norm: T
    trace_cov: T


@overload
def gradient_moments(sq_norms: Tensor, sizes: Any, mean_sq_norm: Any) -> Moments[Tensor]: ...


@overload
def gradient_moments(sq_norms: Any, sizes: Any, mean_sq_norm: Tensor) -> Moments[Tensor]: ...


@overload
def gradient_moments(
    sq_norms: ArrayLike, sizes: ArrayLike, mean_sq_norm: ArrayLike
) -> Moments[NDArray[np.float64]]: ...


def gradient_moments(sq_norms: Any, sizes: Any, mean_sq_norm: Any) -> Moments[Any]:
    r"""Unbiased |G|² and tr Σ from k disjoint gradients taken at the same weights (App. A.1, generalised to any split).

    With G_i the mean gradient over b_i examples, B = Σ b_i, Ḡ = Σ b_i G_i / B and A = Σ b_i |G_i|² / B,

        tr Σ = B (A − |Ḡ|²) / (k − 1)        |G|² = (k |Ḡ|² − A) / (k − 1)

    Two halves, k micro-batches, k ranks and k = B single examples are all this formula.

    Args:
        sq_norms: |G_i|², shape (..., k).
        sizes: b_i > 0 in examples, shape (k,) or (..., k); they need not be equal.
        mean_sq_norm: |Ḡ|², shape (...): the squared norm of the size-weighted mean, not the mean of the squared norms.

    Returns:
        `Moments` of shape (...) in float64: tensors on the inputs' device where any input is a tensor (nothing is read
        back to the host), NumPy otherwise.

    Raises:
        ValueError: k < 2, shapes that don't fit, or a size that isn't positive (on an accelerator sizes aren't read).
    """
    tensors = [x for x in (sq_norms, mean_sq_norm, sizes) if isinstance(x, Tensor)]
    if tensors:
        device = tensors[0].device
        norms, weights, mean = (
            torch.as_tensor(x, dtype=torch.float64, device=device) for x in (sq_norms, sizes, mean_sq_norm)
        )
    else:
        norms, weights, mean = (np.asarray(x, dtype=np.float64) for x in (sq_norms, sizes, mean_sq_norm))
    _check_shapes(tuple(norms.shape), tuple(weights.shape), tuple(mean.shape))
    on_host = not isinstance(sizes, Tensor) or sizes.device.type == "cpu"
    if on_host and not np.all(np.asarray(sizes) > 0):
        raise ValueError(f"sizes must all be positive, got {sizes}: leave out the parts that saw no examples")

    k = norms.shape[-1]
    batch = weights.sum(-1)
    mean_of_squares = (weights * norms).sum(-1) / batch
    trace_cov = batch * (mean_of_squares - mean) / (k - 1)
    grad_sq_norm = (k * mean - mean_of_squares) / (k - 1)
    return Moments(grad_sq_norm, trace_cov)


def _check_shapes(norms: Sequence[int], sizes: Sequence[int], mean: Sequence[int]) -> None:
    if not norms:
        raise ValueError("sq_norms needs a last dimension that counts the gradients, got a single number")
    if norms[-1] < 2:
        raise ValueError(f"k = {norms[-1]} gradient: the noise needs at least 2 disjoint ones; split the batch")
    if tuple(sizes) not in (tuple(norms), tuple(norms[-1:])):
        raise ValueError(f"sizes of shape {tuple(sizes)} don't fit sq_norms of shape {tuple(norms)}")
    if tuple(mean) != tuple(norms[:-1]):
        raise ValueError(f"mean_sq_norm of shape {tuple(mean)} should be {tuple(norms[:-1])}, one per set of sq_norms")
