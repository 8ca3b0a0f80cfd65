"""The one training loop, with its measurements.

A batch is cut into micro-batches; each one's gradient gets a buffer of its own, its squared norm is one dot product,
and the sum steps the optimizer. Measuring only reads, so training is the same bit for bit without it. Norms are raw:
before clipping, before the optimizer. Several ranks may share a run (`experiments.training.ranks`).
"""

import math
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from experiments.config import OptimizerConfig, RunConfig
from experiments.errors import UserError
from experiments.tasks.base import Stateful, Task
from experiments.training.flat_model import FlatModel
from experiments.training.learning_rate_cuts import CUT, beginnings
from experiments.training.measurement import NoiseMeter
from experiments.training.provenance import git_sha, versions
from experiments.training.ranks import ALONE, Ranks
from experiments.training.record import RunRecord, Summary
from experiments.training.stop_signal import Leaving
from experiments.training.tensorflow_rmsprop import RMSpropTF


def evaluation_steps(per_octave: int, max_steps: int) -> list[int]:
    """0, 1, …, max_steps, evenly spaced in log steps where that is more than one step apart."""
    octaves = math.log2(max_steps)
    spaced = {round(2 ** (i / per_octave)) for i in range(math.floor(octaves * per_octave) + 1)}
    return sorted({0, *spaced, max_steps})


def make_optimizer(
    config: OptimizerConfig, vector: torch.nn.Parameter, lr: float, batch_size: int
) -> torch.optim.Optimizer:
    """Of the flat parameter vector."""
    if config.name == "sgd":
        return torch.optim.SGD([vector], lr=lr)
    if config.name == "momentum":
        assert config.momentum is not None
        return torch.optim.SGD([vector], lr=lr, momentum=config.momentum)
    assert config.eps is not None
    if config.name in ("rmsprop", "rmsprop_tf"):
        assert config.alpha is not None
        kind = RMSpropTF if config.name == "rmsprop_tf" else torch.optim.RMSprop
        return kind([vector], lr=lr, alpha=config.alpha, eps=config.eps)
    beta2 = config.beta2 if config.beta2_half_life is None else 0.5 ** (batch_size / config.beta2_half_life)
    assert config.beta1 is not None and beta2 is not None
    return torch.optim.Adam([vector], lr=lr, betas=(config.beta1, beta2), eps=config.eps)


