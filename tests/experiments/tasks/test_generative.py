import os

import pytest
import torch
from image_tasks import build, from_yaml, gradient, mean_of_parts, same_weights, train
from pydantic import ValidationError

from experiments.tasks.generative import AutoencoderConfig, VaeConfig, decoder, encoder

SMALL = {"source": "test-10k", "width": 4, "latent": 16, "eval_examples": 300}
NAMES = ["svhn_autoencoder", "svhn_vae"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("NOISESCALE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def test_yaml_lists_the_defaults():
    assert from_yaml("svhn_autoencoder") == AutoencoderConfig(name="svhn_autoencoder")
    assert from_yaml("svhn_vae") == VaeConfig(name="svhn_vae")


@pytest.mark.parametrize("bad", [{"pixel_std": 0.0}, {"latent": 0}, {"beta": 2.0}])
def test_config_refuses(bad):
    with pytest.raises(ValidationError):
        VaeConfig(name="svhn_vae", **bad)


def test_shapes_are_infogans():
    assert encoder(64, 128)(torch.zeros(2, 3, 32, 32)).shape == (2, 128)
    images = decoder(64, 128)(torch.randn(2, 128, generator=torch.Generator().manual_seed(0)))
    assert images.shape == (2, 3, 32, 32) and images.min() > 0 and images.max() < 1
    widths = [m.out_channels for m in decoder(64, 128) if isinstance(m, torch.nn.ConvTranspose2d)]
    assert widths == [256, 128, 64, 3] and decoder(64, 128)[0].out_features == 2 * 2 * 448


@pytest.mark.data
@pytest.mark.skipif("NOISESCALE_DATA" not in os.environ, reason="NOISESCALE_DATA is not set")
class TestOnTheCrops:
    def test_the_autoencoders_loss_is_the_mean_square_over_pixels(self):
        task = build("svhn_autoencoder", **SMALL)
        (images,) = batch = task.batch(8, torch.Generator().manual_seed(0))
        assert images.min() >= 0 and images.max() <= 1 and images.std() > 0.1
        difference = (task.model(images) - images).double()
        assert task.loss(batch).item() == pytest.approx((difference**2).sum().item() / (8 * 3072), rel=1e-5)

    def test_the_vaes_loss_is_its_gaussian_bound_scaled(self):
        sigma = 0.1
        task = build("svhn_vae", **SMALL)
        images, noise = batch = task.batch(8, torch.Generator().manual_seed(0))
        encode, decode = task.model
        mean, log_var = encode(images).chunk(2, dim=1)
        std = (log_var / 2).exp()
        posterior, prior = torch.distributions.Normal(mean, std), torch.distributions.Normal(0.0, 1.0)
        kl = torch.distributions.kl_divergence(posterior, prior).sum(1)
        pixel = torch.distributions.Normal(decode(mean + std * noise), sigma)
        likelihood = pixel.log_prob(images).flatten(1).sum(1)
        constant = torch.distributions.Normal(0.0, sigma).log_prob(torch.tensor(0.0)) * 3072
        bound = (constant - likelihood + kl).mean() * 2 * sigma**2 / 3072
        assert task.loss(batch).item() == pytest.approx(bound.item(), rel=1e-4)

    @pytest.mark.parametrize("name", NAMES)
    def test_evaluation_is_the_loss_on_the_fixed_images(self, name):
        torch.manual_seed(5)
        state = torch.get_rng_state()
        task = build(name, **SMALL)
        fixed = (task.fixed, task.fixed_noise) if name == "svhn_vae" else (task.fixed,)
        loss, metric = task.evaluate()
        assert (loss, metric) == task.evaluate() and loss == metric
        assert loss == pytest.approx(task.loss(fixed).item(), rel=1e-5)
        assert torch.get_rng_state().equal(state)

    @pytest.mark.parametrize("name", NAMES)
    def test_cutting_a_batch_changes_its_gradient_by_rounding_only(self, name):
        task = build(name, **SMALL)
        batch = task.batch(16, torch.Generator().manual_seed(0))
        whole = gradient(task, batch)
        assert (whole - mean_of_parts(task, batch, 1)).norm() < 1e-4 * whole.norm()

    @pytest.mark.parametrize("name", NAMES)
    def test_learns_to_draw_and_reruns_bit_for_bit(self, name):
        one, two = build(name, **SMALL), build(name, **SMALL)
        assert train(one, 150, 16, 3e-3, adam=True) == train(two, 150, 16, 3e-3, adam=True)
        assert same_weights(one, two) and one.evaluate() == two.evaluate()
        assert one.evaluate().metric < 0.032
