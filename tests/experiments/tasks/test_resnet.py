import pytest
import torch
from torch import nn

from experiments.data.image_cache import channels_last
from experiments.tasks.resnet import GhostBatchNorm, ResNet, in_words, norm_layer
from experiments.tasks.rl.policy import Policy
from noisescale import NoiseTracker


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_resnet_50_has_the_layers_of_the_reference():
    from torchvision.models import resnet50

    ours = ResNet(64, (3, 4, 6, 3), 1000, 4, True, norm_layer("batch", 32))
    assert parameters(ours) == parameters(resnet50()) == 25_557_032


def test_resnet_32_has_31_convolutions_and_a_dense_layer():
    model = ResNet(16, (5, 5, 5), 10, 1, False, norm_layer("batch", 64))
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) == 31
    assert sum(c.weight.numel() for c in convolutions) == 461_232


@pytest.mark.parametrize(
    ("blocks", "stem", "bottleneck", "depth"), [((5, 5, 5), 1, False, 32), ((3, 4, 6, 3), 4, True, 50)]
)
def test_in_words_it_has_the_number_by_which_it_is_known(blocks, stem, bottleneck, depth):
    said = in_words(8, blocks, stem, bottleneck, "group", 32, "another")
    assert said.startswith(f"ResNet-{depth} of 8 channels, stem of stride {stem}, group normalisation (the paper's:")


@pytest.mark.parametrize(("stem", "side"), [(1, 32), (2, 16), (4, 8)])
def test_stem_sets_the_first_resolution(stem, side):
    model = ResNet(4, (1, 1), 7, stem, False, norm_layer("group", 8))
    seen = []
    for block in model.body:
        block.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[-1]))
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 7)
    assert seen[-2:] == [side, side // 2]


def test_ghost_batches_are_batch_normalisation_of_each_part():
    torch.manual_seed(0)
    layer, x = GhostBatchNorm(3, 4), torch.randn(12, 3, 5, 5) * 2 + 1
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
        layer.bias.copy_(torch.tensor([0.1, 0.2, 0.3]))
    out = layer(x)
    for start in (0, 4, 8):
        part = x[start : start + 4].double()
        mean, var = part.mean((0, 2, 3), keepdim=True), part.var((0, 2, 3), unbiased=False, keepdim=True)
        scale, shift = (p.detach().double().view(1, 3, 1, 1) for p in (layer.weight, layer.bias))
        wanted = scale * (part - mean) / (var + 1e-5).sqrt() + shift
        torch.testing.assert_close(out[start : start + 4].double(), wanted, rtol=1e-5, atol=1e-5)


def test_ghost_batches_do_not_depend_on_how_a_batch_is_cut_but_plain_ones_do():
    torch.manual_seed(0)
    x = torch.randn(16, 3, 8, 8)

    def difference(size: int) -> float:
        model = ResNet(4, (1, 1), 5, 1, False, norm_layer("batch", size))
        return (model(x) - torch.cat([model(part) for part in x.split(8)])).abs().max().item()

    assert difference(4) < 1e-5 < 1e-2 < difference(16)


def test_batches_that_no_ghost_batch_divides_are_refused():
    layer = GhostBatchNorm(3, 8)
    assert layer(torch.randn(5, 3, 2, 2)).shape == (5, 3, 2, 2)
    with pytest.raises(ValueError, match=r"12 examples .* ghost batches of 8"):
        layer(torch.randn(12, 3, 2, 2))


def test_examples_are_coupled_by_batch_normalisation_and_not_by_group_normalisation():
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8)
    changed = torch.cat([x[:3], torch.randn(1, 3, 8, 8)])
    for norm, coupled in (("batch", True), ("group", False)):
        model = ResNet(4, (1, 1), 5, 1, False, norm_layer(norm, 4))
        assert torch.allclose(model(x)[:3], model(changed)[:3], atol=1e-6) is not coupled


def test_forward_leaves_no_state_behind():
    model = ResNet(4, (1, 1), 5, 1, False, norm_layer("batch", 4))
    assert not list(model.buffers())
    x = torch.randn(4, 3, 8, 8)
    before = model(x)
    model(torch.randn(8, 3, 8, 8))
    assert model(x).equal(before)


def summed_squares(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    """A mean over examples of something of all outputs."""
    parts = outputs if isinstance(outputs, tuple) else (outputs,)
    return sum((part.flatten(1) if part.dim() > 1 else part[:, None]).square().sum(1).mean() for part in parts)


@pytest.mark.parametrize("network", ["resnet", "resnet-50's stem", "policy"])
def test_single_examples_have_gradients_by_vmap_as_by_themselves(network):
    torch.manual_seed(0)
    if network == "policy":
        model, batch = Policy("small", (4, 84, 84), 6, 0), torch.randint(256, (6, 4, 84, 84)).to(torch.uint8)
    else:
        stem = 1 if network == "resnet" else 4
        model, batch = ResNet(4, (1, 1), 5, stem, stem == 4, norm_layer("group", 4)), torch.randn(6, 3, 16, 16)

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return summed_squares(model(batch))

    tracker = NoiseTracker(model, window=10)
    tracker.per_example(loss, batch, chunk=4)
    singles = [torch.autograd.grad(loss(model, one[None]), list(model.parameters())) for one in batch]
    rows = torch.stack([torch.cat([g.flatten() for g in of_one]) for of_one in singles]).double()
    assert tracker.estimate().trace_cov == pytest.approx(rows.var(0).sum().item(), rel=1e-4)


def test_layout_is_that_of_torch():
    images = torch.randn(2, 3, 4, 5)
    ours, theirs = channels_last(images), images.contiguous(memory_format=torch.channels_last)
    assert ours.equal(theirs) and ours.stride() == theirs.stride()


def test_ghost_batches_are_refused_by_name_where_each_example_is_asked_for():
    model = ResNet(4, (1,), 5, 1, False, norm_layer("batch", 4))
    with pytest.raises(ValueError, match=r"body\.1, .*BatchNorm couples"):
        NoiseTracker(model, window=10).per_example(
            lambda model, x: model(x).square().mean(), torch.randn(4, 3, 8, 8), chunk=4
        )
