"""Environment steps per second of the bare vector environment and of A2C on Pong, and how training's time splits:
`python benchmarks/atari.py [environments ...]`; with `pair [environments]`, of two processes at once.

One thread, by default 8 to 256 environments. Times are CPU seconds of the process, all its threads together, so that
other jobs on the machine matter little; on an idle machine they are wall seconds. A step is 4 frames. `bare` takes
random actions, `training` is batch, loss, backward and RMSProp at B = 5 environments; its shares are the game, the
policy that picks actions, and learning. Stepping one half of the environments while the policy looks at the other
could take at most the smaller of the first two shares out of a run, on a core that a second run would fill; a run that
has the machine to itself takes `threads=2`, which steps the environments on both cores.
"""

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from experiments.tasks.rl.a2c import A2CConfig, A2CTask
from experiments.tasks.rl.envs import AtariEnvs, Step
from experiments.training.tensorflow_rmsprop import RMSpropTF

SECONDS = 2.0


class Timed(AtariEnvs):
    """Knows how long its steps took."""

    seconds = 0.0

    def step(self, actions: torch.Tensor) -> Step:
        started = time.process_time()
        step = super().step(actions)
        self.seconds += time.process_time() - started
        return step


class TimedTask(A2CTask):
    """A2C on `Timed` environments."""

    def make_envs(self, count: int) -> Timed:
        self.envs = Timed(self.config.env_id, count)
        return self.envs


def bare(count: int) -> float:
    """Steps per second of random play."""
    envs, rng = AtariEnvs("pong", count), np.random.default_rng(0)
    envs.reset(np.arange(count, dtype=np.int32))
    actions = [torch.from_numpy(rng.integers(envs.actions, size=count)) for _ in range(64)]
    steps, started = 0, time.process_time()
    while time.process_time() - started < SECONDS:
        envs.step(actions[steps % 64])
        steps += 1
    return steps * count / (time.process_time() - started)


def training(count: int, network: str) -> tuple[float, float, float, float]:
    """Steps per second, and the shares of the game, of acting and of learning."""
    torch.set_num_threads(1)
    task = TimedTask(A2CConfig("pong", "pong", network=network, random_start=20), 0, torch.device("cpu"))  # type: ignore[arg-type]
    optimizer = RMSpropTF(list(task.model.parameters()), lr=1e-4, alpha=0.99, eps=1e-5)
    generator = torch.Generator().manual_seed(0)

    def one() -> tuple[float, float]:
        started = time.process_time()
        batch = task.batch(count, generator)
        collected = time.process_time()
        optimizer.zero_grad()
        task.loss(batch).backward()
        optimizer.step()
        return collected - started, time.process_time() - collected

    one()
    task.envs.seconds, collect, learn, batches = 0.0, 0.0, 0.0, 0
    while collect + learn < SECONDS:
        times = one()
        collect, learn, batches = collect + times[0], learn + times[1], batches + 1
    total, game = collect + learn, task.envs.seconds
    return batches * count * 5 / total, game / total, (collect - game) / total, learn / total


def pair(count: int) -> None:
    """Two trainings at once, each a process with one thread."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        for network in ("small", "nature"):
            rates = [rate for rate, *_ in pool.map(training, [count] * 2, [network] * 2)]
            print(f"{count} environments, {network}: {' + '.join(f'{rate:,.0f}' for rate in rates)} steps/s")


def main(counts: list[int]) -> None:
    torch.set_num_threads(1)
    print(f"{'':12}{'bare':>10}   {'training, network of 2013':38}{'training, network of 2015'}")
    split = f"{'steps/s':>9}{'game':>7}{'acting':>8}{'learning':>10}"
    print(f"{'environments':12}{'steps/s':>10}{split}    {split}")
    for count in counts:
        print(f"{count:12}{bare(count):>10,.0f}", end="", flush=True)
        for network in ("small", "nature"):
            rate, game, acting, learning = training(count, network)
            print(f"{rate:>9,.0f}{game:>7.0%}{acting:>8.0%}{learning:>10.0%}    ", end="", flush=True)
        print()


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:] if argument != "pair"]
    if "pair" in sys.argv[1:]:
        pair(*(numbers or [16]))
    else:
        main(numbers or [8, 16, 32, 64, 128, 256])
