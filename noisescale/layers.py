r"""What each known layer's parameters are used for: rules from (layer, input, dL/d output) to `Use`s by parameter name.

Every rule is exact. Inputs and output gradients have the examples first; positions in between are summed over, since an
example's gradient is that of all its positions together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from noisescale.uses import Outer, Rows, Use, Whole

Rule = Callable[[Any, Tensor, Tensor], dict[str, Use]]


def linear(layer: nn.Linear, x: Tensor, g: Tensor) -> dict[str, Use]:
    u, v = _positions(g), _positions(x)
    return {"weight": Outer(u, v), "bias": Whole(u.sum(1))}


def embedding(layer: nn.Embedding, ids: Tensor, g: Tensor) -> dict[str, Use]:
    ids, g = ids.reshape(len(ids), -1), _positions(g)
    if layer.padding_idx is not None:
        g = g * (ids != layer.padding_idx)[..., None]
    return {"weight": Rows(ids, g, layer.num_embeddings)}


def convolution(layer: nn.Conv1d | nn.Conv2d, x: Tensor, g: Tensor) -> dict[str, Use]:
    """The input's patches against the output's gradient, a product for each group of channels."""
    patches = _patches(layer, x).unflatten(1, (layer.groups, -1))
    u = g.flatten(2).unflatten(1, (layer.groups, -1))
    weight = u @ patches.transpose(2, 3)
    return {"weight": Whole(weight.flatten(1)), "bias": Whole(g.flatten(2).sum(2))}


def layer_norm(layer: nn.LayerNorm, x: Tensor, g: Tensor) -> dict[str, Use]:
    return _scale(F.layer_norm(x, layer.normalized_shape, eps=layer.eps), g, len(layer.normalized_shape))


def rms_norm(layer: nn.RMSNorm, x: Tensor, g: Tensor) -> dict[str, Use]:
    return _scale(F.rms_norm(x, layer.normalized_shape, eps=layer.eps), g, len(layer.normalized_shape))


def group_norm(layer: nn.GroupNorm, x: Tensor, g: Tensor) -> dict[str, Use]:
    normalised = F.group_norm(x, layer.num_groups, eps=layer.eps)
    return {"weight": Whole((normalised * g).flatten(2).sum(2)), "bias": Whole(g.flatten(2).sum(2))}


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.Embedding: embedding,
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.LayerNorm: layer_norm,
    nn.RMSNorm: rms_norm,
    nn.GroupNorm: group_norm,
}


def _positions(x: Tensor) -> Tensor:
    """(B, …, width) → (B, T, width)."""
    return x.reshape(len(x), -1, x.shape[-1])


def _scale(normalised: Tensor, g: Tensor, dimensions: int) -> dict[str, Use]:
    shape = (len(g), -1, g.shape[-dimensions:].numel())
    return {"weight": Whole((normalised * g).reshape(shape).sum(1)), "bias": Whole(g.reshape(shape).sum(1))}


def _patches(layer: nn.Conv1d | nn.Conv2d, x: Tensor) -> Tensor:
    """(B, C · kernel, L): the patch of the input that each output position saw."""
    around = layer._reversed_padding_repeated_twice
    if layer.padding_mode != "zeros":
        x = F.pad(x, around, mode=layer.padding_mode)
    elif any(around):
        x = F.pad(x, around)
    if layer.kernel_size == (1,) * len(layer.kernel_size):
        return x[(..., *(slice(None, None, s) for s in layer.stride))].flatten(2)
    kernel, stride, dilation = (
        (1, *t) if isinstance(layer, nn.Conv1d) else t for t in (layer.kernel_size, layer.stride, layer.dilation)
    )
    x = x[:, :, None] if isinstance(layer, nn.Conv1d) else x
    return _windows(x, kernel, stride, dilation)


def _windows(x: Tensor, kernel: Any, stride: Any, dilation: Any) -> Tensor:
    batch, channels, *size = x.shape
    x = x.contiguous()
    steps = x.stride()
    rows, columns = ((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(size, kernel, stride, dilation, strict=True))
    within = (steps[2] * dilation[0], steps[3] * dilation[1])
    across = (steps[2] * stride[0], steps[3] * stride[1])
    windows = torch.as_strided(x, (batch, channels, *kernel, rows, columns), (*steps[:2], *within, *across))
    return windows.reshape(batch, channels * kernel[0] * kernel[1], rows * columns)
