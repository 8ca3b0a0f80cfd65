import os

import pytest
from image_tasks import build, from_yaml, same_weights, train
from pydantic import ValidationError

from experiments.tasks import augmented
from experiments.tasks.imagenet import ImagenetConfig

SMALL = {
    "classes": 10,
    "images_per_class": 100,
    "width": 4,
    "blocks": (1, 1),
    "bottleneck": False,
    "stem": 2,
    "ghost_batch": 16,
    "eval_examples": 256,
    "pad": 4,
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("NOISESCALE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_yaml_is_resnet_50_and_the_defaults():
    config = from_yaml("imagenet")
    assert config == ImagenetConfig(name="imagenet")
    assert (config.width, config.blocks, config.bottleneck, config.stem) == (64, (3, 4, 6, 3), True, 4)


@pytest.mark.parametrize("bad", [{"source": "imagenet21k"}, {"classes": 0}, {"images_per_class": 0}, {"pad": -1}])
def test_config_refuses(bad):
    with pytest.raises(ValidationError):
        ImagenetConfig(name="imagenet", **bad)


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif("NOISESCALE_DATA" not in os.environ, reason="NOISESCALE_DATA is not set")
@pytest.mark.parametrize(("source", "resolution"), [("tiny-imagenet", 32), ("imagenette", 64)])
def test_a_subset_has_its_classes_and_learns_bit_for_bit(source, resolution):
    one, two = (build("imagenet", source=source, resolution=resolution, **SMALL) for _ in range(2))
    assert one.set.images.shape == (1000, 3, resolution, resolution)
    assert one.set.labels.bincount().tolist() == [100] * 10
    before = one.evaluate()
    assert train(one, 80, 32, 0.1) == train(two, 80, 32, 0.1)
    assert same_weights(one, two) and one.evaluate() == two.evaluate()
    assert one.evaluate().loss < before.loss
    assert source in one.data and "1,000 training images" in one.data


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.skipif("NOISESCALE_DATA" not in os.environ, reason="NOISESCALE_DATA is not set")
def test_a_set_that_stays_in_its_file_gives_the_same_training(monkeypatch):
    small = {"source": "tiny-imagenet", "resolution": 32, **SMALL}
    resident = build("imagenet", **small)
    monkeypatch.setattr(augmented, "RESIDENT", 1 << 20)
    in_file = build("imagenet", **small)
    assert train(resident, 20, 32, 0.1) == train(in_file, 20, 32, 0.1)
    assert same_weights(resident, in_file)
