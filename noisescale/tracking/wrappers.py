r"""What stands around a model: DDP, `torch.compile`, and the ranks that its gradients are averaged over."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel


def bare(model: nn.Module) -> nn.Module:
    """The model inside DDP, DataParallel and `torch.compile`, in whatever order they were put around it."""
    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod
        else:
            return model


def find_ddp(model: nn.Module) -> DistributedDataParallel | None:
    """The DDP around the model or somewhere in it.

    Raises:
        ValueError: parameters outside it, whose gradients aren't averaged.
    """
    found = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
    if not found:
        return None
    inside = {id(p) for ddp in found for p in ddp.parameters()}
    outside = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in inside]
    if outside:
        raise ValueError(
            f"{', '.join(outside)}: outside the model's DDP, whose gradients alone are averaged over ranks"
        )
    return found[0]


def refuse_unknown_ranks() -> None:
    """Where the tracker knows of one rank only. Raises ValueError where there are more."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise ValueError(
            f"torch.distributed runs on {dist.get_world_size()} ranks, but neither DDP nor fully_shard is found in the "
            "model: give NoiseTracker the DDP model, not the module inside; or process_group, the ranks whose "
            "gradients you average, which may be this one alone"
        )


def refuse_join(ddp: DistributedDataParallel) -> None:
    """Raises ValueError within `ddp.join()`: ranks that have ended add up DDP's numbers only, not a tracker's."""
    join = getattr(ddp, "_join_config", None)
    if join is not None and join.enable and not join.throw_on_early_termination:
        raise ValueError(
            "DDP.join() lets ranks take different numbers of steps, which can't be measured: give it "
            "throw_on_early_termination=True, or all ranks equally many batches"
        )
