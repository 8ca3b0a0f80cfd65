"""One run on several processes, a GPU each: every rank draws the same batch, and takes its share of the micro-batches.

Gradients are summed over ranks, the squared norms of all micro-batches are known to all, and rank 0 alone evaluates and
writes the record. So a run is the same whatever the number of ranks, up to the order of additions, and its id too.
`torchrun --nproc-per-node=4 -m experiments.cli.train hydra.mode=RUN device=cuda …` starts the ranks.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from experiments.config import RunConfig
from experiments.errors import UserError
from experiments.tasks.base import Stateful, Task
from experiments.training.record import RunRecord

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process's place among those that share the run."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def add_up(self, total: Tensor) -> None:
        """`total` becomes its sum over ranks, in place."""
        if self.world > 1:
            dist.all_reduce(total)

    def gather(self, own: list[Tensor], parts: int) -> list[Tensor]:
        """All micro-batches' squared norms, of which this rank has numbers rank, rank + world, …"""
        if self.world == 1:
            return own
        every = torch.zeros(parts, *own[0].shape, device=own[0].device, dtype=own[0].dtype)
        every[self.rank :: self.world] = torch.stack(own)
        dist.all_reduce(every)
        return list(every)

    def first_says(self, ask: Callable[[], T]) -> T:
        """What rank 0 gets for `ask()`, on every rank."""
        if self.world == 1:
            return ask()
        said = [ask() if self.first else None]
        dist.broadcast_object_list(said, src=0)
        return said[0]  # type: ignore[return-value]

    def checkpoint(self, record: RunRecord, device: torch.device) -> dict[str, Any] | None:
        """The record's checkpoint, read by every rank, if rank 0 can read it; `UserError` where another one can't."""
        state = record.load_checkpoint(device) if self.first else None
        if self.first_says(lambda: state is not None) and not self.first:
            state = record.load_checkpoint(device)
            if state is None:
                raise UserError(f"{record.folder}: rank {self.rank} can't read the checkpoint that rank 0 read")
        return state

    def check(self, run: RunConfig, task: Task) -> None:
        """`UserError` where the run cannot be shared."""
        parts = run.batch_size // run.micro_size
        if parts < self.world and self.world > 1:
            raise UserError(
                f"batch_size={run.batch_size} has {parts} micro-batches (micro_batch={run.micro_size}) for "
                f"{self.world} ranks; allowed: at least one for each"
            )
        if isinstance(task, Stateful) and self.world > 1:
            raise UserError(f"task={run.task.name} makes its batches by acting, which {self.world} ranks cannot share")


ALONE = Ranks()


def rank_count() -> int:
    """How many ranks torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def own_device(device: torch.device) -> torch.device:
    """Under torchrun `cuda` is the rank's own GPU."""
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if rank_count() > 1 and device.type == "cuda" else device


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """The ranks that torchrun started, until the block ends; alone without it."""
    if rank_count() == 1:
        yield ALONE
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
