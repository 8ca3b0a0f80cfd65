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
from torch.nn.grad import conv2d_weight

from noisescale.per_example.parameter_uses import Formed, Outer, Rows, Use, Whole

# Where the ways to form a convolution's gradients meet, as measured on CPUs:
NARROW = 32  # values in a patch
FEW = 150  # positions in an output

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
    """The weight's gradients (B, out, in / groups, kernel): formed, or as products where positions are few."""
    bias = Whole(g.flatten(2).sum(2))
    padding = layer.padding
    if layer.padding_mode != "zeros" or isinstance(padding, str):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x, padding = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode), (0,) * len(layer.kernel_size)
    shape = (layer.kernel_size, layer.stride, padding, layer.dilation)
    if isinstance(layer, nn.Conv1d):
        x, g = x[:, :, None], g[:, :, None]
        shape = tuple((first, *one) for first, one in zip((1, 1, 0, 1), shape, strict=True))
    kernel, stride, padding, dilation = shape

    def patches(x: Tensor, last: bool = False) -> Tensor:
        return _patches(F.pad(x, (padding[1],) * 2 + (padding[0],) * 2), kernel, stride, dilation, last)

    def from_patches(x: Tensor, g: Tensor) -> Tensor:
        u, v = (t.unflatten(1, (layer.groups, -1)) for t in (g.flatten(2), patches(x)))
        return _product(u, v.mT).flatten(1)

    def from_long_patches(x: Tensor, g: Tensor) -> Tensor:  # (b, out, kernel · in): copied in longer runs
        return _product(g.flatten(2), patches(x, last=True)).flatten(1)

    def from_groups(x: Tensor, g: Tensor) -> Tensor:  # one convolution with the examples as its groups
        size = (len(x) * layer.out_channels, layer.in_channels // layer.groups, *kernel)
        one, out = x.reshape(1, -1, *x.shape[2:]), g.reshape(1, -1, *g.shape[2:])
        return conv2d_weight(one, size, out, stride, padding, dilation, len(x) * layer.groups).reshape(len(x), -1)

    area, positions = kernel[0] * kernel[1], g[0, 0].numel()
    width = layer.in_channels * area
    if layer.groups == 1 and positions * (width + layer.out_channels) < width * layer.out_channels:
        return {"weight": Outer(g.flatten(2).transpose(1, 2), patches(x).transpose(1, 2)), "bias": bias}
    if x.is_cuda or area == 1 or width <= NARROW:
        return {"weight": Formed(x, g, from_patches), "bias": bias}
    if layer.groups == 1 and positions <= FEW:
        kernel_last = (layer.out_channels, area, layer.in_channels)
        return {"weight": Formed(x, g, from_long_patches, kernel_last), "bias": bias}
    return {"weight": Formed(x, g, from_groups), "bias": bias}


def layer_norm(layer: nn.LayerNorm, x: Tensor, g: Tensor) -> dict[str, Use]:
    return _scale(F.layer_norm(x, layer.normalized_shape, eps=layer.eps), g, len(layer.normalized_shape))


def rms_norm(layer: nn.RMSNorm, x: Tensor, g: Tensor) -> dict[str, Use]:
    return _scale(F.rms_norm(x, layer.normalized_shape, eps=layer.eps), g, len(layer.normalized_shape))


def group_norm(layer: nn.GroupNorm, x: Tensor, g: Tensor) -> dict[str, Use]:
    normalised = F.group_norm(x, layer.num_groups, eps=layer.eps)
    shape = (*g.shape[:2], -1)  # (B, channels) has no positions
    return {"weight": Whole((normalised * g).reshape(shape).sum(2)), "bias": Whole(g.reshape(shape).sum(2))}


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


def _product(u: Tensor, v: Tensor) -> Tensor:
    """u v, formed as vᵀ uᵀ where that has a multiple of 8 columns and u v hasn't: half as fast again on a CPU."""
    if v.shape[-1] % 8 and not u.shape[-2] % 8:
        return (v.mT @ u.mT).mT
    return u @ v


def _patches(x: Tensor, kernel: Any, stride: Any, dilation: Any, last: bool) -> Tensor:
    """(B, C · kernel, L): the patch of the input that each output position saw; (B, L, kernel · C) if `last`."""
    batch, channels, *size = x.shape
    x = x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    steps = x.stride()
    rows, columns = ((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(size, kernel, stride, dilation, strict=True))
    within = (steps[2] * dilation[0], steps[3] * dilation[1])
    across = (steps[2] * stride[0], steps[3] * stride[1])
    windows = torch.as_strided(x, (batch, channels, *kernel, rows, columns), (*steps[:2], *within, *across))
    if last:
        return windows.permute(0, 4, 5, 2, 3, 1).reshape(batch, rows * columns, -1)
    return windows.reshape(batch, -1, rows * columns)
