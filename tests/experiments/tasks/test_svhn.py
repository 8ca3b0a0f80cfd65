import os

import pytest
import torch
from image_tasks import build, from_yaml, gradient, mean_of_parts, same_weights, train
from pydantic import ValidationError
from scipy.io import loadmat

from experiments.errors import UserError
from experiments.tasks.cnn import PaperCNN, dropout_mask
from experiments.tasks.svhn import MEAN, STD, SvhnConfig

needs_data = [
    pytest.mark.data,
    pytest.mark.skipif("NOISESCALE_DATA" not in os.environ, reason="NOISESCALE_DATA is not set"),
]
SMALL = {"source": "test-10k", "width": 4, "eval_examples": 1000}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("NOISESCALE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize("name", ["svhn", "svhn_adam"])
def test_yaml_is_the_papers_network_and_the_defaults(name):
    assert from_yaml(name) == SvhnConfig(name=name)
    model = PaperCNN(3, 32, 10, from_yaml(name).width)
    assert (model.conv1.out_channels, model.conv2.out_channels, model.dense.out_features) == (32, 64, 1024)


@pytest.mark.parametrize("bad", [{"source": "extra"}, {"width": 0}, {"dropout": 1.0}, {"depth": 3}])
def test_config_refuses(bad):
    with pytest.raises(ValidationError):
        SvhnConfig(name="svhn", **bad)


def test_dropout_mask_keeps_the_mean_and_drops_the_share():
    mask = dropout_mask(500, 200, 0.4, torch.Generator().manual_seed(0))
    assert set(mask.unique().tolist()) == {0.0, torch.tensor(1 / 0.6).item()}
    assert abs((mask == 0).float().mean() - 0.4) < 5 * (0.24 / 100_000) ** 0.5
    assert dropout_mask(3, 4, 0.0, torch.Generator()).equal(torch.ones(3, 4))


class TestOnTheCrops:
    pytestmark = needs_data

    def test_batches_are_the_crops_with_their_digits(self):
        mat = loadmat(os.path.join(os.environ["NOISESCALE_DATA"], "svhn", "train_32x32.mat"))
        pixels = torch.from_numpy(mat["X"]).permute(3, 2, 0, 1)
        task = build("svhn", **SMALL)
        assert task.set.images.equal(pixels)
        assert task.set.labels.tolist() == [int(y) % 10 for y in mat["y"].ravel()]
        images, labels, keep = task.batch(40, torch.Generator().manual_seed(3))
        assert images.shape == (40, 3, 32, 32) and keep.shape == (40, 128)
        mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (MEAN, STD))
        drawn = ((images * std + mean) * 255).round().to(torch.uint8)
        for image, label in zip(drawn, labels, strict=True):
            (place,) = (pixels == image).flatten(1).all(1).nonzero()
            assert task.set.labels[place] == label

    def test_cutting_a_batch_changes_its_gradient_by_rounding_only(self):
        task = build("svhn", **SMALL)
        batch = task.batch(64, torch.Generator().manual_seed(0))
        whole, parts = gradient(task, batch), mean_of_parts(task, batch, 16)
        assert (whole - parts).norm() < 1e-5 * whole.norm()

    def test_error_is_of_fixed_images_without_dropout_and_leaves_the_random_state_alone(self):
        torch.manual_seed(5)
        state = torch.get_rng_state()
        task, other = build("svhn", seed=1, **SMALL), build("svhn", seed=1, **SMALL)
        assert same_weights(task, other) and not same_weights(task, build("svhn", seed=2, **SMALL))
        task.batch(8, torch.Generator().manual_seed(0))
        loss, error = task.evaluate()
        assert task.evaluate() == (loss, error) == other.evaluate()
        assert torch.get_rng_state().equal(state)
        logits = task.model(task.eval_images)
        assert error == (logits.argmax(1) != task.eval_labels).double().mean().item()
        assert loss == pytest.approx(torch.nn.functional.cross_entropy(logits, task.eval_labels).item(), rel=1e-5)
        assert "8,000" in task.data and "1,000" in task.data

    def test_more_to_evaluate_on_than_there_are(self):
        with pytest.raises(UserError, match=r"eval_examples=9000.*8,000"):
            build("svhn", **SMALL | {"eval_examples": 9000})

    def test_learns_the_digits_and_reruns_bit_for_bit(self):
        one, two = build("svhn_adam", **SMALL), build("svhn_adam", **SMALL)
        assert train(one, 250, 64, 3e-3, adam=True) == train(two, 250, 64, 3e-3, adam=True)
        assert same_weights(one, two)
        assert one.evaluate() == two.evaluate()
        assert one.evaluate().metric < 0.45
