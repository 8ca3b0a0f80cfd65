r"""Extra gradients of a batch, taken beside training: of every example by `vmap`, or of a few parts in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from noisescale.gradient_norms import norm
from noisescale.per_example.coupled_layers import batch_norms, refuse_coupled
from noisescale.side_effects import undisturbed

Loss = Callable[[Any, Any], Tensor]


class Measured(NamedTuple):
    """By parameter name: |G_i|², shape (k,), and |Ḡ|² of the size-weighted mean; sizes of the k parts."""

    sq_norms: dict[str, Tensor]
    mean_sq_norm: dict[str, Tensor]
    sizes: list[int]


def leading(batch: Any) -> int:
    """Examples in a batch: the common leading dimension of its tensors. Raises ValueError where there is none."""
    sizes = {len(leaf) if leaf.dim() else 0 for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor)}
    if not sizes:
        raise ValueError(
            f"no tensors found in the batch, a {type(batch).__name__}: tuples, lists and dicts of them are looked into "
            "(dict(batch) where it is like one)"
        )
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"the batch's tensors have leading dimensions {sorted(sizes)}: one, the examples, is expected")
    return sizes.pop()


def split(batch: Any, size: int) -> Iterator[Any]:
    """The batch in pieces of `size` examples, the last one maybe smaller."""
    for start in range(0, leading(batch), size):
        yield pytree.tree_map(lambda leaf, s=start: leaf[s : s + size] if isinstance(leaf, Tensor) else leaf, batch)


def per_example_sq_norms(model: nn.Module, loss: Loss, batch: Any, chunk: int = 32) -> Measured:
    r"""|G_i|² of every example i by `vmap(grad)`, `chunk` at a time: exact for any model that treats them apart.

    With b_i = 1 they are what `gradient_moments` takes (App. A.1 with single examples).

    Training isn't touched: `.grad`, buffers and random state stay as they were. Dropout draws anew for every example.
    Recurrent layers don't go through `vmap`; a model with one gets a backward pass for each example.

    Args:
        model: parameters that require a gradient are measured.
        loss: `loss(model, batch)`, the mean over the batch's examples; it is called with one example at a time.
        batch: tensors, or any nesting of tuples, lists and dicts of them, examples first.
        chunk: examples whose gradients are held in memory together, at least 1.

    Returns:
        `Measured`, by parameter name; k is the number of examples.

    Raises:
        ValueError: BatchNorm that takes the batch's statistics, by name: it couples the examples, so none has a
            gradient of its own; `chunk` below 1; no parameter that requires a gradient, or a batch without tensors.
    """
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1 example, got {chunk}")
    refuse_coupled(batch_norms(model))
    if any(isinstance(m, nn.RNNBase) for m in model.modules()):
        return part_sq_norms(model, loss, batch, leading(batch))
    named = _trained(model)
    holder = _Holder(model, loss)

    def one(parameters: dict[str, Tensor], example: Any) -> Tensor:
        tensors = pytree.tree_map(lambda leaf: leaf[None] if isinstance(leaf, Tensor) else leaf, example)
        return functional_call(holder, {f"model.{n}": p for n, p in parameters.items()}, (tensors,))

    dimensions = pytree.tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, batch)
    each = vmap(grad(one), in_dims=(None, dimensions), randomness="different")
    detached = {n: p.detach() for n, p in named.items()}
    norms: dict[str, list[Tensor]] = {n: [] for n in named}
    sums = {n: torch.zeros_like(p, memory_format=torch.preserve_format) for n, p in detached.items()}
    size = leading(batch)
    with undisturbed(model), sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no rule for vmap
        for piece in split(batch, chunk):
            for n, g in each(detached, piece).items():
                norms[n].append(torch.linalg.vector_norm(g.flatten(1), dim=1))
                sums[n] += g.sum(0)
    squares = {n: torch.cat(rows).double() ** 2 for n, rows in norms.items()}
    return Measured(squares, {n: (norm(s).double() / size) ** 2 for n, s in sums.items()}, [1] * size)


def part_sq_norms(model: nn.Module, loss: Loss, batch: Any, parts: int) -> Measured:
    """|G_i|² of `parts` pieces of the batch, one backward pass each, beside training as in `per_example_sq_norms`."""
    named = _trained(model)
    size = leading(batch)
    squares: dict[str, list[Tensor]] = {n: [] for n in named}
    sums: Sequence[Tensor] = [torch.zeros_like(p) for p in named.values()]
    sizes = []
    with undisturbed(model):
        for piece in split(batch, -(-size // parts)):
            sizes.append(leading(piece))
            found = torch.autograd.grad(
                loss(model, piece), list(named.values()), allow_unused=True, materialize_grads=True
            )
            for n, g, total in zip(named, found, sums, strict=True):
                squares[n].append(norm(g).double() ** 2)
                total.add_(g, alpha=sizes[-1] / size)
    means = {n: norm(total).double() ** 2 for n, total in zip(named, sums, strict=True)}
    return Measured({n: torch.stack(rows) for n, rows in squares.items()}, means, sizes)


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if not named:
        raise ValueError("the model has no parameter that requires a gradient")
    return named


class _Holder(nn.Module):
    """`functional_call` replaces parameters of a module; this one's forward is the whole loss."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Any) -> Tensor:
        return self._loss(self.model, batch)
