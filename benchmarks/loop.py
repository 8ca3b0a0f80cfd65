"""Examples per second of the suite's loop with measurement over a bare hand-written loop: `python benchmarks/loop.py
[task-preset ...]`.

The bare loop is what anybody writes: a batch in one piece, zero_grad, backward, step. Both train the same model from
the same seed with the same optimizer on batches of the same size, on one thread; they take turns, and the ratio is
taken turn by turn. Times are CPU seconds of the process, so that other jobs on the machine matter little. Evaluations
are left out of both: their share of a run's time is in its record.
"""

import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from experiments.config import RunConfig, load
from experiments.tasks import TASKS
from experiments.training.loop import Trainer, make_optimizer

SIZES = (16, 64, 1024)  # in samples: images, sequences
ROUNDS = 7
SECONDS = 0.7


def ours(run: RunConfig, steps: int) -> float:
    """CPU seconds for `steps` steps of the suite's loop, with probes and the row that turns squared norms into
    numbers.
    """
    trainer = Trainer(run, TASKS[run.task.name][1](run.task, run.seed, torch.device("cpu")), torch.device("cpu"))
    trainer.noise.row(0)
    started = time.process_time()
    while trainer.step < steps:
        trainer.train_step()
        trainer.noise.probe_if_due(trainer.step)
    trainer.noise.row(steps)
    return time.process_time() - started


def bare(run: RunConfig, steps: int) -> float:
    """CPU seconds for the same number of steps by hand."""
    task = TASKS[run.task.name][1](run.task, run.seed, torch.device("cpu"))
    ours = make_optimizer(run.optimizer, torch.nn.Parameter(torch.zeros(1)), run.lr, run.batch_size)
    optimizer = type(ours)(task.model.parameters(), **ours.defaults)
    generator = torch.Generator().manual_seed(run.seed)
    started = time.process_time()
    for _ in range(steps):
        batch = task.batch(run.batch_size // task.sample_size, generator)
        optimizer.zero_grad()
        task.loss(batch).backward()
        if run.optimizer.clip is not None:
            torch.nn.utils.clip_grad_norm_(task.model.parameters(), run.optimizer.clip)
        optimizer.step()
    return time.process_time() - started


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'task':<12} {'B':>5} {'bare, examples/s':>17} {'measured over bare':>19}   min   max, {ROUNDS} turns")
    for name in sys.argv[1:] or ["digits-small"]:
        task, preset = name.rsplit("-", 1)
        suite = load([f"task={task}", f"preset={preset}"])
        sample = TASKS[task][1](suite.run.task, 0, torch.device("cpu")).sample_size
        for size in (samples * sample for samples in SIZES):
            run = replace(suite.run, batch_size=size, lr=1e-3)
            steps = max(2, int(SECONDS / (bare(run, 4) / 4)))
            pairs = [(bare(run, steps), ours(run, steps)) for _ in range(ROUNDS)]
            ratios = sorted(a / b for a, b in pairs)
            speed = size * steps / statistics.median(a for a, _ in pairs)
            middle = statistics.median(ratios)
            spread = f"{ratios[0]:.3f} {ratios[-1]:.3f}"
            print(f"{name:<12} {size:>5} {speed:>17,.0f} {middle:>19.3f}   {spread}", flush=True)


if __name__ == "__main__":
    main()
