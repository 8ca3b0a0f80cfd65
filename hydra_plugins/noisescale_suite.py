"""The classes that Hydra insists on finding under `hydra_plugins`: the sweeper, and the launchers of local, Slurm and
Ray.
"""

import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from experiments.config import parse
from experiments.errors import UserError
from experiments.launch import ray_pool, slurm
from experiments.launch.local_pool import Pool
from experiments.sweep.driver import run_sweep, say
from experiments.sweep.search import Point


class BatchSizeSearch(Sweeper):
    """The learning-rate search over batch sizes, through whichever launcher is configured. A job is a share of the
    runs, `points=[[B,lr,seed],…]`.
    """

    def __init__(self) -> None:
        self.config: DictConfig | None = None
        self.launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            config=config, task_function=task_function, hydra_context=hydra_context
        )
        if not isinstance(self.launcher, LocalPool | SlurmArray | RayPool):
            choice = config.hydra.runtime.choices["hydra/launcher"]
            raise UserError(f"hydra/launcher={choice}: say where runs go by cluster=local, slurm or ray")

    def sweep(self, arguments: list[str]) -> Any:
        assert self.config is not None and self.launcher is not None
        launcher, jobs = self.launcher, 0

        def launch(shares: list[list[Point]]) -> None:
            nonlocal jobs
            overrides = [[*arguments, f"points={_text(share)}"] for share in shares]
            launcher.launch(overrides, initial_job_idx=jobs)
            jobs += len(shares)

        suite = parse(self.config)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` and `scancel` stop it as Ctrl-C does
        with ExitStack() as stack:
            if isinstance(launcher, LocalPool):
                stack.callback(launcher.pool.close)
            if isinstance(launcher, SlurmArray) and not suite.dry:
                stack.enter_context(slurm.only_driver(suite.records))
                launcher.wait_for_earlier()
            run_sweep(suite, launch)


def _text(share: Sequence[Point]) -> str:
    return "[" + ",".join(f"[{p.batch_size},{p.lr!r},{p.seed}]" for p in share) + "]"


def _checked(workers: Any) -> int | None:
    if workers is None or (isinstance(workers, int) and workers > 0):
        return workers
    raise UserError(f"hydra.launcher.workers={workers}: allowed: a whole number from 1, or null for every core")


class LocalPool(Launcher):
    """As many single-thread processes as there are cores, or `workers`."""

    def __init__(self, workers: int | None) -> None:
        self.workers = workers

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        setup_globals()
        workers = _checked(self.workers) or len(os.sched_getaffinity(0))
        self.pool = Pool(workers, hydra_context, config, task_function)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        returns = self.pool.run({initial_job_idx + i: list(overrides) for i, overrides in enumerate(job_overrides)})
        return [returns[i] for i in sorted(returns)]


class SlurmArray(Launcher):
    """Arrays of jobs through Hydra's submitit launcher, whose options these are."""

    def __init__(self, **params: Any) -> None:
        self.params = {key: OmegaConf.to_object(v) if OmegaConf.is_config(v) else v for key, v in params.items()}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from hydra_plugins.hydra_submitit_launcher.submitit_launcher import SlurmLauncher

        self.job = SlurmLauncher(**self.params)
        self.job.setup(hydra_context=hydra_context, task_function=task_function, config=config)
        self.params["name"] = slurm.job_name(parse(config))

    def wait_for_earlier(self) -> None:
        """Jobs of this sweep outlive a driver that was killed; what they train isn't asked for again."""
        if ids := slurm.queued(self.params["name"]):
            say(f"jobs of this sweep are under way ({', '.join(ids)}): waiting for them")
            with slurm.seen_through(self.params["name"]):
                pass

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        with slurm.seen_through(self.params["name"]):
            slurm.submit(self.job, self.params, job_overrides, initial_job_idx)
        return []


class RayPool(Launcher):
    """Ray tasks, through Hydra's Ray launcher."""

    def __init__(self, workers: int | None, gpus: int, address: str | None) -> None:
        self.workers, self.gpus, self.address = workers, gpus, address

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.workers = _checked(self.workers)
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        jobs = {initial_job_idx + i: list(overrides) for i, overrides in enumerate(job_overrides)}
        ray_pool.run(self.hydra_context, self.config, self.task_function, jobs, self.workers, self.gpus, self.address)
        return []
