"""Shares of a sweep as Ray tasks, on a Ray that is running or one that is started here.

What a task returns is never read: the records say what is finished. A worker that dies costs its share an attempt.
Where a Ray that was started here loses its node, the next round starts another.
"""

import logging
import os

from hydra.core.singleton import Singleton
from hydra.core.utils import setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from experiments.errors import UserError

PAUSE = 5.0


def run(
    hydra_context: HydraContext,
    config: DictConfig,
    task_function: TaskFunction,
    overrides: dict[int, list[str]],
    workers: int | None,
    gpus: int,
    address: str | None,
) -> None:
    """Every job of `overrides`, by number; returns when all have ended, well or not."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own 15 starves beside anybody else's work
    import ray
    from hydra_plugins.hydra_ray_launcher._launcher_util import launch_job_on_ray

    setup_globals()
    if not ray.is_initialized():
        _join(address, workers)
    _check_gpus(gpus)
    resources = DictConfig({"num_cpus": 1, "num_gpus": gpus, "max_retries": 0})
    tasks = []
    for number, job in overrides.items():
        composed = hydra_context.config_loader.load_sweep_config(config, job)
        with open_dict(composed):
            composed.hydra.job.id, composed.hydra.job.num = str(number), number
        tasks.append(launch_job_on_ray(hydra_context, resources, composed, task_function, Singleton.get_state()))
    ended, waiting, alive = [], tasks, True
    while waiting and alive:
        ended, waiting = ray.wait(tasks, num_returns=len(tasks), timeout=PAUSE, fetch_local=False)
        alive = any(node["Alive"] for node in ray.nodes())
    for task in ended:
        try:
            ray.get(task)
        except ray.exceptions.RayError as error:
            print(f"a Ray worker ended: {str(error).strip().splitlines()[-1]}", flush=True)
    if not alive:  # jobs would wait for it for ever
        print("Ray has lost its last node", flush=True)
        ray.shutdown()


def _check_gpus(gpus: int) -> None:
    """A task that asks for more than any node has would wait for ever."""
    import ray

    most = max((node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"]), default=0)
    if gpus > most:
        raise UserError(f"cluster.gpus={gpus}: no node of this Ray has more than {most:g}; allowed: up to that many")


def _join(address: str | None, workers: int | None) -> None:
    """The Ray at `address`, or one of `workers` processors that ends with this process."""
    import ray

    cpus = None if address else workers or len(os.sched_getaffinity(0))
    try:
        ray.init(
            address=address, num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
        )
    except ConnectionError as error:
        raise UserError(f"hydra.launcher.address={address}: {str(error).strip().splitlines()[0]}") from None
