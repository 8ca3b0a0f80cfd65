"""The noise scale of a run while it trains: what its micro-batches say, and probes where there is only one.

Where a batch is several micro-batches, their gradients are compared at every step, for one dot product each. Where it
is one, fresh examples are drawn from a generator of their own and cut in parts, at step 0 and then so rarely that
probes stay within their share of the examples. Rows hold means over the steps since the row before, so rows are
disjoint and can be pooled by anybody.

Where the task names `groups` of its parameters, each group's norms are taken too, and under Adam those of the gradient
divided by √v, the metric that its steps are taken in.
"""

import math
from typing import Any

import torch
from torch import Tensor

from experiments.config import RunConfig
from experiments.tasks.base import Task
from experiments.training.flat_model import FlatModel
from noisescale import MomentAverage, gradient_moments, hessian_noise
from noisescale.preconditioning import PRECONDITIONED, inverse_roots
from noisescale.side_effects import undisturbed

NOT_MEASURED = {"grad_hess_grad": math.nan, "trace_hess_cov": math.nan}


class NoiseMeter:
    """Collects squared norms as tensors, so that no step waits for a device; turns them into numbers at each row."""

    def __init__(
        self, config: RunConfig, task: Task, flat: FlatModel, optimizer: torch.optim.Optimizer, device: torch.device
    ):
        self.measure, self.task, self.flat, self.device = config.measure, task, flat, device
        self.batch_size, self.micro_size = config.batch_size, config.micro_size
        self.split = config.batch_size > config.micro_size
        self.probes = getattr(task, "probes", True)
        self.generator = config.stream(f"probes {config.lr!r}")
        self.probed = 0
        self.average = MomentAverage(decay=0.5 ** (1 / self.measure.half_life))
        self.groups = flat.group_slices(getattr(task, "groups", {}))
        self.optimizer = optimizer if self.groups and config.optimizer.name in ("adam", "rmsprop") else None
        self.metric: Tensor | None = None
        self.group_rows: list[dict[str, Any]] = []
        self.pending: list[tuple[Tensor, Tensor, int]] = []

    def norms(self, gradient: Tensor) -> Tensor:
        """Squared norms of `gradient` (P,): of all of it, of each group, and preconditioned; shape (1 + groups,)."""
        found = [gradient.dot(gradient)]
        for parts in self.groups.values():
            found.append(torch.stack([gradient[part].dot(gradient[part]) for part in parts]).sum())
        if self.optimizer is not None:
            if self.metric is None:
                self.metric = self._metric()
            scaled = gradient * self.metric
            found.append(scaled.dot(scaled))
        return torch.stack(found)

    def add(self, squares: list[Tensor], mean_square: Tensor) -> None:
        """`norms` of one step's micro-batch gradients, and of their mean."""
        self._keep(squares, mean_square, self.micro_size)

    def probe_if_due(self, step: int) -> None:
        """A probe, where the batch says nothing and the probes' share of the examples allows one."""
        share = self.measure.probe_share * step * self.batch_size
        if not self.split and self.probes and self.probed + self.measure.probe_examples <= share:
            self._probe()
            self.probed += self.measure.probe_examples

    def row(self, step: int) -> dict[str, Any]:
        """Means since the last row, the running B_simple with its interval, and B_noise's moments."""
        if step == 0 and self.probes:
            self._probe()
        gradient, trace, examples = self._moments()
        for pair in zip(gradient[:, 0].tolist(), trace[:, 0].tolist(), strict=True):
            self.average.update(*pair, examples)
        scale = self.average.estimate()
        seen = {"noise_examples": examples * len(gradient), "noise_steps": len(gradient)}
        means = [
            {"grad_sq_norm": g, "trace_cov": t} | seen for g, t in zip(_means(gradient), _means(trace), strict=True)
        ]
        names = [*self.groups, *([PRECONDITIONED] if self.optimizer is not None else [])]
        self.group_rows += [{"step": step, "group": name, **mean} for name, mean in zip(names, means[1:], strict=True)]
        return {
            **means[0],
            "b_simple": scale.b_simple,
            "b_simple_low": scale.low,
            "b_simple_high": scale.high,
            **(self._curvature() if self.measure.curvature else NOT_MEASURED),
        }

    def state_dict(self) -> dict[str, Any]:
        """Taken between two steps."""
        return {
            "pending": self.pending,
            "generator": self.generator.get_state(),
            "probed": self.probed,
            "average": self.average.state_dict(),
            "group_rows": self.group_rows,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken."""
        self.generator.set_state(state["generator"].cpu())
        self.probed = state["probed"]
        self.pending = state.get("pending", [])
        self.average.load_state_dict(state["average"])
        self.group_rows = state["group_rows"]

    def _moments(self) -> tuple[Tensor, Tensor, int]:
        """|G|² and tr Σ of the pending steps, (steps, 1 + groups), and the examples in a step. All are cut alike."""
        if not self.pending:
            nothing = torch.empty(0, 1 + len(self.groups) + (self.optimizer is not None))
            return nothing, nothing, 0
        squares, means, sizes = zip(*self.pending, strict=True)
        self.pending.clear()
        parts = len(squares[0])
        moments = gradient_moments(torch.stack(squares).movedim(1, 2), [sizes[0]] * parts, torch.stack(means))
        return moments.grad_sq_norm.cpu(), moments.trace_cov.cpu(), sizes[0] * parts

    def _keep(self, squares: list[Tensor], mean_square: Tensor, size: int) -> None:
        self.pending.append((torch.stack(squares), mean_square, size))
        self.metric = None

    def _metric(self) -> Tensor:
        """1/(√v + ε) of each coordinate, NaN before the first step; 0 where no gradient has been seen yet."""
        assert self.optimizer is not None
        inverse = inverse_roots(self.optimizer)[id(self.flat.vector)]
        never = 1 / self.optimizer.param_groups[0]["eps"]
        return torch.where(inverse >= never, 0.0, inverse)

    def _probe(self) -> None:
        samples = self.measure.probe_examples // self.task.sample_size
        part = samples // self.measure.probe_parts
        gradient, total = (torch.zeros_like(self.flat.vector.data) for _ in range(2))
        views, squares = self.flat.views(gradient), []
        with undisturbed(self.task.model):
            batch = self.task.batch(samples, self.generator)
            for piece in zip(*(tensor.split(part) for tensor in batch), strict=True):
                self.flat.differentiate(self.task.loss(piece), views)
                squares.append(self.norms(gradient))
                total.add_(gradient)
        total.div_(len(squares))
        self._keep(squares, self.norms(total), part * self.task.sample_size)

    def _curvature(self) -> dict[str, float]:
        """GᵀHG and tr HΣ from three fresh batches the size of a probe."""
        samples = self.measure.probe_examples // self.task.sample_size
        first, second, third = (self.task.batch(samples, self.generator) for _ in range(3))
        units = self.measure.probe_examples
        found = hessian_noise(
            self.task.model, lambda _, batch: self.task.loss(batch), (first, second, third), (units, units)
        )
        return {"grad_hess_grad": float(found.grad_hess_grad), "trace_hess_cov": float(found.trace_hess_cov)}


def _means(values: Tensor) -> list[float]:
    """Over steps, (steps, m) → m; NaN where there are none."""
    return values.mean(0).tolist() if len(values) else [math.nan] * values.shape[1]
