"""Every example's norm, by vmap and by hooks, against one backward pass an example."""

import gc
from collections import UserDict

import pytest
import torch
from torch import nn
from zoo import BATCH, MODELS, BehindItsBack, assert_same, build, data, exact_gradients, loss, truth

from noisescale import NoiseTracker, per_example_sq_norms


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chunk", [5, 32])
def test_vmap_gives_every_examples_norm(name, chunk):
    model, batch = build(name), data(name)
    found = per_example_sq_norms(model, loss, batch, chunk)
    for n, gradients in exact_gradients(model, batch).items():
        torch.testing.assert_close(found.sq_norms[n], (gradients**2).sum(1), rtol=1e-10, atol=1e-20)
        torch.testing.assert_close(found.mean_sq_norm[n], (gradients.mean(0) ** 2).sum(), rtol=1e-10, atol=1e-20)


@pytest.mark.parametrize("name", MODELS)
def test_beside_training(name):
    model, batch = build(name), data(name)
    each, halves = NoiseTracker(model), NoiseTracker(model, groups="layer")
    each.per_example(loss, batch)
    halves.probe(loss, batch, parts=3)
    assert_same(each.estimate(), truth(model, batch, [1] * BATCH))
    assert_same(halves.estimate(), truth(model, batch, [4, 4, 4]))
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sizes", [[BATCH], [8, 4]], ids=str)
def test_example_hooks_give_the_same_as_single_examples(name, sizes):
    model, batch = build(name), data(name)
    tracker = NoiseTracker(model, groups="layer", window=1)
    tracker.use_example_hooks()
    for _ in range(2):
        model.zero_grad()
        for piece in zip(*(t.split(sizes) for t in batch), strict=True):
            (loss(model, piece) * len(piece[0]) / BATCH).backward()
            tracker.micro_batch(len(piece[0]), len(piece[0]) / BATCH)
        tracker.step()
        found = tracker.estimates()
        tracker.close()
        assert_same(found["total"], truth(model, batch, [1] * BATCH))
        assert found["total"].examples == BATCH
        for group in set(found) - {"total"}:
            names = [n for n, _ in model.named_parameters() if n.rpartition(".")[0] == group]
            assert_same(found[group], truth(model, batch, [1] * BATCH, names=names))
        tracker = NoiseTracker(model, groups="layer", window=1)
        tracker.use_example_hooks()


