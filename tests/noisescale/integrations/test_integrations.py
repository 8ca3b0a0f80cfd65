"""The callbacks inside the real trainers: exact, invisible to training, in the logs and in the checkpoints."""

import json
import math
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn
from zoo import flat, sq_norms

from noisescale import gradient_moments

ROWS = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))
LABELS = (ROWS.sum(1) > 0).long()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def first_step_truth(sizes, weights=None):
    """The pair at the first step: the first rows, in order, at the initial weights."""
    model = network().double()
    each = {n: [] for n, _ in model.named_parameters()}
    for x, y in zip(ROWS[: sum(sizes)].double(), LABELS, strict=False):
        value = nn.functional.cross_entropy(model(x[None]), y[None])
        for n, g in zip(each, torch.autograd.grad(value, list(model.parameters())), strict=True):
            each[n].append(g.flatten())
    parts = torch.stack([p.mean(0) for p in flat({n: torch.stack(g) for n, g in each.items()}).split(sizes)])
    w = torch.tensor(weights or [1.0] * len(sizes), dtype=torch.float64)
    return gradient_moments(sq_norms(parts), sizes, sq_norms(w / w.sum() @ parts), weights=w)


@pytest.fixture(autouse=True)
def their_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class TestHuggingFace:
    @pytest.fixture(autouse=True)
    def library(self):
        pytest.importorskip("transformers")

    def run(self, folder, measure, steps=6, resume=False, clip=0.05, accumulation=3):
        import transformers

        from noisescale.integrations.huggingface import NoiseScaleCallback

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.network = network()

            def forward(self, x, labels):
                logits = self.network(x)
                return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

        class InOrder(transformers.Trainer):
            def _get_train_sampler(self, *args):
                return torch.utils.data.SequentialSampler(self.train_dataset)

        rows = [{"x": x, "labels": y} for x, y in zip(ROWS, LABELS, strict=True)]
        arguments = transformers.TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=4, gradient_accumulation_steps=accumulation,
            max_steps=steps, max_grad_norm=clip, logging_steps=1, save_steps=3, use_cpu=True, report_to=[],
            disable_tqdm=True, learning_rate=0.01, seed=0, lr_scheduler_type="constant",
        )  # fmt: skip
        trainer = InOrder(Model(), arguments, train_dataset=rows)
        callback = NoiseScaleCallback(trainer, window=50) if measure else None
        if callback is not None:
            trainer.add_callback(callback)
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-3") if resume else None)
        return trainer, callback

    def test_exact_before_clipping_and_in_the_logs(self, tmp_path):
        trainer, callback = self.run(tmp_path, True, steps=1)
        moments, scale = first_step_truth([4, 4, 4]), callback.tracker.estimate()
        assert scale.grad_sq_norm == pytest.approx(float(moments.grad_sq_norm), rel=1e-4)
        assert scale.trace_cov == pytest.approx(float(moments.trace_cov), rel=1e-4)
        logged = [row for row in trainer.state.log_history if "loss" in row]
        for field in ("trace_cov", "grad_sq_norm"):
            assert logged[0][f"noise_scale/{field}"] == getattr(scale, field)
        assert math.isnan(logged[0]["noise_scale/b_simple"])  # of a single step

    def test_a_smaller_last_micro_batch_counts_by_its_items_where_the_loss_does(self, tmp_path):
        import transformers

        from noisescale.integrations.huggingface import NoiseScaleCallback

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.network = network()

            def forward(self, x, labels, num_items_in_batch=None, **kwargs):
                total = nn.functional.cross_entropy(self.network(x), labels, reduction="sum")
                return {"loss": total / (len(x) if num_items_in_batch is None else num_items_in_batch)}

        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=4, gradient_accumulation_steps=3, max_steps=1,
            use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no",
        )  # fmt: skip
        rows = [{"x": x, "labels": y} for x, y in zip(ROWS[:9], LABELS[:9], strict=True)]
        trainer = transformers.Trainer(Model(), arguments, train_dataset=rows)
        trainer._get_train_sampler = lambda *args: torch.utils.data.SequentialSampler(rows)
        callback = NoiseScaleCallback(trainer)
        trainer.add_callback(callback)
        trainer.train()
        moments, scale = first_step_truth([4, 4, 1], [4.0, 4.0, 1.0]), callback.tracker.estimate()
        assert scale.grad_sq_norm == pytest.approx(float(moments.grad_sq_norm), rel=1e-4)
        assert scale.trace_cov == pytest.approx(float(moments.trace_cov), rel=1e-4)

    def test_training_is_the_same_bit_for_bit_and_the_trainer_is_left_as_it_was(self, tmp_path):
        with_it, _ = self.run(tmp_path / "a", True)
        without, _ = self.run(tmp_path / "b", False)
        for a, b in zip(with_it.model.parameters(), without.model.parameters(), strict=True):
            assert torch.equal(a, b) and not a._backward_hooks
        assert "training_step" not in with_it.__dict__ and "log" not in with_it.__dict__

    def test_a_checkpoint_brings_the_estimate_back(self, tmp_path):
        _, straight = self.run(tmp_path, True)
        _, resumed = self.run(tmp_path, True, resume=True)
        assert resumed.tracker.estimate() == straight.tracker.estimate()
        assert resumed.tracker.estimate().steps == pytest.approx(6)

    def test_one_gradient_a_step_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match="gradient_accumulation_steps × ranks is 1"):
            self.run(tmp_path, True, accumulation=1)

    def test_a_training_step_of_the_trainers_own_is_kept_also_where_training_breaks_off(self, tmp_path):
        trainer, callback = self.run(tmp_path, True, steps=1)
        calls = []

        def own(model, inputs, *args):
            calls.append(len(inputs["x"]))
            if len(calls) == 2:
                raise KeyboardInterrupt
            return type(trainer).training_step(trainer, model, inputs, *args)

        trainer.training_step = own
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        trainer.train()
        assert calls == [4] * 5 and trainer.training_step is own
        assert callback.tracker.estimate().steps == 1
        assert not any(p._backward_hooks for p in trainer.model.parameters())

    def test_a_second_callback_is_refused(self, tmp_path):
        from noisescale.integrations.huggingface import NoiseScaleCallback

        trainer, _ = self.run(tmp_path, True, steps=1)
        trainer.add_callback(NoiseScaleCallback(trainer))
        with pytest.raises(ValueError, match="already"):
            trainer.train()


