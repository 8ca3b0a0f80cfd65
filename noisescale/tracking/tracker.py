r"""The noise scale in somebody's training loop: one tracker, one result type, whatever way the gradients come."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from noisescale.averaging import BLOCK, MomentAverage, NoiseScale
from noisescale.estimators import gradient_moments
from noisescale.per_example.vmap import Loss, Measured, leading, part_sq_norms, per_example_sq_norms, split
from noisescale.preconditioning import PRECONDITIONED
from noisescale.tracking.collector import Collector
from noisescale.tracking.ddp_hook import CommHook
from noisescale.tracking.gradient_checks import ONE_PART
from noisescale.tracking.pacing import Pace
from noisescale.tracking.parameter_groups import TOTAL, Columns, Groups
from noisescale.tracking.pending_steps import Ledger
from noisescale.tracking.wrappers import bare


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
    On several ranks, `skipped` holds the reasons of this one; a step that any of them left out is in every `dropped`.
    Their sums go round together: of every step at first, then of 8 steps, so that an estimate is up to 7 steps behind.

    Args:
        model: plain, compiled, in DDP (the DDP, not the module inside), or after `fully_shard`, in any order. Build the
            tracker before the first step.
        window, decay: measured steps to average over, see `MomentAverage`; `window=500` where neither is given.
        groups: None, "layer", or a function from a parameter's name to a group's name: an estimate for each.
        every: measure every n-th step only. None measures every step, or one in up to 12 where that would cost more
            than about 1%: large matrices that serve few rows, as of a perceptron; chosen after the second step.
        precondition: an Adam-like or RMSProp optimizer; adds the estimate for gradients divided by (√v̂ + ε), with v
            from before the step.
        process_group: the ranks whose gradients are averaged; found from DDP or `fully_shard` where not given.

    Raises:
        ValueError: `every`, `window` or `decay` out of range or both of the last given; a model without parameters, on
            several devices, partly outside its DDP or `fully_shard`, tensor-parallel, or under FSDP1; groups that name
            nothing; `precondition` under `fully_shard`.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        window: int | None = None,
        decay: float | None = None,
        groups: Groups = None,
        every: int | None = None,
        precondition: torch.optim.Optimizer | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        if every is not None and (not isinstance(every, Integral) or every < 1):
            raise ValueError(f"every must be a whole number of steps, at least 1, got {every}")
        if window is None and decay is None:
            window = 500
        self.model = model
        self.columns = Columns(model, groups)
        self.every = int(every or 1)
        self.skipped: Counter[str] = Counter()
        self._collector = Collector(model, self.columns, precondition, process_group)
        averages = {"": MomentAverage(window, decay)}
        if precondition is not None:
            averages[PRECONDITIONED] = MomentAverage(window, decay)
        self._averages = averages
        self._ledger = Ledger(self._collector, self.columns, averages)
        self._given = self._chosen = every is not None
        self._pace: Pace | None = None
        self._steps = 0
        self._largest = 0  # batch that `backward` and `probe` were given

    # Collecting

    def micro_batch(self, examples: float, weight: float | None = None) -> None:
        """Close one part: everything since the last call was the backward pass of `examples` examples.

        Args:
            examples: what the loss is a mean over, in the unit that B_simple is to have. With example hooks it must be
                the rows of the batch.
            weight: the factor by which the micro-batch's mean loss entered the step's; the same for all by default, as
                in `(loss / k).backward()`. Give it where parts of unequal size count by their examples.

        Raises:
            ValueError: `examples` or `weight` isn't positive; after `close`, `probe` or `per_example`; several ranks of
                which neither DDP, `fully_shard` nor `process_group` tells; within DDP's `join`; with example hooks, a
                layer whose rows aren't the examples, or a weight that is used outside its layer.
        """
        examples = float(examples)
        if not 0 < examples < math.inf:
            raise ValueError(f"examples must be positive, got {examples:g}")
        if weight is not None and not 0 < weight < math.inf:
            raise ValueError(f"weight must be positive, got {weight}")
        self._collector.close_part(examples, weight)

    def use_ddp_hook(self, hook: CommHook | None = None, state: Any = None) -> None:
        """Measure in DDP's communication hook, once a step and rank, instead of at every micro-batch.

        Cheaper and coarser: R ranks are R gradients, however many micro-batches each accumulates under `no_sync`.
        `micro_batch` and `step` are called as before. The hook reduces as DDP does without one, to the bit, or with
        `hook` and its `state`, such as `bf16_compress_hook`. A hook that doesn't return the mean biases |G|². Whether
        the step before was cleared can't be seen from here.

        Args:
            hook: what reduces a bucket, as for `register_comm_hook`; DDP's own mean by default.
            state: its first argument.

        Raises:
            ValueError: the model isn't in DDP, or has one rank only.
            RuntimeError: from DDP, where it has a hook already.
        """
        self._collector.use_ddp_hook(hook, state)

    def use_example_hooks(self) -> None:
        """Take the norm of every single example from the training pass: a batch of B is B gradients.

        Hooks on the layers keep what the norms need ("ghost norms"). `micro_batch` and `step` are called as before,
        also with one micro-batch a step; the loss must be a mean over the examples. Linear, Conv1d, Conv2d, Embedding,
        LayerNorm, RMSNorm, GroupNorm and LSTM are known. The first step also runs the model a few times without
        gradients, its buffers and random numbers put back, to see that every layer gets the examples first.

        Raises:
            ValueError: a layer that isn't known, or BatchNorm that takes the batch's statistics, by name; a compiled or
                sharded model; `precondition`.
        """
        self._collector.use_example_hooks()
        self._stop_pacing()
        if not self._given:
            self.every = 1
        self._collector.start(self._due())

    def step(self, scaler: torch.amp.GradScaler | None = None, unscaled: bool = False) -> None:
        """Close the step: call it after the last backward pass, before unscaling, clipping and `optimizer.step()`.

        Args:
            scaler: the GradScaler, where the loss was scaled; its scale is divided out, and an overflow is dropped.
            unscaled: whether `scaler.unscale_` has been called all the same.

        Raises:
            ValueError: a backward pass without its `micro_batch`, gradients changed since the last one, weights given
                for some parts only, or a layer put in after the tracker was made; with example hooks, a layer they
                don't know that began to train.
        """
        if self._due():
            found = self._collector.norms(scaler, unscaled)
            if isinstance(found, str):
                self.skipped[found] += 1
            self._ledger.add(None if isinstance(found, str) else found, together=self._steps >= BLOCK * self.every)
        if self._pace is not None:
            self.every = self._collector.most(self._pace.every(self._collector.parts))
            self._stop_pacing()
        elif not self._chosen:
            self._pace = Pace(self.model, self.columns.parameters.values())
        self._next()

    def backward(self, loss: Loss, batch: Any, parts: int = 2, scaler: torch.amp.GradScaler | None = None) -> Tensor:
        """The step's forward and backward passes, split along the batch so that there is something to compare.

        For a loop that has one backward pass a step: this replaces it, and `step` follows. Returns the mean loss.

        Args:
            loss: `loss(model, batch)`, the mean over the examples.
            batch: tensors, or any nesting of tuples, lists and dicts of them, examples first.
            parts: pieces of equal size (the last may be smaller), at most one for each example. A batch smaller than
                an earlier one, as an epoch's last may be, is cut into fewer where it can't be cut into so many.
            scaler: the GradScaler where there is one; give it to `step` too.

        Raises:
            ValueError: `parts` below 1 or above the batch's size, or a batch without tensors.
        """
        size = leading(batch)
        parts = self._cut(parts, 1, size)
        total = torch.zeros((), device=self._collector.device)
        for piece in split(batch, -(-size // parts)):
            share = leading(piece) / size
            value = loss(self.model, piece) * share
            (value if scaler is None else scaler.scale(value)).backward()
            self.micro_batch(leading(piece), share)
            total = total + value.detach()
        return total

    def probe(self, loss: Loss, batch: Any, parts: int = 2) -> None:
        """A whole step's measurement beside training: `parts` gradients of `batch` at the present weights.

        For a loop that stays as it is: call it once a step, with `every=n` so that it measures every n-th time only.
        Gradients, buffers and random state stay as they were. One process only; `loss` gets the bare model.

        Args:
            loss: `loss(model, batch)`, the mean over the examples.
            batch: tensors, or any nesting of tuples, lists and dicts of them, examples first.
            parts: pieces to cut it into, at least 2; fewer of a smaller batch, as in `backward`.

        Raises:
            ValueError: several ranks, `precondition`, a batch that can't be cut into `parts`, or no parameter that
                requires a gradient.
        """
        parts = self._cut(parts, 2, leading(batch))
        self._beside(lambda model: part_sq_norms(model, loss, batch, parts), batch)

    def per_example(self, loss: Loss, batch: Any, chunk: int = 32) -> None:
        """`probe` with every example as a part, by `torch.func.vmap`, `chunk` at a time: any layer but BatchNorm.

        Args:
            loss, batch: as in `probe`.
            chunk: examples whose gradients are held in memory together, at least 1.

        Raises:
            ValueError: as `probe`, and BatchNorm that takes the batch's statistics, by name.
            RuntimeError: from `vmap`, of what it can't run.
        """
        self._beside(lambda model: per_example_sq_norms(model, loss, batch, chunk), batch)

    # Results

    def estimate(self, confidence: float = 0.95) -> NoiseScale:
        """B_simple of all parameters together, with its interval.

        Args:
            confidence: of the interval, in (0, 1).

        Raises:
            ValueError: a confidence outside it.
        """
        return self.estimates(confidence)[TOTAL]

    def estimates(self, confidence: float = 0.95) -> dict[str, NoiseScale]:
        """The total, each group, and "preconditioned" where that was asked for; arguments and errors as `estimate`."""
        self._ledger.collect()
        skipped = self.skipped.total() if self._collector.ranks == 1 else 0  # on several, such a step went round as NaN
        found = {
            name: self._averages[""].estimate(confidence, column, skipped)
            for column, name in enumerate(self.columns.names)
        }
        if PRECONDITIONED in self._averages:
            found[PRECONDITIONED] = self._averages[PRECONDITIONED].estimate(confidence, 0, skipped)
        if self.skipped and found[TOTAL].steps == 0:
            reason, count = self.skipped.most_common(1)[0]
            why = f"no steps: {count} left out, {reason}"
            found = {name: replace(scale, remark=why) for name, scale in found.items()}
        return found

    def scalars(self, prefix: str = "noise_scale") -> dict[str, float]:
        """Flat numbers for a logger: each estimate's numerator and denominator as they are, and its ratio with the
        interval's ends as `NoiseScale.plotted` has them: NaN where they aren't determined.

        Args:
            prefix: of the names: `noise_scale/b_simple`, and with a group `noise_scale/group/b_simple`.
        """
        names = ("trace_cov", "grad_sq_norm", "examples", "b_simple", "low", "high")
        return {
            "/".join([prefix, *([] if name == TOTAL else [name]), field]): value
            for name, scale in self.estimates().items()
            for field, value in zip(
                names, (scale.trace_cov, scale.grad_sq_norm, scale.examples, *scale.plotted()), strict=True
            )
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything measured so far, on several ranks without sums that wait to go round; call it between steps."""
        self._ledger.collect()
        return {
            "averages": {name: average.state_dict() for name, average in self._averages.items()},
            "columns": self.columns.names,
            "every": self.every,
            "skipped": dict(self.skipped),
            "steps": self._steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; on several ranks call it on all, with the state of any one.

        Args:
            state: what `state_dict` returned, of a tracker with the same groups, `window` or `decay`, and
                `precondition` or none.

        Raises:
            ValueError: no such state, or one of a tracker with others.
        """
        missing = {"averages", "columns", "every", "skipped", "steps"} - set(state)
        if missing:
            raise ValueError(f"no state of a NoiseTracker: {', '.join(sorted(missing))} missing")
        if state["columns"] != self.columns.names:
            raise ValueError(f"the state was saved with {state['columns']}, this tracker has {self.columns.names}")
        if set(state["averages"]) != set(self._averages):
            with_it, without = "with precondition", "without precondition"
            saved, here = (with_it, without) if PRECONDITIONED in state["averages"] else (without, with_it)
            raise ValueError(f"the state was saved with a tracker {saved}, this one is {here}")
        for name, average in self._averages.items():
            average.load_state_dict(state["averages"][name])
        self._ledger.clear()
        if not self._chosen and state["steps"] > 1:
            self.every = state["every"]
            self._stop_pacing()
        self._steps = state["steps"]
        self.skipped = Counter(state["skipped"])
        self._collector.start(self._due())

    def close(self) -> None:
        """Take the hooks off the model."""
        self._collector.close()
        self._stop_pacing()

    def _stop_pacing(self) -> None:
        self._chosen = True
        if self._pace is not None:
            self._pace.close()
            self._pace = None

    def _due(self) -> bool:
        return self._steps % self.every == 0

    def _next(self) -> None:
        self._steps += 1
        self._collector.start(self._due())

    def _cut(self, parts: int, fewest: int, size: int) -> int:
        self._largest = max(self._largest, size)
        if not fewest <= parts <= self._largest:
            what = "cut into" if fewest == 1 else "compared in"
            raise ValueError(f"parts = {parts}: a batch of {size} can be {what} {fewest} to {size} parts")
        return min(parts, size)

    def _beside(self, measure: Callable[[nn.Module], Measured], batch: Any) -> None:
        if self._collector.ranks > 1 or PRECONDITIONED in self._averages:
            raise ValueError("measuring beside training works in one process, and without precondition")
        self.close()
        if self._due() and leading(batch) < 2:
            self.skipped[ONE_PART] += 1
        elif self._due():
            found = measure(bare(self.model))
            none = torch.zeros(len(found.sizes), dtype=torch.float64, device=self._collector.device)
            frozen = {n for n, p in self.columns.parameters.items() if not p.requires_grad}
            squares = torch.stack([none if n in frozen else found.sq_norms[n] for n in self.columns.parameters], -1)
            means = torch.stack([none[0] if n in frozen else found.mean_sq_norm[n] for n in self.columns.parameters])
            moments = gradient_moments(self.columns.sum(squares).T, found.sizes, self.columns.sum(means))
            self._ledger.collect()
            self._averages[""].update(*moments, float(sum(found.sizes)))
        self._next()
