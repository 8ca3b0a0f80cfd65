r"""`fully_shard` and HSDP: whole gradients are seen before they are sharded, sharded norms are counted once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from noisescale.sheet import norm


def is_sharded(model: nn.Module) -> bool:
    """Whether `fully_shard` was applied: parameters are DTensors."""
    if not (dist.is_available() and dist.is_initialized()):
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(p, DTensor) for p in model.parameters())


def refuse_fsdp1(model: nn.Module) -> None:
    """Raises ValueError where `FullyShardedDataParallel` is found: its flat parameters hide the gradients."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    from torch.distributed.fsdp import FullyShardedDataParallel

    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise ValueError("FullyShardedDataParallel (FSDP1) can't be measured: shard with fully_shard (FSDP2) instead")


def hook_unsharded(model: nn.Module, canonical: dict[str, str], hook: Callable[[str, Tensor], Any]) -> list[Any]:
    """Hook each whole parameter when its module is first called, which is when `fully_shard` has gathered it."""
    seen: set[int] = set()
    handles: list[Any] = []

    def see(prefix: str, module: nn.Module) -> None:
        for name, p in module.named_parameters(prefix, recurse=False):
            if id(p) not in seen and p.requires_grad:
                seen.add(id(p))
                handles.append(hook(canonical[name], p))

    for prefix, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda m, _, prefix=prefix: see(prefix, m)))
    return handles


def norm_of_shard(gradient: Tensor) -> Tensor:
    r"""|local shard| / √(copies): the squares of it, added over all ranks, are the whole gradient's squared norm."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Replicate, Shard

    assert isinstance(gradient, DTensor)
    copies = 1
    for size, placement in zip(gradient.device_mesh.shape, gradient.placements, strict=True):
        if isinstance(placement, Replicate):
            copies *= size
        elif not isinstance(placement, Shard):
            raise ValueError(f"a gradient placed as {placement} is neither sharded nor replicated")
    return norm(gradient.to_local()) / copies**0.5
