r"""The noise scale in somebody's training loop: one tracker, one result type, whatever way the gradients come."""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from noisescale import sharded
from noisescale.average import MomentAverage, NoiseScale
from noisescale.columns import TOTAL, Columns, Groups
from noisescale.ddp import CommHook, mean_over_ranks, measured
from noisescale.parts import Part, Reduction, StepSums, merge, norm, sum_parts, weights_of
from noisescale.precondition import PRECONDITIONED, inverse_roots

ONE_PART = "only one part: no two gradients to compare"
NO_GRADIENT = "no gradient"
UNHOOKED = "a parameter began to train in the middle of a step"
TWO_BACKWARDS = "two backward passes reached one parameter within one part"
REDUCED_TWICE = "gradients were reduced more than once: accumulate under no_sync"


class NoiseTracker:
    r"""Measures B_simple = tr Σ / |G|² of a model while it trains, without changing its training by a bit.

    With gradient accumulation (also under DDP and `fully_shard`), two lines are added:

        for micro_batch in batch:
            (loss(micro_batch) / k).backward()
            tracker.micro_batch(len(micro_batch))
        tracker.step()                      # before unscaling, clipping and optimizer.step()

    Each parameter gets a hook that takes the norm of a micro-batch's gradient before it is added to `.grad`. Ranks are
    further parts: k micro-batches on each of R ranks are k·R gradients. Nothing waits for the device.

    A step is left out and counted in `skipped`, with the reason, where it has fewer than two parts or can't be trusted.

    Args:
        model: plain, compiled, wrapped in DDP, or after `fully_shard`. Build the tracker before the first step.
        window, decay: steps to average over, see `MomentAverage`; `window=500` where neither is given.
        groups: None, "layer", or a function from a parameter's name to a group's name: an estimate for each.
        every: measure every n-th step only.
        precondition: an Adam-like or RMSProp optimizer; adds the estimate for gradients divided by (√v̂ + ε), with v
            from before the step.
        process_group: the ranks whose gradients are averaged; found from DDP or `fully_shard` where not given.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        window: int | None = None,
        decay: float | None = None,
        groups: Groups = None,
        every: int = 1,
        precondition: torch.optim.Optimizer | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1 step, got {every}")
        if window is None and decay is None:
            window = 500
        self.model = model
        self.columns = Columns(model, groups)
        self.every = every
        self.skipped: Counter[str] = Counter()
        self._sharded = sharded.is_sharded(model)
        if precondition is not None and self._sharded:
            raise ValueError("precondition needs whole parameters: under fully_shard each rank holds a part of √v")
        self._optimizer = precondition
        self._averages = {"": MomentAverage(window, decay)}
        if precondition is not None:
            self._averages[PRECONDITIONED] = MomentAverage(window, decay)
        self._group, self._ranks = process_group, 1
        if isinstance(model, DistributedDataParallel) and process_group is None:
            self._group = model.process_group
        if self._group is not None or self._sharded:
            self._ranks = dist.get_world_size(self._group)
        self._zero = torch.zeros((), device=next(iter(self.columns.parameters.values())).device)
        self._from_buckets = False
        self._hooked: set[str] = set()
        self._handles: list[Any] = []
        self._in_flight: deque[Reduction] = deque()
        self._steps = 0
        self._start_step()
        if self._sharded:
            self._handles += sharded.hook_unsharded(model, self.columns.canonical, self._hook)
            self._hooked.update(self.columns.parameters)

    # Collecting

    def micro_batch(self, examples: float, weight: float | None = None) -> None:
        """Close one part: everything since the last call was the backward pass of `examples` examples.

        `weight` is the factor by which the micro-batch's mean loss entered the step's; the same for all by default, as
        in `(loss / k).backward()`. Give it where parts of unequal size count by their examples.

        Raises:
            ValueError: `examples` or `weight` isn't positive.
        """
        if examples <= 0:
            raise ValueError(f"examples must be positive, got {examples}")
        if weight is not None and weight <= 0:
            raise ValueError(f"weight must be positive, got {weight}")
        if self._on:
            self._examples.append(examples)
            self._weights.append(weight)
            if not self._from_buckets:
                self._seen.append(self._columns_of(self._norms))
                self._norms = {}

    def use_ddp_hook(self, hook: CommHook | None = None, state: Any = None) -> None:
        """Measure in DDP's communication hook, once a step and rank, instead of at every micro-batch.

        Cheaper and coarser: R ranks are R gradients, however many micro-batches each accumulates under `no_sync`.
        `micro_batch` and `step` are called as before. The hook reduces as DDP does without one, to the bit, or with
        `hook` and its `state`, such as `bf16_compress_hook`. A hook that doesn't return the mean biases |G|².

        Raises:
            ValueError: the model isn't wrapped in DDP, or has one rank only.
        """
        model = self.model
        if not isinstance(model, DistributedDataParallel) or self._ranks == 1:
            found = f"{type(model).__name__} on {self._ranks}"
            raise ValueError(f"the hook compares ranks: it needs DDP on 2 or more, got {found}")
        self.close()
        self._hooked = set(self.columns.parameters)
        self._from_buckets = True
        names = {id(p): name for name, p in self.columns.parameters.items()}

        def see(parameter: Tensor, gradient: Tensor) -> None:
            self._see(names[id(parameter)], gradient, REDUCED_TWICE)

        model.register_comm_hook(self._group if hook is None else state, measured(see, hook or mean_over_ranks))

    def step(self, scaler: torch.amp.GradScaler | None = None) -> None:
        """Close the step: call it after the last backward pass, before unscaling, clipping and `optimizer.step()`.

        Args:
            scaler: the GradScaler, where the loss was scaled; its scale is divided out, and an overflow is dropped.
        """
        if self._on:
            sums = self._sums(scaler)
            if sums is not None and self._ranks > 1:
                self._in_flight.append(Reduction(sums, self._group, self._sharded))
                self._collect(leave=1)
            elif sums is not None:
                self._update(sums)
        self._steps += 1
        self._start_step()

    # Results

    def estimate(self, confidence: float = 0.95) -> NoiseScale:
        """B_simple of all parameters together, with its interval."""
        return self.estimates(confidence)[TOTAL]

    def estimates(self, confidence: float = 0.95) -> dict[str, NoiseScale]:
        """The total, each group, and "preconditioned" where that was asked for."""
        self._collect()
        skipped = self.skipped.total() if self._ranks == 1 else 0  # on several, such a step went round as NaN
        found = {
            name: self._averages[""].estimate(confidence, column, skipped)
            for column, name in enumerate(self.columns.names)
        }
        if PRECONDITIONED in self._averages:
            found[PRECONDITIONED] = self._averages[PRECONDITIONED].estimate(confidence, 0, skipped)
        return found

    def scalars(self, prefix: str = "noise_scale") -> dict[str, float]:
        """Flat numbers for a logger: each estimate's numerator, denominator and ratio, and the ends of its interval."""
        names = ("trace_cov", "grad_sq_norm", "b_simple", "low", "high", "examples")
        return {
            "/".join([prefix, *([] if name == TOTAL else [name]), field]): getattr(scale, field)
            for name, scale in self.estimates().items()
            for field in names
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything measured so far; call it between steps."""
        self._collect()
        averages = {name: average.state_dict() for name, average in self._averages.items()}
        return {
            "averages": averages,
            "steps": self._steps,
            "skipped": dict(self.skipped),
            "columns": self.columns.names,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken. Raises ValueError where groups or averages differ."""
        if state["columns"] != self.columns.names or set(state["averages"]) != set(self._averages):
            raise ValueError(f"the state was saved with {state['columns']}, this tracker has {self.columns.names}")
        for name, average in self._averages.items():
            average.load_state_dict(state["averages"][name])
        self._in_flight.clear()
        self._steps = state["steps"]
        self.skipped = Counter(state["skipped"])
        self._start_step()

    def close(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    # The gradients of one step

    def _start_step(self) -> None:
        self._on = self._steps % self.every == 0
        self._seen: list[Tensor] = []
        self._examples: list[float] = []
        self._weights: list[float | None] = []
        self._problem = ""
        self._inverse: dict[int, Tensor] = {}
        self._norms: dict[str, tuple[Tensor, ...]] = {}
        if not self._sharded:
            for name, p in self.columns.parameters.items():
                if p.requires_grad and name not in self._hooked:
                    self._handles.append(self._hook(name, p))
                    self._hooked.add(name)

    def _hook(self, name: str, parameter: Tensor) -> Any:
        """A tensor hook on a leaf sees what one backward pass adds to `.grad`, before it is added."""

        return parameter.register_hook(lambda gradient: self._see(name, gradient.detach(), TWO_BACKWARDS))

    def _see(self, name: str, gradient: Tensor, twice: str) -> None:
        if self._on:
            if name in self._norms:
                self._problem = twice
            self._norms[name] = self._norms_of(name, gradient)

    def _norms_of(self, name: str, gradient: Tensor) -> tuple[Tensor, ...]:
        if self._optimizer is None:
            return (norm(gradient),)
        if not self._inverse:
            self._inverse = inverse_roots(self._optimizer)
        inverse = self._inverse.get(id(self.columns.parameters[name]), self._zero)
        return norm(gradient), norm(gradient * inverse)

    def _columns_of(self, norms: dict[str, tuple[Tensor, ...]]) -> Tensor:
        """Squared norms by parameter → by column, with the preconditioned total as the last."""
        none = (self._zero,) * (1 if self._optimizer is None else 2)
        rows = [
            torch.stack(kind).double() ** 2
            for kind in zip(*(norms.get(n, none) for n in self.columns.index), strict=True)
        ]
        return torch.cat([self.columns.sum(rows[0]), *(row.sum()[None] for row in rows[1:])])

    def _sums(self, scaler: torch.amp.GradScaler | None) -> StepSums | None:
        """This rank's sums; where they can't be had, None, or NaN if other ranks wait for them."""
        if self._norms and not (self._from_buckets and self._examples):
            raise ValueError("a backward pass after the last micro_batch(): call micro_batch() after each one")
        gradients = {n: p.grad for n, p in self.columns.parameters.items() if p.grad is not None}
        problem = self._problem
        if not gradients:
            problem = NO_GRADIENT
        elif not self._hooked.issuperset(gradients):
            problem = UNHOOKED
        elif len(self._examples) < (2 if self._ranks == 1 else 1):
            problem = ONE_PART
        if problem:
            self.skipped[problem] += 1
            if self._ranks == 1:
                return None
            nothing = self._columns_of({}) * math.nan
            return StepSums(nothing, nothing, 1.0, 1.0, 1.0, 1.0)
        if self._sharded:
            mean = self._columns_of({n: (sharded.norm_of_shard(g),) for n, g in gradients.items()})
        else:
            mean = self._columns_of({n: self._norms_of(n, g) for n, g in gradients.items()})
        if self._from_buckets:
            parts = [merge(self._examples, self._weights, self._columns_of(self._norms))]
        else:
            weights = weights_of(self._weights)
            parts = [Part(s, 1 / b, b, w) for s, b, w in zip(self._seen, self._examples, weights, strict=True)]
        sums = sum_parts(parts, mean)
        if scaler is None:
            return sums
        unscale = scaler.scale(torch.ones_like(self._zero)).double() ** -2
        return sums._replace(squares=sums.squares * unscale, mean_sq_norm=sums.mean_sq_norm * unscale)

    def _collect(self, leave: int = 0) -> None:
        while len(self._in_flight) > leave:
            self._update(self._in_flight.popleft().wait())

    def _update(self, sums: StepSums) -> None:
        moments = sums.moments(self._ranks)
        columns = len(self.columns.names)
        self._averages[""].update(*(x[:columns] for x in moments), sums.examples)
        if PRECONDITIONED in self._averages:
            self._averages[PRECONDITIONED].update(*(x[columns:] for x in moments), sums.examples)
