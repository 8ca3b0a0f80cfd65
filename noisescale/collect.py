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
from noisescale.parts import Layout, StepSums, weights_of
from noisescale.precondition import inverse_roots
from noisescale.sheet import Sheet, write_norm

ONE_PART = "only one part: no two gradients to compare"
NO_GRADIENT = "no gradient"
UNHOOKED = "a parameter began to train in the middle of a step"
TWO_BACKWARDS = "two backward passes reached one parameter within one part"
REDUCED_TWICE = "gradients were reduced more than once: accumulate under no_sync"
CHANGED_BETWEEN = "gradients were cleared or changed between two parts of one step"
STEPPED_BETWEEN = "weights changed between two parts of one step"
NOT_CLEARED = "the gradients of the step before were still there: zero_grad() is missing"


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
        self._averaged_by_user = group is not None and not isinstance(model, DistributedDataParallel)
        if isinstance(model, DistributedDataParallel) and group is None:
            group = model.process_group
        self.group = group
        self.ranks = dist.get_world_size(group) if group is not None or self.sharded else 1
        self._model, self._columns, self._optimizer = model, columns, optimizer
        self._index = {name: i for i, name in enumerate(columns.parameters)}
        self._parameters = list(columns.parameters.values())
        self.kinds = 1 if optimizer is None else 2
        self._sheet = self._new_sheet()
        self._from_buckets = False
        self._ghost: GhostNorms | None = None
        self._hooked = [False] * len(self._parameters)
        self._closed = self._complete = False
        self._handles: list[Any] = []
        self.start(True)
        if self.sharded:
            self._handles += sharded.hook_unsharded(model, columns.canonical, self._hook)
            self._hooked = [True] * len(self._parameters)

    @property
    def device(self) -> torch.device:
        return self._sheet.device

    def start(self, on: bool) -> None:
        """Begin a step; look at its gradients only if `on`."""
        self._on = on
        self._part = 0
        self._counts: list[int] = []
        self._examples: list[float] = []
        self._weights: list[float | None] = []
        self._problem = ""
        self._at = 0  # how often the weights had been written to when the last part was closed
        self._touched = False  # since the last part was closed
        self._last = [-1] * len(self._parameters)  # part in which each parameter was seen
        self._closing: list[tuple[int, int] | None] = []
        self._inverse: dict[int, Tensor] = {}
        if self._ghost is not None:
            self._ghost.on = on
        if not on:
            return
        self._left = self._versions()
        self._row: list[tuple[Tensor, ...]] = []
        if not self.sharded:
            for name, i in self._index.items():
                if not self._hooked[i] and self._parameters[i].requires_grad:
                    self._handles.append(self._hook(name, self._parameters[i]))
                    self._hooked[i] = True

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
        self._closing = self._versions()
        weights = 0 if self.sharded else sum(p._version for p in self._parameters)
        if len(self._examples) > 1 and weights != self._at:
            self._problem = STEPPED_BETWEEN
        self._at = weights
        if self._from_buckets:
            return
        count, row = 1, self._row or self._open()
        if self._ghost is not None:
            count = round(examples)
            for name, of_examples in self._ghost.take(count).items():
                torch.sqrt(of_examples.sum(), out=row[0][self._index[name]])
            if self._ghost.twice:
                self._problem, self._ghost.twice = TWO_BACKWARDS, False
        self._counts.append(count)
        self._touched = False
        self._part += 1
        self._row = []

    def norms(self, scaler: torch.amp.GradScaler | None, unscaled: bool) -> tuple[Tensor, Layout] | str:
        """This rank's norms in one vector and what they are of; or why there are none.

        Raises:
            ValueError: a backward pass after the last part, or gradients changed since.
        """
        if self._touched and not (self._from_buckets and self._examples):
            raise ValueError("a backward pass after the last micro_batch(): call micro_batch() after each one")
        count = len(self._examples) if self._from_buckets else sum(self._counts)
        versions = self._versions()
        if self._closing and not (unscaled or self._averaged_by_user) and versions != self._closing:
            raise ValueError(
                "gradients changed between the last micro_batch() and step(): call step() before clipping, zero_grad() "
                "and scaler.unscale_(), or step(scaler, unscaled=True) after unscale_()"
            )
        self._check_complete()
        if all(version is None for version in versions):
            return NO_GRADIENT
        if any(version is not None and not hooked for version, hooked in zip(versions, self._hooked, strict=True)):
            return UNHOOKED
        if count < (2 if self.ranks == 1 else 1):
            return ONE_PART
        if self._problem:
            return self._problem
        if not self._row and self._from_buckets:
            self._open()
        parts = 1 if self._from_buckets else self._part
        row = self._sheet.open(parts)
        for i, p in enumerate(self._parameters):
            if p.grad is not None:
                if self.sharded:
                    row[0][i].copy_(sharded.norm_of_shard(p.grad))
                else:
                    self._write(i, p.grad, row)
        layout = Layout(
            tuple(self._examples),
            tuple(self._weights),
            tuple(self._counts),
            merged=self._from_buckets,
            scaled=scaler is not None,
            mean_scaled=not unscaled,
        )
        weights_of(layout.weights)  # raises here and now where they don't fit, not when the block is full
        norms = self._sheet.copy(parts + 1)
        if scaler is not None:
            norms = torch.cat([norms, scaler.scale(norms.new_ones(1))])
        return norms, layout

    def _check_complete(self) -> None:
        """Once: a layer that was put in after the tracker was made would be missing from the numbers."""
        if not self._complete:
            known = {id(p) for p in self._parameters}
            new = [n for n, p in self._model.named_parameters() if p.grad is not None and id(p) not in known]
            if new:
                raise ValueError(
                    f"{', '.join(new)}: new since the tracker was made; make it once the model is complete"
                )
            self._complete = True

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
        indices = {id(p): i for i, p in enumerate(self._parameters)}

        def see(parameter: Tensor, gradient: Tensor) -> None:
            self._see(indices[id(parameter)], gradient, REDUCED_TWICE)

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
        self._hooked = [True] * len(self._parameters)
        self._closed = True

    def _open(self) -> list[tuple[Tensor, ...]]:
        """The row of the part that begins; the model may have been moved since the tracker was made."""
        if self._part == 0 and (self._parameters[0].device, self._parameters[0].dtype) != self._made_for:
            self._sheet = self._new_sheet()
        self._row = self._sheet.open(self._part)
        return self._row

    def _new_sheet(self) -> Sheet:
        """Norms are kept in float32, in float64 where a parameter is."""
        self._made_for = self._parameters[0].device, self._parameters[0].dtype
        devices = {p.device for p in self._parameters}
        if len(devices) > 1:
            raise ValueError(f"the model's parameters are on {', '.join(map(str, devices))}: one device is needed")
        wide = any(p.dtype in (torch.float64, torch.complex128) for p in self._parameters)
        dtype = torch.float64 if wide else torch.float32
        return Sheet(self.kinds, len(self._parameters), devices.pop(), dtype)

    def _versions(self) -> list[tuple[int, int] | None]:
        return [_version(p) for p in self._parameters]

    def _hook(self, name: str, parameter: Tensor) -> Any:
        index = self._index[name]
        return parameter.register_hook(lambda gradient: self._see(index, gradient, TWO_BACKWARDS))

    def _see(self, index: int, gradient: Tensor, twice: str) -> None:
        if self._on:
            if self._last[index] == self._part:
                self._problem = twice
            elif not self._from_buckets:
                now = _version(self._parameters[index])
                if self._part and now != self._closing[index]:
                    self._problem = CHANGED_BETWEEN
                elif not self._part and now is not None and now == self._left[index]:
                    self._problem = NOT_CLEARED
            self._last[index] = self._part
            self._touched = True
            gradient = gradient.detach() if gradient.requires_grad else gradient
            self._write(index, gradient, self._row or self._open())

    def _write(self, index: int, gradient: Tensor, row: list[tuple[Tensor, ...]]) -> None:
        write_norm(gradient, row[0][index])
        if self._optimizer is not None:
            if not self._inverse:
                self._inverse = inverse_roots(self._optimizer)
            inverse = self._inverse.get(id(self._parameters[index]))
            if inverse is not None:
                write_norm(gradient * inverse, row[1][index])


def _version(parameter: nn.Parameter) -> tuple[int, int] | None:
    """Which tensor the gradient is, and how often it has been written to."""
    return None if parameter.grad is None else (id(parameter.grad), parameter.grad._version)
