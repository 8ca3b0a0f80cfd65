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
def gradient_moments(sq_norms: Tensor, sizes: Any, mean_sq_norm: Any, weights: Any = None) -> Moments[Tensor]: ...


@overload
def gradient_moments(sq_norms: Any, sizes: Any, mean_sq_norm: Tensor, weights: Any = None) -> Moments[Tensor]: ...


@overload
def gradient_moments(
    sq_norms: ArrayLike, sizes: ArrayLike, mean_sq_norm: ArrayLike, weights: ArrayLike | None = None
) -> Moments[NDArray[np.float64]]: ...


def gradient_moments(sq_norms: Any, sizes: Any, mean_sq_norm: Any, weights: Any = None) -> Moments[Any]:
    r"""Unbiased |G|² and tr Σ from k disjoint gradients taken at the same weights (App. A.1, generalised to any split).

    With G_i the mean gradient over b_i examples, B = Σ b_i, Ḡ = Σ b_i G_i / B and A = Σ b_i |G_i|² / B,

        tr Σ = B (A − |Ḡ|²) / (k − 1)        |G|² = (k |Ḡ|² − A) / (k − 1)

    Two halves, k micro-batches, k ranks and k = B single examples are all this formula. With weights w_i, Σ w_i = 1, it
    is Ḡ = Σ w_i G_i and A = Σ w_i |G_i|², as where ranks or micro-batches of unequal size count the same; then

        tr Σ = (A − |Ḡ|²) / Σ w_i (1 − w_i) / b_i        |G|² = |Ḡ|² − tr Σ · Σ w_i² / b_i

    Args:
        sq_norms: |G_i|², shape (..., k).
        sizes: b_i > 0 in examples, shape (k,) or (..., k); they need not be equal.
        mean_sq_norm: |Ḡ|², shape (...): the squared norm of the weighted mean, not the mean of the squared norms.
        weights: w_i > 0, shape (k,) or (..., k), of any scale; b_i by default.

    Returns:
        `Moments` of shape (...) in float64: tensors on the inputs' device where any input is a tensor (nothing is read
        back to the host), NumPy otherwise.

    Raises:
        ValueError: k < 2, shapes that don't fit, or a size that isn't positive (on an accelerator sizes aren't read).
    """
    weights = sizes if weights is None else weights
    tensors = [x for x in (sq_norms, mean_sq_norm, sizes, weights) if isinstance(x, Tensor)]
    norms, mean, b, w = (
        torch.as_tensor(x, dtype=torch.float64, device=tensors[0].device)
        if tensors
        else np.asarray(x, dtype=np.float64)
        for x in (sq_norms, mean_sq_norm, sizes, weights)
    )
    _check_shapes(tuple(norms.shape), tuple(mean.shape), sizes=tuple(b.shape), weights=tuple(w.shape))
    for name, given in (("sizes", sizes), ("weights", weights)):
        on_host = not isinstance(given, Tensor) or given.device.type == "cpu"
        if on_host and not np.all(np.asarray(given) > 0):
            raise ValueError(f"{name} must all be positive, got {given}: leave out the parts that saw no examples")
    w = w / w.sum(-1)[..., None]
    return from_sums((w * norms).sum(-1), mean, (w / b).sum(-1), (w * w / b).sum(-1))


def from_sums(mean_of_squares: T, mean_sq_norm: T, noise_of_parts: Any, noise_of_mean: Any) -> Moments[T]:
    r"""The same pair from A = Σ w_i |G_i|², |Ḡ|², Σ w_i / b_i and Σ w_i² / b_i, which add up over ranks.

    E[A] = |G|² + tr Σ · Σ w_i / b_i and E|Ḡ|² = |G|² + tr Σ · Σ w_i² / b_i: two equations, solved.
    """
    a: Any = mean_of_squares
    m: Any = mean_sq_norm
    trace_cov = (a - m) / (noise_of_parts - noise_of_mean)
    return Moments(m - noise_of_mean * trace_cov, trace_cov)


def _check_shapes(norms: Sequence[int], mean: Sequence[int], **others: Sequence[int]) -> None:
    if not norms:
        raise ValueError("sq_norms needs a last dimension that counts the gradients, got a single number")
    if norms[-1] < 2:
        raise ValueError(f"k = {norms[-1]} gradient: the noise needs at least 2 disjoint ones; split the batch")
    for name, shape in others.items():
        if tuple(shape) not in (tuple(norms), tuple(norms[-1:])):
            raise ValueError(f"{name} of shape {tuple(shape)} don't fit sq_norms of shape {tuple(norms)}")
    if tuple(mean) != tuple(norms[:-1]):
        raise ValueError(f"mean_sq_norm of shape {tuple(mean)} should be {tuple(norms[:-1])}, one per set of sq_norms")
