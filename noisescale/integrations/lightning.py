"""The noise scale in a run of Lightning's `Trainer`."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch.utils import _pytree as pytree

from noisescale.per_example.vmap import leading
from noisescale.tracking.tracker import NoiseTracker


class NoiseScaleCallback(Callback):
    r"""B_simple with its interval in the trainer's own logger, every `log_every_n_steps` steps.

        Trainer(accumulate_grad_batches=4, callbacks=[NoiseScaleCallback()])

    Accumulated batches, and ranks under DDP, are the parts that are compared: at least 2 in all. One optimizer under
    automatic optimization. The state goes into the trainer's checkpoints.

    Args:
        prefix: of the logged names: `noise_scale/b_simple`, `…/trace_cov`, `…/grad_sq_norm`, `…/low`, `…/high`.
        **tracker: options of `NoiseTracker`, such as `decay`, `groups` or `every`.

    Raises:
        ValueError: as training starts, under manual optimization, with several optimizers, with one gradient a step
            only, or on a model that `NoiseTracker` refuses.
    """

    def __init__(self, prefix: str = "noise_scale", **tracker: Any) -> None:
        self.prefix = prefix
        self.tracker: NoiseTracker | None = None
        self._options = tracker
        self._restored: dict[str, Any] | None = None
        self._rows = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not pl_module.automatic_optimization or len(trainer.optimizers) != 1:
            raise ValueError("the noise scale callback needs automatic optimization with one optimizer")
        schedules = [c.scheduling for c in trainer.callbacks if isinstance(c, GradientAccumulationScheduler)]
        most = max([trainer.accumulate_grad_batches, *(max(schedule.values()) for schedule in schedules)])
        if most * trainer.world_size < 2:
            raise ValueError(
                "accumulate_grad_batches × ranks is 1, so no two gradients can be compared: "
                "use at least 2 (with half the batch size for the same batch)"
            )
        model = trainer.strategy.model
        assert model is not None
        self.tracker = NoiseTracker(model, **self._options)
        if self._restored is not None:
            self.tracker.load_state_dict(self._restored)
            self._restored = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._rows = leading([x for x in pytree.tree_leaves(batch) if isinstance(x, torch.Tensor) and x.dim()])

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert self.tracker is not None
        # Lightning divides by the full number also where an epoch ends before it.
        self.tracker.micro_batch(self._rows, weight=1 / trainer.accumulate_grad_batches)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        assert self.tracker is not None
        self.tracker.step(getattr(trainer.precision_plugin, "scaler", None), unscaled=True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        due = trainer.global_step and trainer.global_step % max(trainer.log_every_n_steps, 1) == 0
        if due and (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            assert self.tracker is not None
            pl_module.log_dict(self.tracker.scalars(self.prefix), batch_size=self._rows)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert self.tracker is not None
        self.tracker.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self.tracker is not None:
            self.tracker.close()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.tracker is None else {"tracker": self.tracker.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict.get("tracker")
