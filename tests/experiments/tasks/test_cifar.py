import os

import pytest
import torch
from image_tasks import build, from_yaml, gradient, mean_of_parts, same_weights, train
from pydantic import ValidationError

from experiments.errors import UserError
from experiments.tasks.cifar import MEAN, STD, CifarConfig

SMALL = {"width": 4, "blocks": (1, 1, 1), "stem": 2, "ghost_batch": 16, "eval_examples": 512}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("NOISESCALE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_yaml_is_resnet_32_and_the_defaults():
    config = from_yaml("cifar10")
    assert config == CifarConfig(name="cifar10")
    assert (config.width, config.blocks, config.stem, config.norm) == (16, (5, 5, 5), 1, "batch")


@pytest.mark.parametrize("bad", [{"norm": "layer"}, {"stem": 4}, {"blocks": (0,)}, {"blocks": ()}, {"ghost_batch": 0}])
def test_config_refuses(bad):
    with pytest.raises(ValidationError):
        CifarConfig(name="cifar10", **bad)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif("NOISESCALE_DATA" not in os.environ, reason="NOISESCALE_DATA is not set")
class TestOnTheImages:
    def test_ten_classes_of_5000_and_the_channels_means(self):
        task = build("cifar10", **SMALL)
        assert task.set.images.shape == (50_000, 3, 32, 32)
        assert task.set.labels.bincount().tolist() == [5000] * 10
        pixels = task.set.images[:10_000].double() / 255
        torch.testing.assert_close(pixels.mean((0, 2, 3)), torch.tensor(MEAN).double(), atol=0.01, rtol=0)
        torch.testing.assert_close(pixels.std((0, 2, 3)), torch.tensor(STD).double(), atol=0.01, rtol=0)

    def test_a_batch_is_the_generators_and_cutting_it_by_ghost_batches_changes_rounding_only(self):
        task = build("cifar10", **SMALL)
        batch, again = (task.batch(64, torch.Generator().manual_seed(2)) for _ in range(2))
        assert all(a.equal(b) for a, b in zip(batch, again, strict=True))
        assert batch[0].shape == (64, 3, 32, 32) and batch[0].dtype == torch.float32
        whole = gradient(task, batch)
        assert (whole - mean_of_parts(task, batch, 16)).norm() < 1e-4 * whole.norm()
        assert (whole - mean_of_parts(task, batch, 8)).norm() > 1e-2 * whole.norm()

    def test_group_normalisation_allows_any_cut(self):
        task = build("cifar10", **SMALL | {"norm": "group"})
        batch = task.batch(16, torch.Generator().manual_seed(2))
        whole = gradient(task, batch)
        assert (whole - mean_of_parts(task, batch, 1)).norm() < 1e-4 * whole.norm()

    def test_error_on_ghost_batches_needs_a_multiple(self):
        with pytest.raises(UserError, match=r"eval_examples=500 .*ghost_batch=16\n"):
            build("cifar10", **SMALL | {"eval_examples": 500})

    def test_learns_and_reruns_bit_for_bit(self):
        one, two = build("cifar10", **SMALL), build("cifar10", **SMALL)
        assert train(one, 120, 32, 0.1) == train(two, 120, 32, 0.1)
        assert same_weights(one, two) and one.evaluate() == two.evaluate()
        assert one.evaluate().metric < 0.8
