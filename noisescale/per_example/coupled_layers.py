r"""Layers that couple the examples of a batch, so that none has a gradient of its own."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """name → layer."""
    return {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}


def refuse_coupled(norms: Mapping[str, _BatchNorm]) -> None:
    """Raises ValueError where one of them takes the batch's own mean and variance, training or for want of others."""
    coupled = [name for name, norm in norms.items() if norm.training or norm.running_mean is None]
    if coupled:
        raise ValueError(
            f"{', '.join(coupled)}: BatchNorm couples the examples of a batch, so none has a gradient of its own; "
            "compare micro-batches instead, or put these layers in eval mode (with running statistics)"
        )
