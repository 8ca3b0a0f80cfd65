"""Measuring never changes training: what an extra forward or backward pass would touch is put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_passes = 0  # under way


def beside() -> bool:
    """Whether an extra pass is under way, which hooks that follow training must not take for training's."""
    return _passes > 0


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Restore the model's buffers (running statistics) and the random state of the CPU and the model's accelerators."""
    global _passes
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    tensors = [*model.parameters(), *(buffer for buffer, _ in buffers)]
    cuda = sorted({t.device.index for t in tensors if t.device.type == "cuda" and t.device.index is not None})
    _passes += 1
    try:
        with torch.random.fork_rng(devices=cuda):
            yield
    finally:
        _passes -= 1
        with torch.no_grad():
            for buffer, saved in buffers:
                buffer.copy_(saved)
