"""The image tasks on a GPU: the same draws, and numbers that differ by rounding."""

import os

import pytest
import torch

from experiments.tasks import TASKS

TASK_FIELDS = {
    "svhn": {"source": "test-10k", "width": 4, "eval_examples": 500},
    "svhn_vae": {"source": "test-10k", "width": 4, "latent": 16, "eval_examples": 500},
    "cifar10": {"width": 4, "blocks": (1, 1), "stem": 2, "ghost_batch": 16, "eval_examples": 512},
}


@pytest.mark.cuda
@pytest.mark.data
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.skipif("NOISESCALE_DATA" not in os.environ, reason="NOISESCALE_DATA is not set")
@pytest.mark.parametrize("name", TASK_FIELDS)
def test_cpu_and_gpu_differ_by_rounding(name, tmp_path, monkeypatch):
    monkeypatch.setenv("NOISESCALE_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    config, build = TASKS[name]
    here, there = (build(config(name=name, **TASK_FIELDS[name]), 0, torch.device(d)) for d in ("cpu", "cuda"))
    losses = []
    for task in (here, there):
        batch = task.batch(64, torch.Generator().manual_seed(1))
        loss = task.loss(batch)
        loss.backward()
        gradient = torch.cat([p.grad.flatten().cpu() for p in task.model.parameters()])
        losses.append(([tensor.cpu() for tensor in batch], loss.item(), gradient, task.evaluate()))
    (batch, loss, gradient, evaluation), (batch_there, loss_there, gradient_there, evaluation_there) = losses
    for a, b in zip(batch, batch_there, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert loss_there == pytest.approx(loss, rel=1e-4)
    assert (gradient - gradient_there).norm() < 1e-3 * gradient.norm()
    assert evaluation_there.loss == pytest.approx(evaluation.loss, rel=1e-4)
