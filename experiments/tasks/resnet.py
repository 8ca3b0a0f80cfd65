"""Residual networks of any width and depth, with batch normalisation over ghost batches or group normalisation."""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from experiments.data.image_cache import channels_last

Norm = Literal["batch", "group"]
Count = Annotated[int, Field(gt=0)]
Stages = Annotated[tuple[Count, ...], Field(min_length=1)]


class GhostBatchNorm(nn.BatchNorm2d):
    """Batch normalisation whose statistics come from `size` consecutive examples at a time, also in evaluation.

    y = weight · (x − mean)/√(var + 1e-5) + bias; mean and variance are over a ghost batch and all places. A batch under
    `size` is one ghost batch, else `size` divides it (`ValueError`): the result doesn't depend on how a batch is cut
    into multiples of `size`. There are no running statistics: gradients that are only measured would move them, and
    they lag behind the weights.
    """

    def __init__(self, channels: int, size: int):
        super().__init__(channels, track_running_stats=False)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.size and len(x) % self.size:
            raise ValueError(
                f"{len(x)} examples cannot be cut into ghost batches of {self.size}; "
                "make batches and micro-batches multiples of it"
            )
        parts = [
            F.batch_norm(part, None, None, self.weight, self.bias, training=True, eps=self.eps)
            for part in x.split(self.size)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def in_words(
    width: int, blocks: Sequence[int], stem: int, bottleneck: bool, norm: Norm, ghost_batch: int, paper: str
) -> str:
    """The network with these arguments, and the paper's where it is another; a ResNet's number counts convolutions and
    the dense layer.
    """
    depth = (3 if bottleneck else 2) * sum(blocks) + 2
    ours = f"ResNet-{depth} of {width} channels, stem of stride {stem}"
    normalised = f"batch normalisation over {ghost_batch} images" if norm == "batch" else "group normalisation"
    return f"{ours}, {normalised}" + ("" if ours == paper else f" (the paper's: {paper})")


def norm_layer(norm: Norm, ghost_batch: int) -> Callable[[int], nn.Module]:
    """What makes a normalisation for a number of channels; groups are of four channels, at most 32 of them."""
    if norm == "batch":
        return lambda channels: GhostBatchNorm(channels, ghost_batch)
    return lambda channels: nn.GroupNorm(max(1, min(32, channels // 4)), channels)


class Block(nn.Module):
    """Two 3×3 convolutions, or with `bottleneck` 1×1, 3×3 and 1×1 to four times the channels, added to the input.

    Where the shape changes, the input goes through a 1×1 convolution first.
    """

    def __init__(self, inputs: int, channels: int, stride: int, bottleneck: bool, norm: Callable[[int], nn.Module]):
        super().__init__()
        self.outputs = 4 * channels if bottleneck else channels
        shapes = [(inputs, channels, 1, 1), (channels, channels, 3, stride), (channels, self.outputs, 1, 1)]
        if not bottleneck:
            shapes = [(inputs, channels, 3, stride), (channels, channels, 3, 1)]
        layers: list[nn.Module] = []
        for a, b, kernel, step in shapes:
            layers += [nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False), norm(b), nn.ReLU()]
        self.body = nn.Sequential(*layers[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != self.outputs:
            # Every `stride`-th place, then 1×1: with a stride and fewer than 8 channels oneDNN spoils memory (AVX2).
            thinned = nn.Identity() if stride == 1 else nn.AvgPool2d(1, stride)
            self.shortcut = nn.Sequential(thinned, nn.Conv2d(inputs, self.outputs, 1, bias=False), norm(self.outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """`blocks[i]` blocks of `width`·2^i channels, each stage after the first at half the resolution; then the mean.

    `stem` 1 or 2 is a 3×3 convolution of that stride; 4 is ImageNet's 7×7 of stride 2 with 3×3 pooling of stride 2.
    CIFAR's ResNet-32 is width 16, blocks (5, 5, 5), stem 1; ResNet-50 is width 64, blocks (3, 4, 6, 3), bottleneck,
    stem 4.
    """

    def __init__(
        self,
        width: int,
        blocks: Sequence[int],
        classes: int,
        stem: int,
        bottleneck: bool,
        norm: Callable[[int], nn.Module],
    ):
        super().__init__()
        first = nn.Conv2d(3, width, 7, 2, 3, bias=False) if stem == 4 else nn.Conv2d(3, width, 3, stem, 1, bias=False)
        layers: list[nn.Module] = [first, norm(width), nn.ReLU()]
        if stem == 4:
            layers.append(nn.MaxPool2d(3, 2, 1))
        channels = width
        for stage, count in enumerate(blocks):
            for number in range(count):
                block = Block(channels, width * 2**stage, 2 if stage and not number else 1, bottleneck, norm)
                layers.append(block)
                channels = block.outputs
        self.body = nn.Sequential(*layers)
        self.output = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes) of images (n, 3, height, width)."""
        return self.output(self.body(channels_last(images)).mean((2, 3)))
