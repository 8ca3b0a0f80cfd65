"""Jobs of Hydra's on this machine: single-thread processes that import torch once and take job after job."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

import cloudpickle
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


class Pool:
    """Workers that stay from round to round of a sweep, and end with the process that owns them."""

    def __init__(self, workers: int, hydra_context: HydraContext, config: DictConfig, task_function: TaskFunction):
        self.workers = workers
        self._shared = cloudpickle.dumps((Singleton.get_state(), hydra_context, config, task_function))
        self._executor: ProcessPoolExecutor | None = None

    def run(self, jobs: Mapping[int, list[str]]) -> dict[int, JobReturn]:
        """The jobs' returns by number; `jobs` holds their overrides.

        A worker that is killed takes only its job with it: the pool is renewed and the jobs that haven't run yet go on.
        Which of the jobs under way it was can't be known, so none of them is tried again here; the search asks again
        for what isn't finished.
        """
        waiting, returns = dict(jobs), {}
        while waiting:
            executor = self._executor = self._executor or self._start()
            try:
                futures = {i: executor.submit(_run_job, i, overrides) for i, overrides in waiting.items()}
                wait(futures.values(), return_when=FIRST_EXCEPTION)
                for i, future in futures.items():
                    if future.done() and not isinstance(future.exception(), BrokenProcessPool):
                        returns[i] = future.result()
                        _ = returns[i].return_value  # raises what the job raised
                        del waiting[i]
            except BaseException:
                self._stop(executor)
                raise
            if waiting:
                self._stop(executor)
                for i in list(waiting)[: self.workers]:
                    del waiting[i]
        return returns

    def close(self) -> None:
        """End the workers; left to the interpreter's exit, that finds its pipes closed."""
        if self._executor is not None:
            self._executor.shutdown()

    def _start(self) -> ProcessPoolExecutor:
        spawn = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.workers, spawn, initializer=_start_worker, initargs=(self._shared,))

    def _stop(self, executor: ProcessPoolExecutor) -> None:
        for process in list((executor._processes or {}).values()):
            process.terminate()
        executor.shutdown(wait=True, cancel_futures=True)
        self._executor = None


_shared: tuple[HydraContext, DictConfig, TaskFunction] | None = None


def _start_worker(shared: bytes) -> None:
    """Import everything once. Ctrl-C is the driver's business; one that is killed takes its workers with it."""
    global _shared
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    setup_globals()
    state, *rest = cloudpickle.loads(shared)
    Singleton.set_state(state)
    _shared = tuple(rest)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run_job(i: int, overrides: list[str]) -> JobReturn:
    assert _shared is not None
    hydra_context, config, task_function = _shared
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
