r"""`fully_shard` and HSDP: whole gradients are seen before they are sharded, sharded norms are counted once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from noisescale.gradient_norms import norm


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


def refuse_mixed(model: nn.Module, ranks: int) -> None:
    """Raises ValueError where a gradient isn't averaged over the same `ranks` as all others, and by `fully_shard`."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor, Replicate, Shard

    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    outside = [n for n, p in trained.items() if not isinstance(p, DTensor)]
    if outside:
        raise ValueError(f"{', '.join(outside)}: outside fully_shard, which alone averages gradients over ranks")
    tensors = [p for p in trained.values() if isinstance(p, DTensor)]
    placed = {type(placement) for p in tensors for placement in p.placements}
    if not any(isinstance(module, FSDPModule) for module in model.modules()) or placed - {Shard, Replicate}:
        raise ValueError("tensor parallelism can't be measured: fully_shard alone must have sharded the model")
    sizes = {mesh: mesh.size() for mesh in {p.device_mesh for p in tensors}}
    if len(sizes) > 1 or set(sizes.values()) - {ranks}:
        meshes = " and ".join(f"{size} in {mesh}" for mesh, size in sizes.items())
        raise ValueError(
            f"the model is sharded over {meshes}, gradients are compared over {ranks} ranks: one mesh of them all is "
            "needed, or its ranks as process_group"
        )


def averaged(model: nn.Module, ranks: int) -> float:
    """What the sum over the ranks' gradients is divided by: their number, unless `set_gradient_divide_factor` was used.

    Raises:
        ValueError: not the same for all parameters.
    """
    from torch.distributed.fsdp import FSDPModule

    found: set[float] = set()
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
            for group in groups:
                if group is not None:
                    factor = getattr(group, "gradient_divide_factor", None)
                    found.add(float(ranks if factor is None else factor))
    if len(found) > 1:
        raise ValueError(f"set_gradient_divide_factor: gradients are divided by {sorted(found)}, one for all is needed")
    return found.pop() if found else ranks


def hook_unsharded(model: nn.Module, canonical: dict[str, str], hook: Callable[[str, Tensor], Any]) -> list[Any]:
    """Hook each whole parameter when it is first gathered, which is before the `fully_shard`-ed module around it runs.

    Not when its own module is called: a weight may be used without that.
    """
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    seen: set[int] = set()
    handles: list[Any] = []

    def see(prefix: str, module: nn.Module) -> None:
        for name, p in module.named_parameters(prefix):
            if id(p) not in seen and p.requires_grad and not isinstance(p, DTensor):
                seen.add(id(p))
                handles.append(hook(canonical[name], p))

    for prefix, module in model.named_modules():
        if isinstance(module, FSDPModule):
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
