"""The two classes that Hydra insists on finding under `hydra_plugins`: the sweeper, and a launcher that keeps this machine busy."""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from experiments.config import parse
from experiments.search import Point
from experiments.sweep import run_sweep


class BatchSizeSearch(Sweeper):
    """The learning-rate search over batch sizes, through whichever launcher is configured. A job is a share of the runs, `points=[[B,lr,seed],…]`."""

    def __init__(self) -> None:
        self.config: DictConfig | None = None
        self.launcher: Launcher | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            config=config, task_function=task_function, hydra_context=hydra_context
        )

    def sweep(self, arguments: list[str]) -> Any:
        assert self.config is not None and self.launcher is not None
        launcher, jobs = self.launcher, 0

        def launch(shares: list[list[Point]]) -> None:
            nonlocal jobs
            overrides = [[*arguments, f"points={_text(share)}"] for share in shares]
            launcher.launch(overrides, initial_job_idx=jobs)
            jobs += len(shares)

        run_sweep(parse(self.config), launch)


def _text(share: Sequence[Point]) -> str:
    return "[" + ",".join(f"[{p.batch_size},{p.lr!r},{p.seed}]" for p in share) + "]"


class LocalPool(Launcher):
    """As many single-thread processes as there are cores (or `workers`), which import torch once and take job after job.

    A worker that is killed takes only its job with it: the pool is renewed and the jobs that haven't run yet go on.
    """

    def __init__(self, workers: int | None) -> None:
        self.workers = workers or len(os.sched_getaffinity(0))

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        setup_globals()
        state = Singleton.get_state()
        waiting = {initial_job_idx + i: list(overrides) for i, overrides in enumerate(job_overrides)}
        returns: dict[int, JobReturn] = {}
        while waiting:
            pool = self._pool(min(self.workers, len(waiting)))
            try:
                futures = {
                    pool.submit(_job, i, overrides, self.hydra_context, self.config, self.task_function, state): i
                    for i, overrides in waiting.items()
                }
                broken = False
                for future, i in futures.items():
                    try:
                        returns[i] = future.result()
                        del waiting[i]
                    except BrokenProcessPool:
                        broken = True
                if broken:
                    # A job that was running when a worker died may be the one that kills workers: it isn't tried again here.
                    for i in list(waiting)[: self.workers]:
                        del waiting[i]
            except BaseException:
                for process in list((pool._processes or {}).values()):
                    process.terminate()
                raise
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        return [returns[i] for i in sorted(returns)]

    def _pool(self, workers: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_start_worker)


def _start_worker() -> None:
    """Ctrl-C is the driver's business."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _job(
    i: int,
    overrides: list[str],
    hydra_context: HydraContext,
    config: DictConfig,
    task_function: TaskFunction,
    state: dict[Any, Any],
) -> JobReturn:
    """One of Hydra's jobs, in a worker."""
    setup_globals()
    Singleton.set_state(state)
    composed = hydra_context.config_loader.load_sweep_config(config, overrides)
    with open_dict(composed):
        composed.hydra.job.id = f"{composed.hydra.job.name}_{i}"
        composed.hydra.job.num = i
    HydraConfig.instance().set_config(composed)
    return run_job(
        hydra_context=hydra_context,
        task_function=task_function,
        config=composed,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