class Layers(nn.Module):
    """A layer alone, with a head that makes positions and channels count differently."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        y = self.layer(x)
        y = y[0] if isinstance(y, tuple) else y
        return (y.flatten(1) ** 2) @ torch.linspace(1, 2, y[0].numel(), dtype=y.dtype)


def squares(tracker):
    """Σ over the examples of the last part, by parameter."""
    return tracker._collector._sheet.copy(1) ** 2


CASES = {
    "linear on vectors": (nn.Linear(5, 3), (4, 5)),
    "linear on few positions": (nn.Linear(40, 30), (4, 3, 40)),
    "linear on many positions": (nn.Linear(3, 2, bias=False), (4, 6, 2, 3)),
    "conv2d strided, dilated, grouped": (nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 2), (1, 2), groups=2), (3, 4, 9, 8)),
    "conv2d same": (nn.Conv2d(2, 3, (3, 5), padding="same"), (3, 2, 6, 5)),
    "conv2d circular": (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (3, 2, 6, 5)),
    "conv2d 1x1 strided": (nn.Conv2d(2, 3, 1, stride=2), (3, 2, 6, 5)),
    "conv2d depthwise": (nn.Conv2d(4, 4, 3, groups=4), (3, 4, 6, 5)),
    "conv2d on many positions": (nn.Conv2d(5, 3, 3), (18, 5, 15, 14)),
    "conv2d on some positions": (nn.Conv2d(5, 3, (3, 4), (1, 2), (1, 2), (2, 1)), (18, 5, 9, 10)),
    "conv2d of three channels": (nn.Conv2d(3, 8, 3, padding=1), (18, 3, 6, 5)),
    "conv2d of twelve groups' channels": (nn.Conv2d(6, 16, 3, groups=2), (3, 6, 6, 5)),
    "conv2d on few positions": (nn.Conv2d(8, 9, 3, stride=2, padding=1), (18, 8, 3, 2)),
    "conv2d of more examples than are formed at once": (nn.Conv2d(2, 3, 3), (18, 2, 6, 5)),
    "conv1d": (nn.Conv1d(2, 4, 3, stride=2, padding=1, dilation=2), (3, 2, 9)),
    "layer norm over two": (nn.LayerNorm((3, 4)), (3, 2, 3, 4)),
    "layer norm without bias": (nn.LayerNorm(4, bias=False), (3, 4)),
    "rms norm": (nn.RMSNorm(4, eps=1e-3), (3, 5, 4)),
    "group norm": (nn.GroupNorm(2, 4), (3, 4, 5)),
    "lstm": (nn.LSTM(3, 4, batch_first=True), (5, 6, 3)),
    "lstm deep, both ways": (nn.LSTM(3, 4, num_layers=3, bidirectional=True, batch_first=True), (5, 6, 3)),
    "lstm without bias": (nn.LSTM(3, 4, num_layers=2, bias=False, batch_first=True), (5, 6, 3)),
}


@pytest.mark.parametrize("case", CASES)
def test_each_layers_rule_is_exact(case):
    torch.manual_seed(3)
    layer, shape = CASES[case]
    model, x = Layers(layer).double(), torch.randn(shape, dtype=torch.float64)
    tracker = NoiseTracker(model, groups=lambda name: name)
    tracker.use_example_hooks()
    model(x).mean().backward()
    tracker.micro_batch(len(x))
    ghost = squares(tracker) * len(x) ** 2
    tracker.close()
    for value, p in zip(ghost, model.parameters(), strict=True):
        each = [torch.autograd.grad(model(x[i : i + 1]).mean(), p)[0] for i in range(len(x))]
        assert value.item() == pytest.approx(sum((g**2).sum().item() for g in each), rel=1e-9)


@pytest.mark.parametrize("how", ["by place", "by name"])
def test_lstm_states_that_go_in_and_come_out(how):
    torch.manual_seed(0)
    layer = nn.LSTM(3, 4).double()  # time first
    x, start = torch.randn(6, 5, 3).double(), (torch.randn(1, 5, 4).double(), torch.randn(1, 5, 4).double())

    class Ends(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = layer

        def forward(self, x, h, c):
            output, (h, c) = self.lstm(x, (h, c)) if how == "by place" else self.lstm(hx=(h, c), input=x)
            return (output[-2] ** 2 + h[0] * c[0] + c[0] ** 2).sum(1)

    model = Ends()
    tracker = NoiseTracker(model, groups=lambda name: name)
    tracker.use_example_hooks()
    model(x, *start).mean().backward()
    tracker.micro_batch(5)
    ghost = squares(tracker) * 25
    tracker.close()
    for value, p in zip(ghost, model.parameters(), strict=True):
        each = [torch.autograd.grad(model(x, *start)[i], p)[0] for i in range(5)]
        assert value.item() == pytest.approx(sum((g**2).sum().item() for g in each), rel=1e-9)


def test_two_backward_passes_in_one_part_are_left_out():
    model, batch = build("mlp"), data("mlp")
    tracker = NoiseTracker(model)
    tracker.use_example_hooks()
    for passes in (1, 2, 1):  # the first step is the one that is checked
        for _ in range(passes):
            loss(model, batch).backward()
        tracker.micro_batch(BATCH)
        tracker.step()
        model.zero_grad()
    assert dict(tracker.skipped) == {"two backward passes reached one parameter within one part": 1}
    assert_same(tracker.estimate(), truth(model, batch, [1] * BATCH))


def test_two_losses_of_one_forward_pass_with_a_backward_each_are_left_out():
    model, (inputs, labels) = build("mlp"), data("mlp")
    tracker = NoiseTracker(model)
    tracker.use_example_hooks()
    for twice in (False, True, False):
        outputs = model(inputs)
        for again in (True, False) if twice else (False,):
            torch.nn.functional.cross_entropy(outputs, labels).backward(retain_graph=again)
        tracker.micro_batch(BATCH)
        tracker.step()
        model.zero_grad()
    assert dict(tracker.skipped) == {"two backward passes reached one parameter within one part": 1}
    assert_same(tracker.estimate(), truth(model, (inputs, labels), [1] * BATCH))


def test_a_layers_input_is_let_go_of_in_its_own_backward_pass():
    """Or as many activations as the model has stay in memory to the end of the step."""
    model = nn.Sequential(nn.Linear(5, 37), nn.ReLU(), nn.Linear(37, 2))
    tracker = NoiseTracker(model)
    tracker.use_example_hooks()

    def held():
        return sum(type(kept) is torch.Tensor and kept.shape == (4, 37) for kept in gc.get_objects())

    for _ in range(2):  # the first is checked
        total = model(torch.randn(4, 5)).square().sum(1).mean()
        forward = held()
        total.backward()
        backward = held()
        tracker.micro_batch(4)
        tracker.step()
        model.zero_grad()
    assert forward > 0 == backward


def test_padding_rows_have_no_gradient():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 3, padding_idx=0), nn.Flatten(), nn.Linear(12, 2)).double()
    ids = torch.randint(5, (6, 4))
    tracker = NoiseTracker(model, groups=lambda name: name)
    tracker.use_example_hooks()
    model(ids).square().sum(1).mean().backward()
    tracker.micro_batch(6)
    ghost = squares(tracker)[0] * 36
    tracker.close()
    each = [torch.autograd.grad(model(ids[i : i + 1]).square().sum(), model[0].weight)[0] for i in range(6)]
    assert ghost.item() == pytest.approx(sum((g**2).sum().item() for g in each))


@pytest.mark.parametrize("name", ["cnn", "resnet"])
def test_channels_last_gives_the_same_norms(name):
    model, (images, labels) = build(name).to(memory_format=torch.channels_last), data(name)
    tracker = NoiseTracker(model)
    tracker.use_example_hooks()
    loss(model, (images.to(memory_format=torch.channels_last), labels)).backward()
    tracker.micro_batch(BATCH)
    tracker.step()
    assert_same(tracker.estimate(), truth(build(name), (images, labels), [1] * BATCH))


def test_a_convolution_that_is_called_on_two_sizes():
    """Few positions once, many the other time: one gradient, from two kinds of sums."""
    torch.manual_seed(0)
    layer = nn.Conv2d(8, 8, 3, padding=1).double()

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return (self.layer(x) ** 2).mean((1, 2, 3)) + (self.layer(x[:, :, :2, :2]) ** 3).mean((1, 2, 3))

    model, x = Twice(), torch.randn(5, 8, 12, 12, dtype=torch.float64)
    tracker = NoiseTracker(model, groups=lambda name: name)
    tracker.use_example_hooks()
    model(x).mean().backward()
    tracker.micro_batch(5)
    ghost = squares(tracker) * 25
    tracker.close()
    for value, p in zip(ghost, model.parameters(), strict=True):
        each = [torch.autograd.grad(model(x[i : i + 1]).mean(), p)[0] for i in range(5)]
        assert value.item() == pytest.approx(sum((g**2).sum().item() for g in each), rel=1e-9)


def train(name, way):
    model = build(name, torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    tracker = NoiseTracker(model, every=2) if way else None
    if way == "hooks":
        tracker.use_example_hooks()
    for step in range(4):
        batch = data(name, seed=step, dtype=torch.float32)
        if way == "vmap":
            tracker.per_example(loss, batch)
        if way == "probe":
            tracker.probe(loss, batch)
        loss(model, batch).backward()
        if way == "hooks":
            tracker.micro_batch(BATCH)
            tracker.step()
        optimizer.step()
        optimizer.zero_grad()
    if way:
        assert tracker.estimate().steps == pytest.approx(2) and tracker.estimate().dropped == 0
    return [*model.parameters(), torch.get_rng_state()]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", ["hooks", "vmap", "probe"])
def test_training_is_the_same_bit_for_bit(name, way):
    assert all(torch.equal(a, b) for a, b in zip(train(name, way), train(name, ""), strict=True))


def test_splitting_the_one_backward_pass():
    model, batch = build("cnn"), data("cnn")
    tracker = NoiseTracker(model)
    value = tracker.backward(loss, batch, parts=5)
    tracker.step()
    sizes = [3, 3, 3, 3]
    assert value.item() == pytest.approx(loss(model, batch).item())
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    tracker.close()
    loss(model, batch).backward()
    for whole, p in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(whole, p.grad)
    assert_same(tracker.estimate(), truth(model, batch, sizes))
    with pytest.raises(ValueError, match="parts = 13: a batch of 12"):
        tracker.backward(loss, batch, parts=13)
    with pytest.raises(ValueError, match="parts = 1: a batch of 12 can be compared in 2 to 12"):
        tracker.probe(loss, batch, parts=1)


def test_batch_norm_is_refused_by_name():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(27, 3)).double()
    with pytest.raises(ValueError, match="1: BatchNorm couples"):
        NoiseTracker(model).per_example(loss, data("cnn"))
    with pytest.raises(ValueError, match=r"no rule for .* 1 \(BatchNorm2d: weight, bias\)"):
        NoiseTracker(model).use_example_hooks()
    tracker = NoiseTracker(model)
    tracker.backward(loss, data("cnn"), parts=2)  # micro-batches work
    tracker.step()
    assert tracker.estimate().steps == 1
    model.eval()
    NoiseTracker(model).per_example(loss, data("cnn"))  # and so do running statistics


class Unknown(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.inner, self.lstm = (
            nn.Parameter(torch.ones(3)),
            nn.Bilinear(3, 3, 3),
            nn.LSTM(3, 3, 2, dropout=0.1),
        )


def test_layers_without_a_rule_are_all_named():
    with pytest.raises(ValueError) as error:
        NoiseTracker(Unknown()).use_example_hooks()
    for part in ("the model itself (Unknown: scale)", "inner (Bilinear", "lstm (LSTM with dropout", "per_example()"):
        assert part in str(error.value)
    frozen = nn.Sequential(nn.Bilinear(3, 3, 3).requires_grad_(False), nn.Linear(3, 3))
    NoiseTracker(frozen).use_example_hooks()


def test_a_weight_used_outside_its_layer_is_found_out():
    model, batch = BehindItsBack(), data("tied")
    tracker = NoiseTracker(model)
    tracker.use_example_hooks()
    loss(model, batch).backward()
    with pytest.raises(ValueError, match=r"embed.weight: the examples' gradients don't add up"):
        tracker.micro_batch(BATCH)


def test_examples_that_do_not_come_first_are_found_out():
    model = nn.Linear(3, 2)
    tracker = NoiseTracker(model)
    tracker.use_example_hooks()
    model(torch.randn(20, 3)).mean().backward()  # 5 examples of 4 positions, flattened
    with pytest.raises(ValueError, match="saw 20 rows for 5 examples"):
        tracker.micro_batch(5)


def test_a_batch_of_one_is_skipped_and_counted():
    model, batch = build("mlp"), data("mlp", size=1)
    for way in ("hooks", "vmap"):
        tracker = NoiseTracker(model)
        if way == "hooks":
            tracker.use_example_hooks()
            loss(model, batch).backward()
            tracker.micro_batch(1)
            tracker.step()
        else:
            tracker.per_example(loss, batch)
        assert tracker.estimate().dropped == 1 and tracker.skipped.total() == 1
        tracker.close()


def test_hooks_exclude_what_they_cannot_do():
    model = build("mlp")
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(ValueError, match="exclude each other"):
        NoiseTracker(model, precondition=optimizer).use_example_hooks()
    with pytest.raises(ValueError, match="without precondition"):
        NoiseTracker(model, precondition=optimizer).per_example(loss, data("mlp"))
    with pytest.raises(ValueError, match="neither compiled"):
        NoiseTracker(torch.compile(model, backend="eager")).use_example_hooks()
    with pytest.raises(ValueError, match="leading dimensions"):
        NoiseTracker(model).per_example(loss, (torch.zeros(3, 50), torch.zeros(4)))


def test_example_hooks_want_gradients_cleared_and_leave_out_what_is_left_over():
    model, batch = build("resnet"), data("resnet")
    tracker = NoiseTracker(model, window=1)
    tracker.use_example_hooks()
    for _ in range(2):
        loss(model, batch).backward()
        tracker.micro_batch(BATCH)
        tracker.step()
    assert list(tracker.skipped) == ["the gradients of the step before were still there: zero_grad() is missing"]
    names = [n for n, _ in model.named_parameters() if not n.startswith("stem")]
    for n, p in model.named_parameters():
        if n in names:
            p.grad = None
    model.stem.requires_grad_(False)
    loss(model, batch).backward()
    tracker.micro_batch(BATCH)
    tracker.step()
    model.stem.requires_grad_(True)
    assert_same(tracker.estimate(), truth(model, batch, [1] * BATCH, names=names))


def test_batch_norm_without_running_statistics_couples_in_eval_mode_too():
    model = nn.Sequential(nn.Flatten(), nn.Linear(50, 3), nn.BatchNorm1d(3, track_running_stats=False)).double().eval()
    with pytest.raises(ValueError, match="2: BatchNorm couples"):
        per_example_sq_norms(model, loss, data("mlp"))


def test_batches_with_other_things_in_them():
    model, (images, labels) = build("mlp"), data("mlp")
    batch = {"x": images, "y": labels, "mask": None, "flag": 3}
    found = per_example_sq_norms(model, lambda model, b: loss(model, (b["x"], b["y"])), batch)
    expected = per_example_sq_norms(model, loss, (images, labels))
    for name, norms in expected.sq_norms.items():
        assert torch.equal(found.sq_norms[name], norms)
    with pytest.raises(ValueError, match=r"no tensors found in the batch, a UserDict: .* \(dict\(batch\) where"):
        per_example_sq_norms(model, loss, UserDict(x=images))
    for chunk in (0, -1):
        with pytest.raises(ValueError, match=f"chunk must be at least 1 example, got {chunk}"):
            per_example_sq_norms(model, loss, (images, labels), chunk)


@pytest.mark.parametrize("name", ["mlp", "lstm"])
def test_the_norm_of_one_example(name):
    model, batch = build(name), data(name, 1)
    found = per_example_sq_norms(model, loss, batch)
    for n, gradients in exact_gradients(model, batch).items():
        torch.testing.assert_close(found.sq_norms[n], (gradients**2).sum(1), rtol=1e-10, atol=1e-20)


@pytest.mark.parametrize("way", ["probe", "per_example"])
def test_a_frozen_model_has_nothing_to_measure(way):
    tracker = NoiseTracker(build("mlp").requires_grad_(False))
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        getattr(tracker, way)(loss, data("mlp"))
