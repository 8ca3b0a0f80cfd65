"""The noise scale in a run of Hugging Face's `Trainer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback

from noisescale.per_example.vmap import leading
from noisescale.tracking.tracker import NoiseTracker

FILE = "noise_scale.pt"
METHODS = ("get_batch_samples", "training_step", "log")


class NoiseScaleCallback(TrainerCallback):
    r"""B_simple with its interval in the trainer's own logs, and so in its W&B, TensorBoard or console.

        trainer = Trainer(model, arguments, ...)
        trainer.add_callback(NoiseScaleCallback(trainer))

    Micro-batches of `gradient_accumulation_steps`, and ranks, are the parts that are compared: at least 2 in all. The
    unit is a row of the batch (a sequence). Where the loss is a mean over the tokens of the whole batch, rows of
    different length count by their tokens, and that counts as noise too.

    `Trainer` calls its callbacks after it has clipped the gradients, too late to measure. So while it trains, the
    callback stands around three of its methods (`METHODS`). The state goes into the trainer's checkpoints.

    Args:
        trainer: the one it is added to.
        prefix: of the logged names: `noise_scale/b_simple`, `…/trace_cov`, `…/grad_sq_norm`, `…/low`, `…/high`.
        **tracker: options of `NoiseTracker`, such as `decay`, `groups` or `every`.

    Raises:
        ValueError: as training starts, with one gradient a step only, a second callback, under DeepSpeed or
            `DataParallel`, or on a model that `NoiseTracker` refuses, such as one under FSDP1.
    """

    def __init__(self, trainer: Trainer, prefix: str = "noise_scale", **tracker: Any) -> None:
        self.trainer: Any = trainer
        self.prefix = prefix
        self.tracker: NoiseTracker | None = None
        self._options = tracker
        self._own: dict[str, Any] = {}  # what `trainer` itself has in place of its class's methods
        self._inside: dict[str, Any] = {}
        self._rows = 0  # of the step, where the loss is a mean over all its items, else 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = self.trainer
        self._undo()  # a training that was broken off has no end
        if isinstance(getattr(trainer.__dict__.get("training_step"), "__self__", None), NoiseScaleCallback):
            raise ValueError("the trainer has a NoiseScaleCallback already: one measures all, in `groups` if need be")
        if args.n_gpu > 1 or getattr(trainer, "is_deepspeed_enabled", False):
            raise ValueError("the noise scale needs one process a device (torchrun), and not DeepSpeed")
        if args.gradient_accumulation_steps * args.world_size < 2:
            raise ValueError(
                "gradient_accumulation_steps × ranks is 1, so no two gradients can be compared: "
                "use at least 2 (with half the per_device_train_batch_size for the same batch)"
            )
        self.tracker = NoiseTracker(trainer.model_wrapped, **self._options)
        saved = self._file(args, state)
        if state.global_step and saved.exists():
            self.tracker.load_state_dict(torch.load(saved, weights_only=True))
        self._own = {name: trainer.__dict__[name] for name in METHODS if name in trainer.__dict__}
        self._inside = {name: getattr(trainer, name) for name in METHODS}
        trainer.get_batch_samples = self._get_batch_samples
        trainer.training_step, trainer.log = self._training_step, self._log

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._undo()

    def _undo(self) -> None:
        for name in self._inside:
            self.trainer.__dict__.pop(name, None)
        self.trainer.__dict__.update(self._own)
        self._own, self._inside = {}, {}
        if self.tracker is not None:
            self.tracker.close()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.should_save and self.tracker is not None:
            torch.save(self.tracker.state_dict(), self._file(args, state))

    def _file(self, args: Any, state: Any) -> Path:
        return Path(args.output_dir) / f"checkpoint-{state.global_step}" / FILE

    def _get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        micro_batches, items = self._inside["get_batch_samples"](*args, **kwargs)
        self._rows = 0 if items is None else sum(map(_rows, micro_batches))
        return micro_batches, items

    def _training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        assert self.tracker is not None
        rows = _rows(inputs)
        loss = self._inside["training_step"](model, inputs, *args, **kwargs)
        self.tracker.micro_batch(rows, rows / self._rows if self._rows else None)  # an epoch's last may be smaller
        if self.trainer.accelerator.gradient_state.sync_gradients:
            self.tracker.step(self.trainer.accelerator.scaler)
        return loss

    def _log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if self.tracker is not None and "loss" in logs:
            logs = logs | self.tracker.scalars(self.prefix)
        self._inside["log"](logs, *args, **kwargs)


def _rows(inputs: Any) -> int:
    return leading([value for value in inputs.values() if isinstance(value, torch.Tensor) and value.dim()])
