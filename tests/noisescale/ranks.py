"""Run a function on several gloo ranks and bring its results back."""

import multiprocessing
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _worker(rank: int, world: int, folder: str, function, arguments: tuple) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    torch.save(function(rank, world, *arguments), Path(folder) / f"{rank}.pt")
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def on_ranks(world: int, function, *arguments: Any) -> list[Any]:
    """[function(rank, world, *arguments) for each rank], each in a process."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        multiprocessing.set_forkserver_preload(["torch", "torch.distributed.fsdp", "noisescale"])
        mp.start_processes(_worker, (world, folder, function, arguments), nprocs=world, start_method="forkserver")
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(world)]