class TestLightning:
    @pytest.fixture(autouse=True)
    def library(self):
        pytest.importorskip("lightning")

    def run(self, folder, measure, steps=6, resume=None, clip=0.05, accumulation=3, precision="32-true"):
        import lightning.pytorch as pl
        from lightning.pytorch.loggers import CSVLogger

        from noisescale.integrations.lightning import NoiseScaleCallback

        class Module(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.network = network()

            def training_step(self, batch, index):
                return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters(), lr=0.01)

        # 9 batches, 3 steps an epoch: a plain DataLoader starts over when resumed, so that half-way is an epoch's end
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ROWS[:36], LABELS[:36]), batch_size=4)
        callback = NoiseScaleCallback(window=50) if measure else None
        module = Module()
        saver = pl.callbacks.ModelCheckpoint(folder, every_n_epochs=1, save_top_k=-1)
        trainer = pl.Trainer(
            max_steps=steps, accumulate_grad_batches=accumulation, gradient_clip_val=clip, accelerator="cpu",
            logger=CSVLogger(folder), log_every_n_steps=1, enable_progress_bar=False, enable_model_summary=False,
            precision=precision, callbacks=[saver, callback] if callback else [saver],
        )  # fmt: skip
        trainer.fit(module, loader, ckpt_path=resume, weights_only=False if resume else None)
        return trainer, callback, module

    def test_exact_before_clipping_and_in_the_logger(self, tmp_path):
        trainer, callback, _ = self.run(tmp_path, True, steps=1)
        moments, scale = first_step_truth([4, 4, 4]), callback.tracker.estimate()
        assert scale.grad_sq_norm == pytest.approx(float(moments.grad_sq_norm), rel=1e-4)
        assert scale.trace_cov == pytest.approx(float(moments.trace_cov), rel=1e-4)
        for field in ("trace_cov", "grad_sq_norm"):
            logged = trainer.logged_metrics[f"noise_scale/{field}"]
            assert float(logged) == pytest.approx(getattr(scale, field), rel=1e-6)

    def test_training_is_the_same_bit_for_bit(self, tmp_path):
        _, _, with_it = self.run(tmp_path / "a", True)
        _, _, without = self.run(tmp_path / "b", False)
        for a, b in zip(with_it.parameters(), without.parameters(), strict=True):
            assert torch.equal(a, b) and not a._backward_hooks

    def test_a_checkpoint_brings_the_estimate_back(self, tmp_path):
        _, straight, _ = self.run(tmp_path / "a", True)
        _, resumed, _ = self.run(tmp_path / "b", True, resume=tmp_path / "a" / "epoch=0-step=3.ckpt")
        first, after = (c.tracker.state_dict()["averages"][""]["rows"] for c in (straight, resumed))
        assert torch.equal(first[:3], after[:3])
        # Lightning steps after a single batch when it resumes at an epoch's end: no two gradients, skipped and counted.
        assert len(after) == 5 and resumed.tracker.estimate().dropped == 1

    def test_a_fit_after_a_resumed_one_begins_anew(self, tmp_path):
        self.run(tmp_path / "a", True)
        trainer, callback, module = self.run(tmp_path / "b", True, resume=tmp_path / "a" / "epoch=0-step=3.ckpt")
        callback.on_train_start(trainer, module)
        assert callback.tracker.estimate().steps == 0

    def test_a_fit_that_breaks_off_leaves_no_hooks(self):
        import lightning.pytorch as pl

        found = {}

        class Break(pl.Callback):
            def on_train_batch_end(self, trainer, pl_module, *_):
                found["parameters"] = list(pl_module.parameters())
                raise RuntimeError("no more")

        with pytest.raises(RuntimeError, match="no more"):
            self.fit(self.batches(4), [Break()], accumulate_grad_batches=2)
        assert found and not any(p._backward_hooks for p in found["parameters"])

    def fit(self, batches, callbacks=(), epochs=1, **options):
        """On a network that doesn't move, so that every step's truth is that of the initial weights."""
        import lightning.pytorch as pl

        from noisescale.integrations.lightning import NoiseScaleCallback

        class Module(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.network = network()

            def training_step(self, batch, index):
                return nn.functional.cross_entropy(self.network(batch["x"]), batch["y"])

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.0)

        callback = NoiseScaleCallback(window=50)
        trainer = pl.Trainer(
            max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False,
            enable_model_summary=False, callbacks=[*callbacks, callback], **options,
        )  # fmt: skip
        trainer.fit(Module(), torch.utils.data.DataLoader(batches, batch_size=None))
        return callback.tracker

    def batches(self, count):
        temperature = torch.tensor(1.0)  # no examples in it
        return [{"x": x, "y": y, "t": temperature} for x, y in zip(ROWS.split(4), LABELS.split(4), strict=True)][:count]

    def test_an_epochs_last_short_accumulation_is_exact(self):
        tracker = self.fit(self.batches(5)[3:] + self.batches(2), accumulate_grad_batches=3)
        assert tracker.estimate().steps == 1 and tracker.estimate().dropped == 1  # three, then one alone
        tracker = self.fit(self.batches(2), accumulate_grad_batches=3)
        moments, scale = first_step_truth([4, 4]), tracker.estimate()
        assert scale.grad_sq_norm == pytest.approx(float(moments.grad_sq_norm), rel=1e-4)
        assert scale.trace_cov == pytest.approx(float(moments.trace_cov), rel=1e-4)

    def test_a_schedule_of_accumulation(self):
        from lightning.pytorch.callbacks import GradientAccumulationScheduler

        tracker = self.fit(self.batches(4), [GradientAccumulationScheduler({0: 1, 1: 2})], epochs=2)
        assert tracker.estimate().steps == pytest.approx(2) and tracker.estimate().dropped == 4
        with pytest.raises(ValueError, match="accumulate_grad_batches × ranks is 1"):
            self.fit(self.batches(4), [GradientAccumulationScheduler({0: 1})])

    def test_one_gradient_a_step_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match="accumulate_grad_batches × ranks is 1"):
            self.run(tmp_path, True, accumulation=1)


def test_the_library_itself_imports_none_of_it():
    code = "import sys, json, noisescale; print(json.dumps([*sys.modules]))"
    modules = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
    loaded = {*modules, *(name.split(".")[0] for name in modules)}
    banned = {"transformers", "lightning", "accelerate", "hydra", "wandb", "pandas", "matplotlib", "gymnasium"}
    assert not loaded & (banned | {"torch._dynamo"}), "which take seconds to import"
