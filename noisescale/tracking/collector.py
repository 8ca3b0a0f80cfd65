r"""The gradients of one step, seen while training takes them, as sums that a tracker can divide."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from noisescale.averaging import BLOCK
from noisescale.gradient_norms import Sheet, unrounded, write_norm
from noisescale.per_example.layer_hooks import GhostNorms
from noisescale.preconditioning import inverse_roots
from noisescale.side_effects import beside
from noisescale.tracking import fully_sharded
from noisescale.tracking.ddp_hook import CommHook, mean_over_ranks, measured
from noisescale.tracking.gradient_checks import NO_GRADIENT, ONE_PART, TWO_BACKWARDS, Guard
from noisescale.tracking.parameter_groups import Columns
from noisescale.tracking.step_sums import Layout, StepSums, weights_of
from noisescale.tracking.wrappers import bare, find_ddp, refuse_join, refuse_unknown_ranks


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
        fully_sharded.refuse_fsdp1(model)
        self.sharded = fully_sharded.is_sharded(model)
        if optimizer is not None and self.sharded:
            raise ValueError("precondition needs whole parameters: under fully_shard each rank holds a part of √v")
        self._ddp = find_ddp(model)
        if self._ddp is not None and group is None:
            group = self._ddp.process_group
        self.group = group
        self.ranks = dist.get_world_size(group) if group is not None or self.sharded else 1
        if self.sharded:
            fully_sharded.refuse_mixed(bare(model), self.ranks)
        self._alone = group is None and not self.sharded
        self._averaged_by_user = self.ranks > 1 and self._ddp is None and not self.sharded
        self._model, self._columns, self._optimizer = model, columns, optimizer
        self._index = {name: i for i, name in enumerate(columns.parameters)}
        self._parameters = list(columns.parameters.values())
        self._guard = Guard(self._parameters, self.ranks, self.sharded)
        self.kinds = 1 if optimizer is None else 2
        self._sheet = self._new_sheet()
        self._ghost: GhostNorms | None = None
        self._hooked = [False] * len(self._parameters)
        self._closed = False
        self._measured = 0  # steps
        self._handles: list[Any] = []
        self.start(True)
        if self.sharded:
            self._handles += fully_sharded.hook_unsharded(bare(model), columns.canonical, self._hook)
            self._hooked = [True] * len(self._parameters)

    @property
    def device(self) -> torch.device:
        return self._sheet.device

    @property
    def averaged(self) -> float:
        """What the sum over the ranks' gradients was divided by."""
        return fully_sharded.averaged(bare(self._model), self.ranks) if self.sharded else self.ranks

    @property
    def parts(self) -> int:
        """Gradients of this step that are looked at one by one on this rank."""
        return 1 if self._guard.buckets else self._part

    def most(self, number: int) -> int:
        """The largest of the ranks' numbers."""
        if self.ranks > 1:
            largest = torch.tensor(number, device=self.device)
            dist.all_reduce(largest, dist.ReduceOp.MAX, self.group)
            number = int(largest)
        return number

    def start(self, on: bool) -> None:
        """Begin a step; look at its gradients only if `on`."""
        self._on = on
        self._part = 0
        self._counts: list[int] = []
        self._examples: list[float] = []
        self._weights: list[float | None] = []
        self._inverse: dict[int, Tensor] = {}
        if self._ghost is not None:
            self._ghost.on = on
        if not on:
            return
        self._guard.start()
        self._row: list[tuple[Tensor, ...]] = []
        new = [name for name, i in self._index.items() if self._parameters[i].requires_grad and not self._hooked[i]]
        if self._ghost is not None and new:
            self.use_example_hooks()
        elif not self.sharded:
            for name in new:
                i = self._index[name]
                self._handles.append(self._hook(name, self._parameters[i]))
                self._hooked[i] = True

    def close_part(self, examples: float, weight: float | None) -> None:
        """The backward pass of `examples` examples has ended.

        Raises:
            ValueError: nothing is watched any more, or other ranks exist of which nothing is known.
        """
        if self._closed:
            raise ValueError(
                "close(), probe() and per_example() take the tracker off the backward pass: "
                "use another NoiseTracker for micro_batch()"
            )
        if self._alone:
            refuse_unknown_ranks()
        elif self._ddp is not None:
            refuse_join(self._ddp)
        if not self._on:
            return
        if self._guard.buckets:
            self._guard.close()
        else:
            row = self._row or self._open()
            self._counts.append(1 if self._ghost is None else self._take(self._ghost, examples, row[0]))
            self._guard.close()
            self._part += 1
            self._row = []
        self._examples.append(examples)
        self._weights.append(weight)

    def _take(self, ghost: GhostNorms, examples: float, row: tuple[Tensor, ...]) -> int:
        """The examples' norms into `row`; how many they are."""
        with unrounded(self.device):
            norms = {self._index[name]: norm for name, norm in ghost.take(examples).items()}
        trained = [i for i in norms if self._parameters[i].requires_grad]
        for i in trained:
            row[i].copy_(norms[i])
        self._guard.seen(trained)
        if ghost.twice:
            self._guard.problem, ghost.twice = TWO_BACKWARDS, False
        return int(examples)

    def norms(self, scaler: torch.amp.GradScaler | None, unscaled: bool) -> tuple[Tensor, Layout] | str:
        """This rank's norms in one vector and what they are of; or why there are none.

        Raises:
            ValueError: a backward pass after the last part, or gradients changed since.
        """
        if self._guard.touched:
            raise ValueError("a backward pass after the last micro_batch(): call micro_batch() after each one")
        versions = self._guard.versions()
        if not (unscaled or self._averaged_by_user or self._guard.unchanged(versions)):
            raise ValueError(
                "gradients changed between the last micro_batch() and step(): call step() before clipping, zero_grad() "
                "and scaler.unscale_(), or step(scaler, unscaled=True) after unscale_()"
            )
        if self._measured % BLOCK == 0:
            self._check_complete()
        self._measured += 1
        buckets = self._guard.buckets
        used = self._guard.used(versions, self._hooked)
        if not any(used):
            return self._guard.problem or NO_GRADIENT
        if (len(self._examples) if buckets else sum(self._counts)) < (2 if self.ranks == 1 else 1):
            return ONE_PART
        if self._guard.problem:
            return self._guard.problem
        if not self._row and buckets:
            self._open()
        parts = self.parts
        row = self._sheet.open(parts)
        for i, p in enumerate(self._parameters):
            if p.grad is not None and used[i]:
                if self.sharded:
                    row[0][i].copy_(fully_sharded.norm_of_shard(p.grad))
                else:
                    self._write(i, p.grad, row)
        layout = Layout(
            tuple(self._examples),
            tuple(self._weights),
            tuple(self._counts),
            merged=buckets,
            scaled=scaler is not None,
            mean_scaled=not unscaled,
        )
        weights_of(layout.weights)  # raises here and now where they don't fit, not when the block is full
        norms = self._sheet.copy(parts + 1)
        if scaler is not None:
            norms = torch.cat([norms, scaler.scale(norms.new_ones(1))])
        return norms, layout

    def _check_complete(self) -> None:
        """A layer that was put in after the tracker was made would be missing from the numbers."""
        known = {id(p) for p in self._parameters}
        new = [n for n, p in self._model.named_parameters() if p.grad is not None and id(p) not in known]
        if new:
            raise ValueError(f"{', '.join(new)}: new since the tracker was made; make it once the model is complete")

    def nothing(self) -> StepSums:
        """What a rank without norms sends: NaN, so that all ranks drop the step."""
        rows = torch.full(
            (1, len(self._columns.names) + self.kinds - 1), math.nan, dtype=torch.float64, device=self.device
        )
        return StepSums(rows, rows, 1.0, 1.0, 1.0, 1.0)

    def use_ddp_hook(self, hook: CommHook | None, state: Any) -> None:
        """Look at DDP's buckets instead of at parameters."""
        if self._ddp is None or self.ranks == 1:
            found = f"{type(self._model).__name__} on {self.ranks}"
            raise ValueError(f"the hook compares ranks: it needs DDP on 2 or more, got {found}")
        self.close()
        self._closed = False
        self._guard.buckets = True
        indices = {id(p): i for i, p in enumerate(self._parameters)}

        def see(parameter: Tensor, gradient: Tensor) -> None:
            self._see(indices[id(parameter)], gradient)

        self._ddp.register_comm_hook(self.group if hook is None else state, measured(see, hook or mean_over_ranks))

    def use_example_hooks(self) -> None:
        """Look at every example in the layers instead of at parameters."""
        if self._guard.buckets:
            raise ValueError("example hooks come too late: DDP keeps the hook that use_ddp_hook() gave it")
        if self._optimizer is not None:
            raise ValueError("precondition and example hooks exclude each other: norms alone can't be divided by √v")
        wrapped = [self._model] if self._ddp is None else [self._model, self._ddp.module]
        if self.sharded or any(hasattr(model, "_orig_mod") for model in wrapped):
            raise ValueError("example hooks need a model that is neither compiled nor fully_shard-ed")
        ghost = GhostNorms(bare(self._model), self._columns.canonical, self._guard.begin)
        self.close()
        self._closed = False
        self._hooked = [p.requires_grad for p in self._parameters]
        self._ghost = ghost
        self._handles += ghost.handles

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
        if self.ranks > 1 and self._ghost is None:
            self._guard.begin()
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

    def _hook(self, name: str, parameter: Tensor) -> Any:
        index = self._index[name]
        return parameter.register_hook(lambda gradient: self._see(index, gradient))

    def _see(self, index: int, gradient: Tensor) -> None:
        if self._on and not beside():
            row = self._row or self._open()
            self._guard.see(index)
            self._write(index, gradient.detach() if gradient.requires_grad else gradient, row)

    def _write(self, index: int, gradient: Tensor, row: list[tuple[Tensor, ...]]) -> None:
        write_norm(gradient, row[0][index])
        if self._optimizer is not None:
            if not self._inverse:
                self._inverse = inverse_roots(self._optimizer)
            inverse = self._inverse.get(id(self._parameters[index]))
            if inverse is None:
                name = list(self._index)[index]
                raise ValueError(f"{name} has a gradient, but isn't in the optimizer that was given as precondition")
            write_norm(gradient * inverse, row[1][index])
