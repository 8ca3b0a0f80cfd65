r"""The gradients of one step, seen while training takes them, as sums that a tracker can divide."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from noisescale import sharded
from noisescale.columns import Columns
from noisescale.ddp import CommHook, mean_over_ranks, measured
from noisescale.ghost import GhostNorms
from noisescale.parts import Layout, StepSums, norm, weights_of
from noisescale.precondition import inverse_roots

Norms = dict[str, tuple[Tensor, ...]]  # by parameter: |w G|, and the preconditioned one where asked for

ONE_PART = "only one part: no two gradients to compare"
NO_GRADIENT = "no gradient"
UNHOOKED = "a parameter began to train in the middle of a step"
TWO_BACKWARDS = "two backward passes reached one parameter within one part"
REDUCED_TWICE = "gradients were reduced more than once: accumulate under no_sync"


class Collector:
    """Hooks on a model. By default on each parameter: a tensor hook on a leaf sees what one backward pass adds to
    `.grad`, before it is added. Instead of those, DDP's communication hook, or hooks on layers for single examples."""

    def __init__(
        self,
        model: nn.Module,
        columns: Columns,
        optimizer: torch.optim.Optimizer | None,
        group: dist.ProcessGroup | None,
    ) -> None:
        self.sharded = sharded.is_sharded(model)
        if optimizer is not None and self.sharded:
            raise ValueError("precondition needs whole parameters: under fully_shard each rank holds a part of √v")
        if isinstance(model, DistributedDataParallel) and group is None:
            group = model.process_group
        self.group = group
        self.ranks = dist.get_world_size(group) if group is not None or self.sharded else 1
        self._model, self._columns, self._optimizer = model, columns, optimizer
        self.device = next(iter(columns.parameters.values())).device
        self._zero = torch.zeros((), device=self.device)
        self.kinds = 1 if optimizer is None else 2
        self._from_buckets = False
        self._ghost: GhostNorms | None = None
        self._hooked: set[str] = set()
        self._closed = False
        self._handles: list[Any] = []
        self.start(True)
        if self.sharded:
            self._handles += sharded.hook_unsharded(model, columns.canonical, self._hook)
            self._hooked.update(columns.parameters)

    def start(self, on: bool) -> None:
        """Begin a step; look at its gradients only if `on`."""
        self._on = on
        self._parts: list[Norms] = []
        self._counts: list[int] = []
        self._examples: list[float] = []
        self._weights: list[float | None] = []
        self._problem = ""
        self._inverse: dict[int, Tensor] = {}
        self._norms: Norms = {}
        if self._ghost is not None:
            self._ghost.on = on
        if not self.sharded:
            for name, p in self._columns.parameters.items():
                if p.requires_grad and name not in self._hooked:
                    self._handles.append(self._hook(name, p))
                    self._hooked.add(name)

    def close_part(self, examples: float, weight: float | None) -> None:
        """The backward pass of `examples` examples has ended. Raises ValueError where nothing is watched any more."""
        if self._closed:
            raise ValueError(
                "close(), probe() and per_example() take the tracker off the backward pass: "
                "use another NoiseTracker for micro_batch()"
            )
        if not self._on:
            return
        self._examples.append(examples)
        self._weights.append(weight)
        if self._ghost is not None:
            count = round(examples)
            rows = self._ghost.take(count)
            self._parts.append({name: (of_examples.sum().sqrt(),) for name, of_examples in rows.items()})
            self._counts.append(count)
        elif not self._from_buckets:
            self._parts.append(self._norms)
            self._counts.append(1)
            self._norms = {}

    def norms(self, scaler: torch.amp.GradScaler | None, unscaled: bool) -> tuple[Tensor, Layout] | str:
        """This rank's norms in one vector and what they are of; or why there are none."""
        if self._norms and not (self._from_buckets and self._examples):
            raise ValueError("a backward pass after the last micro_batch(): call micro_batch() after each one")
        gradients = {n: p.grad for n, p in self._columns.parameters.items() if p.grad is not None}
        count = len(self._examples) if self._from_buckets else sum(self._counts)
        if not gradients:
            return NO_GRADIENT
        if not self._hooked.issuperset(gradients):
            return UNHOOKED
        if count < (2 if self.ranks == 1 else 1):
            return ONE_PART
        if self._problem:
            return self._problem
        if self.sharded:
            mean: Norms = {n: (sharded.norm_of_shard(g),) for n, g in gradients.items()}
        else:
            mean = {n: self._norms_of(n, g) for n, g in gradients.items()}
        parts = [self._norms] if self._from_buckets else self._parts
        none = (self._zero,) * self.kinds
        flat = [
            norms.get(name, none)[kind]
            for norms in (*parts, mean)
            for kind in range(self.kinds)
            for name in self._columns.parameters
        ]
        if scaler is not None:
            flat.append(scaler.scale(torch.ones_like(self._zero)))
        layout = Layout(
            tuple(self._examples),
            tuple(self._weights),
            tuple(self._counts),
            merged=self._from_buckets,
            scaled=scaler is not None,
            mean_scaled=not unscaled,
        )
        weights_of(layout.weights)  # raises here and now where they don't fit, not when the block is full
        return torch.stack(flat), layout

    def nothing(self) -> StepSums:
        """What a rank without norms sends: NaN, so that all ranks drop the step."""
        rows = torch.full(
            (1, len(self._columns.names) + self.kinds - 1), math.nan, dtype=torch.float64, device=self.device
        )
        return StepSums(rows, rows, 1.0, 1.0, 1.0, 1.0)

    def use_ddp_hook(self, hook: CommHook | None, state: Any) -> None:
        """Look at DDP's buckets instead of at parameters."""
        model = self._model
        if not isinstance(model, DistributedDataParallel) or self.ranks == 1:
            found = f"{type(model).__name__} on {self.ranks}"
            raise ValueError(f"the hook compares ranks: it needs DDP on 2 or more, got {found}")
        self.close()
        self._closed = False
        self._from_buckets = True
        names = {id(p): name for name, p in self._columns.parameters.items()}

        def see(parameter: Tensor, gradient: Tensor) -> None:
            self._see(names[id(parameter)], gradient, REDUCED_TWICE)

        model.register_comm_hook(self.group if hook is None else state, measured(see, hook or mean_over_ranks))

    def use_example_hooks(self) -> None:
        """Look at every example in the layers instead of at parameters."""
        if self._optimizer is not None:
            raise ValueError("precondition and example hooks exclude each other: norms alone can't be divided by √v")
        if self.sharded or hasattr(self._model, "_orig_mod"):
            raise ValueError("example hooks need a model that is neither compiled nor fully_shard-ed")
        self.close()
        self._closed = False
        self._ghost = GhostNorms(self._model, self._columns.canonical)
        self._handles += self._ghost.handles

    def close(self) -> None:
        """Take every hook off."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooked = set(self._columns.parameters)
        self._closed = True

    def _hook(self, name: str, parameter: Tensor) -> Any:
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
        inverse = self._inverse.get(id(self._columns.parameters[name]), self._zero)
        return norm(gradient), norm(gradient * inverse)