class Trainer:
    """One run: `config` on `task`, resumable at any step; `ranks` share its micro-batches."""

    def __init__(self, config: RunConfig, task: Task, device: torch.device, ranks: Ranks = ALONE):
        ranks.check(config, task)
        self.config, self.task, self.device, self.ranks = config, task, device, ranks
        self.flat = FlatModel(task.model)
        self.optimizer = make_optimizer(config.optimizer, self.flat.vector, config.lr, config.batch_size)
        self.parts = config.batch_size // config.micro_size
        self.total = torch.zeros_like(self.flat.vector.data)
        self.part = torch.zeros_like(self.total)
        self.total_views, self.part_views = self.flat.views(self.total), self.flat.views(self.part)
        self.flat.vector.grad = self.total
        self.generator = config.stream("batches")
        self.noise = NoiseMeter(config, task, self.flat, self.optimizer, device)
        self.step = 0
        self.rows: list[dict[str, Any]] = []
        self.begins = [0]  # the rows from which on each learning rate is in use
        self.past_goal = 0
        self.seconds = self.eval_seconds = self.measure_seconds = 0.0
        torch.manual_seed(config.seed)

    @property
    def examples(self) -> int:
        """Processed so far, in the task's unit."""
        return self.step * self.config.batch_size

    def train_step(self) -> None:
        """One optimizer step on one batch."""
        task, total = self.task, self.total
        batch = task.batch(self.config.batch_size // task.sample_size, self.generator)
        pieces = [batch]
        if self.parts > 1:
            micro_samples = self.config.micro_size // task.sample_size
            pieces = list(zip(*(tensor.split(micro_samples) for tensor in batch), strict=True))
        squares: list[Tensor] = []
        for i, piece in enumerate(pieces[self.ranks.rank :: self.ranks.world]):
            part, views = (self.part, self.part_views) if i else (total, self.total_views)
            self.flat.differentiate(task.loss(piece), views)
            if self.parts > 1:
                squares.append(self.noise.norms(part))
            if i:
                total.add_(part)
        if self.parts > 1:
            self.ranks.add_up(total)
            total.div_(self.parts)
            self.noise.add(self.ranks.gather(squares, self.parts), self.noise.norms(total))
        if self.config.optimizer.clip is not None:
            torch.nn.utils.clip_grad_norm_([self.flat.vector], self.config.optimizer.clip)
        self.optimizer.step()
        self.step += 1

    def evaluate(self) -> str | None:
        """Add a row to the curve; the run's status if it ends here."""
        config, task = self.config, self.task
        started = time.perf_counter()
        loss, metric = self.ranks.first_says(task.evaluate)
        evaluated = time.perf_counter()
        measured = self.noise.row(self.step)
        self.eval_seconds += evaluated - started
        self.measure_seconds += time.perf_counter() - evaluated
        self.rows.append({"step": self.step, "examples": self.examples, "loss": loss, "metric": metric, **measured})
        self._cut_learning_rate()
        if not (math.isfinite(loss) and math.isfinite(metric)):
            return "diverged"
        passed = config.stop_metric is not None and task.metric.better(metric, config.stop_metric)
        self.past_goal = self.past_goal + 1 if passed else 0
        if self.past_goal >= config.stop_patience:
            return "reached"
        return "not_reached" if self.step >= config.max_steps else None

    def _cut_learning_rate(self) -> None:
        """Where the last evaluations passed the next of the config's `lr_cuts`."""
        if self.config.lr_cuts:
            metric = [row["metric"] for row in self.rows]
            direction, patience = self.task.metric.direction, self.config.stop_patience
            self.begins = beginnings(metric, direction, self.config.lr_cuts, patience)
            for group in self.optimizer.param_groups:
                group["lr"] = self.config.lr * CUT ** (len(self.begins) - 1)

    def _next_evaluation(self, spaced: list[int]) -> int:
        """The step of it; they are `spaced` from the start, and anew from each cut of the learning rate."""
        if not self.rows:
            return 0
        begun, last = self.rows[self.begins[-1]]["step"], self.rows[-1]["step"]
        return min(begun + next(step for step in spaced if begun + step > last), self.config.max_steps)

    def run(
        self,
        record: RunRecord,
        checkpoint_seconds: float,
        on_row: Callable[[], None] = lambda: None,
        must_leave: Callable[[], bool] = lambda: False,
    ) -> Summary:
        """Train to the end, from the record's checkpoint if there is one; once it must leave, save and raise `Leaving`
        instead."""
        state = self.ranks.checkpoint(record, self.device)
        if state is not None:
            self.restore(state, record)
        before = self.seconds
        started = saved = time.perf_counter()
        spaced = evaluation_steps(self.config.measure.evaluations_per_octave, self.config.max_steps)
        status = None
        while status is None:
            target = self._next_evaluation(spaced)
            while self.step < target:
                self.train_step()
                self.noise.probe_if_due(self.step)
                leaves = must_leave()
                if self.ranks.first and (leaves or time.perf_counter() - saved > checkpoint_seconds):
                    self.seconds = before + time.perf_counter() - started
                    record.save_curve(self.rows, self.noise.group_rows)
                    record.save_checkpoint(self.state_dict())
                    saved = time.perf_counter()
                if leaves:
                    raise Leaving
            status = self.evaluate()
            self.seconds = before + time.perf_counter() - started
            self.rows[-1]["seconds"] = self.seconds
            on_row()
        summary = self.summary(status)
        if self.ranks.first:
            record.finish(self.rows, self.noise.group_rows, asdict(summary))
        return summary

    def summary(self, status: str) -> Summary:
        """Of the run so far."""
        metrics = [row["metric"] for row in self.rows if math.isfinite(row["metric"])]
        pick = min if self.task.metric.direction == "min" else max
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else platform.machine()
        return Summary(
            status=status,
            step=self.step,
            examples=self.examples,
            best_metric=pick(metrics, default=math.nan),
            parameters=self.flat.vector.numel(),
            sample_size=self.task.sample_size,
            data=self.task.data,
            seconds=self.seconds,
            eval_seconds=self.eval_seconds,
            measure_seconds=self.measure_seconds,
            device=f"{self.device.type} ({name})" + (f" x {self.ranks.world}" if self.ranks.world > 1 else ""),
            versions=versions(),
            git_sha=git_sha(),
            finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
            restarts=getattr(self.task, "restarts", None),
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything the next step depends on."""
        return {
            "step": self.step,
            "rows": self.rows,
            "past_goal": self.past_goal,
            "clock": [self.seconds, self.eval_seconds, self.measure_seconds],
            "vector": self.flat.vector.data,
            "strides": self.flat.strides,
            "buffers": self.flat.buffers(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "noise": self.noise.state_dict(),
            "task": self.task.state_dict() if isinstance(self.task, Stateful) else None,
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }

    def restore(self, state: dict[str, Any], record: RunRecord) -> None:
        """Load `state`, the checkpoint of `record`; `UserError` where it isn't one of this run, and it is put aside."""
        try:
            self.load_state_dict(state)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if self.ranks.first:
                record.put_aside()
            raise UserError(
                f"{record.folder}/checkpoint.pt is not of this run as it is trained now ({type(error).__name__}: "
                f"{' '.join(str(error).split())[:160]}) and is put aside; the same command starts over"
            ) from error

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken (a `Stateful` task as exactly as it can)."""
        self.step, self.rows, self.past_goal = state["step"], state["rows"], state["past_goal"]
        self.seconds, self.eval_seconds, self.measure_seconds = state["clock"]
        self._cut_learning_rate()
        if state["strides"] != self.flat.strides:
            raise ValueError("its weights lie in another order")
        self.flat.vector.data.copy_(state["vector"])
        for buffer, saved in zip(self.flat.buffers(), state["buffers"], strict=True):
            buffer.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"].cpu())
        self.noise.load_state_dict(state["noise"])
        if isinstance(self.task, Stateful):
            self.task.load_state_dict(state["task"])
        torch.set_rng_state(state["random"].cpu())
        if self.device.type == "cuda" and state["random_cuda"] is not None:  # None where it was taken on the CPU
            torch.cuda.set_rng_state(state["random_cuda"].cpu(), self.device)
