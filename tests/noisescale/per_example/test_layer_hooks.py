"""Example hooks where they could go wrong without a word: rows that aren't examples, shared positions, what couples."""

import copy
import io

import pytest
import torch
from torch import nn
from zoo import BATCH, BehindItsBack, assert_same, build, data, loss, truth

from noisescale import NoiseTracker
from noisescale.per_example.parameter_uses import Outer, norm
from noisescale.tracking.gradient_checks import TWO_BACKWARDS, UNHOOKED


class Positions(nn.Module):
    """Tokens (B, T) with a place each, looked up in one of several ways."""

    def __init__(self, how):
        super().__init__()
        self.how, self.embed, self.place = how, nn.Embedding(11, 6), nn.Embedding(6, 6)
        self.head = nn.Linear(6, 11)

    def forward(self, tokens):
        ids = torch.arange(tokens.shape[1])
        places = self.place(ids if self.how == "ids (T,)" else ids[None])
        if self.how == "first":
            places = places[0]
        elif self.how == "repeat":
            places = places.repeat(len(tokens), 1, 1)
        elif self.how == "view":
            places = places.view(1, -1, 6)
        elif self.how == "mean":
            places = places.mean(0)
        elif self.how == "dropout":
            places = nn.functional.dropout(places, 0.5)
        elif self.how == "expand":
            places = places.expand(len(tokens), -1, -1)
        elif self.how == "squeeze":
            places = places.squeeze(0)
        return self.head(torch.tanh(self.embed(tokens) + places))


def hooked(model):
    tracker = NoiseTracker(model)
    tracker.use_example_hooks()
    return tracker


@pytest.mark.parametrize("size", [4, 6])
@pytest.mark.parametrize("how", ["expand", "squeeze", "added"])
def test_positions_that_are_broadcast_over_the_examples_are_exact(how, size):
    model, batch = Positions(how).double(), data("tied", size)
    tracker = hooked(model)
    loss(model, batch).backward()
    tracker.micro_batch(size)
    tracker.step()
    tracker.close()
    assert_same(tracker.estimate(), truth(model, batch, [1] * size))


@pytest.mark.parametrize("how", ["first", "repeat", "view", "mean", "dropout"])
def test_positions_that_are_not_broadcast_are_refused_and_the_forward_pass_stays_as_it_was(how):
    model, batch = Positions(how).double(), data("tied")
    torch.manual_seed(0)
    plain = model(batch[0])
    tracker = hooked(model)
    torch.manual_seed(0)
    assert torch.equal(model(batch[0]), plain)
    loss(model, batch).backward()
    with pytest.raises(ValueError, match=r"place\.weight: its layer saw 1 rows for 12 examples; ids \(1, …\)"):
        tracker.micro_batch(BATCH)


class Relative(nn.Module):
    """Attention with a bias for each distance, ids (T, T)."""

    def __init__(self):
        super().__init__()
        self.embed, self.bias, self.head = nn.Embedding(11, 8), nn.Embedding(11, 1), nn.Linear(8, 11)

    def forward(self, tokens):
        x, i = self.embed(tokens), torch.arange(tokens.shape[1])
        bias = self.bias(i[:, None] - i[None] + 5)[..., 0]
        return self.head((x @ x.transpose(1, 2) + bias).softmax(-1) @ x)


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, tokens):
        return self.head(self.embed(tokens).transpose(0, 1)).transpose(0, 1)


@pytest.mark.parametrize(
    ("model", "layer"), [(Positions("ids (T,)"), "place"), (Relative(), "bias"), (TimeFirst(), "head")]
)
def test_rows_that_are_as_many_as_the_examples_but_not_examples_are_found_out(model, layer):
    tracker = hooked(model)
    loss(model, data("tied", 6)).backward()
    with pytest.raises(ValueError, match=f"^{layer}: its input has 6 rows with 5 examples too"):
        tracker.micro_batch(6)


def test_a_model_that_takes_only_whole_batches_is_refused():
    class Pairs(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x):
            return self.layer(x).unflatten(0, (2, -1))

    model = Pairs()
    tracker = hooked(model)
    model(torch.randn(6, 5)).square().mean().backward()
    with pytest.raises(ValueError, match="the model doesn't run on 5 of its 6 examples"):
        tracker.micro_batch(6)


def test_the_check_waits_for_finite_gradients_and_more_than_one_example():
    model, (tokens, labels) = BehindItsBack(), data("tied")
    tracker = hooked(model)
    (loss(model, (tokens, labels)) * torch.inf).backward()
    tracker.micro_batch(BATCH)
    tracker.step()
    model.zero_grad()
    loss(model, (tokens, labels)).backward()
    with pytest.raises(ValueError, match="don't add up"):
        tracker.micro_batch(BATCH)
    model = Positions("added").double()
    tracker = hooked(model)
    for size in (1, BATCH):
        model.zero_grad()
        loss(model, data("tied", size)).backward()
        tracker.micro_batch(size)
        tracker.step()
    tracker.close()
    assert_same(tracker.estimate(), truth(model, data("tied"), [1] * BATCH))


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(8, affine=False), nn.BatchNorm1d(8).requires_grad_(False)])
def test_batch_norm_without_parameters_to_measure_is_refused_too(norm):
    model = nn.Sequential(nn.Flatten(), nn.Linear(50, 8), norm, nn.Linear(8, 3)).double()
    with pytest.raises(ValueError, match="2: BatchNorm couples"):
        hooked(model.train())
    model.eval()
    tracker = hooked(model)
    loss(model, data("mlp")).backward()
    tracker.micro_batch(BATCH)
    tracker.step()
    model.train()
    with pytest.raises(ValueError, match="2: BatchNorm couples"):
        loss(model, data("mlp"))
    tracker.close()
    assert tracker.estimate().steps == 1


def test_products_that_cancel_are_no_nan():
    """Equal inputs at five positions and output gradients that add up to nothing: rounding leaves a little of either
    sign, whose root would be no number and drop the step."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        u = torch.randn(1, 5, 64, generator=generator)
        v = torch.randn(1, 1, 64, generator=generator).expand(1, 5, 64)
        u = u - u.mean(1, keepdim=True)
        assert 0 <= norm([Outer(u, v)]) < 1e-2 * u.norm() * v.norm()


def test_group_norm_without_positions_is_exact():
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    batch = torch.randn(BATCH, 6, dtype=torch.float64), torch.arange(BATCH) % 3
    tracker = hooked(model)
    loss(model, batch).backward()
    tracker.micro_batch(BATCH)
    tracker.step()
    tracker.close()
    assert_same(tracker.estimate(), truth(model, batch, [1] * BATCH))


def test_a_sparse_embedding_is_exact():
    model = nn.Sequential(nn.Embedding(11, 4, sparse=True), nn.Flatten(), nn.Linear(24, 3)).double()
    batch = data("tied")[0], torch.arange(BATCH) % 3
    tracker = hooked(model)
    loss(model, batch).backward()
    tracker.micro_batch(BATCH)
    tracker.step()
    tracker.close()
    dense = nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(24, 3)).double()
    dense.load_state_dict(model.state_dict())
    assert_same(tracker.estimate(), truth(dense, batch, [1] * BATCH))


def test_rows_cannot_be_tried_out_where_the_model_itself_is_not_called():
    model, batch = Positions("ids (T,)"), data("tied", 6)
    tracker = hooked(model)
    loss(model.forward, batch).backward()
    with pytest.raises(ValueError, match="tried out where the model itself is called"):
        tracker.micro_batch(6)


def test_what_was_wrong_with_a_batch_is_not_forgotten_over_another_one():
    model = Positions("ids (T,)")
    tracker = hooked(model)
    loss(model, data("tied", 6)).backward()
    model(data("tied", 5)[0])
    with pytest.raises(ValueError, match=r"^place: its input has 6 rows"):
        tracker.micro_batch(6)


def step(model, tracker, batch):
    model.zero_grad()
    loss(model, batch).backward()
    tracker.micro_batch(len(batch[0]))
    tracker.step()


@pytest.mark.parametrize("name", ["mlp", "tied", "lstm"])
@pytest.mark.parametrize("at", [0, 1])
def test_a_backward_pass_that_failed_and_was_done_again_is_left_out(name, at):
    """In the first step, where uses wait to be checked, and later; a tied weight's wait for each other in all steps."""
    model, batch = build(name), data(name)
    tracker = NoiseTracker(model, window=1)
    tracker.use_example_hooks()

    def fail(gradient):
        raise RuntimeError

    for i in range(3):
        if i == at:
            handle = next(model.parameters()).register_hook(fail)
            with pytest.raises(RuntimeError):
                loss(model, data(name, seed=9)).backward()
            handle.remove()
        step(model, tracker, batch)
    tracker.close()
    assert dict(tracker.skipped) == {TWO_BACKWARDS: 1}
    assert_same(tracker.estimate(), truth(model, batch, [1] * BATCH))


def test_two_backward_passes_through_nothing_but_an_lstm_are_left_out():
    model = nn.LSTM(3, 4)
    tracker = hooked(model)
    for again in (False, True):
        output = model(torch.randn(6, 5, 3))[0]
        if again:
            output[..., :2].square().mean().backward(retain_graph=True)
        output.square().mean().backward()
        tracker.micro_batch(5)
        tracker.step()
        model.zero_grad()
    assert dict(tracker.skipped) == {TWO_BACKWARDS: 1}


def test_layers_that_are_frozen_or_begin_to_train_later():
    model, batch = build("mlp"), data("mlp")
    body = [f"1.{n}" for n, _ in model[1].named_parameters()]
    tracker = NoiseTracker(model, window=1)
    model[3].requires_grad_(False)
    tracker.use_example_hooks()
    for trains, steps in ((False, 1), (True, 2), (False, 1)):
        model[3].requires_grad_(trains)
        for _ in range(steps):
            step(model, tracker, batch)
        copied = copy.deepcopy(model).requires_grad_(True)
        assert_same(tracker.estimate(), truth(copied, batch, [1] * BATCH, names=None if trains else body))
    assert dict(tracker.skipped) == {UNHOOKED: 1}


def test_an_unknown_layer_that_begins_to_train_is_named():
    model = nn.Sequential(nn.Linear(50, 8), nn.PReLU().requires_grad_(False), nn.Linear(8, 3))
    tracker = hooked(model)
    batch = torch.randn(BATCH, 50), torch.arange(BATCH) % 3
    step(model, tracker, batch)
    model[1].requires_grad_(True)
    with pytest.raises(ValueError, match=r"no rule for .* 1 \(PReLU: weight\)"):
        step(model, tracker, batch)


def test_a_model_that_is_refused_can_still_be_measured_by_micro_batches():
    model = nn.Sequential(nn.Flatten(), nn.Linear(50, 8), nn.PReLU(), nn.Linear(8, 3)).double()
    tracker, batch = NoiseTracker(model), data("mlp")
    with pytest.raises(ValueError, match="no rule"):
        tracker.use_example_hooks()
    tracker.backward(loss, batch, parts=2)
    tracker.step()
    assert_same(tracker.estimate(), truth(model, batch, [6, 6]))


def test_a_forgotten_micro_batch_is_an_error_and_rows_are_whole():
    model, batch = build("mlp"), data("mlp")
    tracker = hooked(model)
    loss(model, batch).backward()
    with pytest.raises(ValueError, match="call micro_batch"):
        tracker.step()
    with pytest.raises(ValueError, match=r"saw 12 rows for 12\.4 examples"):
        tracker.micro_batch(12.4)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 2.0**16])
def test_autocast_around_the_backward_pass_does_not_reach_the_norms(scale):
    """Products of gradients leave fp16's range on both sides, those of a batch's mean sooner than the gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    inputs, labels = torch.randn(BATCH, 8, 64), torch.randint(10, (BATCH, 8))
    found = []
    for around in (False, True):
        tracker = hooked(model)
        model.zero_grad()
        with torch.autocast("cpu", torch.float16):
            value = loss(model, (inputs, labels)) * scale
            if around:
                value.backward()
                tracker.micro_batch(BATCH)
        if not around:
            value.backward()
            tracker.micro_batch(BATCH)
        tracker.step()
        tracker.close()
        found.append(tracker.estimate())
    assert found[0].steps == 1 and found[0].trace_cov == found[1].trace_cov


@pytest.mark.parametrize("name", ["mlp", "lstm"])
def test_a_forward_pass_that_no_backward_pass_follows_changes_nothing(name):
    model = build(name)
    tracker = NoiseTracker(model, window=1)
    tracker.use_example_hooks()
    for _ in range(2):
        model.zero_grad()
        loss(model, data(name)).backward()
        loss(model, data(name, 5))
        tracker.micro_batch(BATCH)
        tracker.step()
    tracker.close()
    assert_same(tracker.estimate(), truth(model, data(name), [1] * BATCH))


def test_copies_of_a_hooked_model_are_plain_models():
    model, batch, file = build("lstm"), data("lstm"), io.BytesIO()
    tracker = hooked(model)
    loss(model, batch).backward()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        loss(other, data("lstm", 5)).backward()
    tracker.micro_batch(BATCH)
    tracker.step()
    tracker.close()
    assert_same(tracker.estimate(), truth(model, batch, [1] * BATCH))


def test_tokens_are_not_examples():
    model = nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 11))
    tracker = hooked(model)
    loss(model, data("tied")).backward()
    with pytest.raises(ValueError, match=r"saw 12 rows for 72 examples; .* takes their number, not that of tokens"):
        tracker.micro_batch(72)


@pytest.mark.parametrize("name", ["mlp", "transformer", "lstm"])
def test_trying_the_model_out_leaves_the_first_step_as_it_is(name):
    """Under autocast, whose copies of weights are kept from one forward pass to the next; with dropout."""
    if name == "lstm" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("PyTorch has no LSTM in bfloat16 on processors without AVX-512")
    gradients = []
    for measure in (False, True):
        model, batch = build(name, torch.float32), data(name, dtype=torch.float32)
        model.append(nn.Dropout(0.5)) if isinstance(model, nn.Sequential) else None
        torch.manual_seed(0)
        if measure:
            tracker = hooked(model)
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(model, batch)
        value.backward()
        if measure:
            tracker.micro_batch(BATCH)
            tracker.step()
            assert tracker.estimate().dropped == 0
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("inside", [nn.Sequential, lambda layer: layer])
def test_weights_made_from_others_before_each_pass_are_refused(inside):
    model = inside(nn.utils.spectral_norm(nn.Linear(4, 4)))
    with pytest.raises(ValueError, match=r"\(Linear: bias, weight_orig\)"):
        NoiseTracker(model).use_example_hooks()


def test_hooks_of_the_model_itself_run_once_and_after_it_was_tried_out():
    """One that makes a weight, without gradients where the model is tried out."""
    model = nn.Linear(4, 4)
    scale = nn.Parameter(torch.ones(()))
    made = []
    model.register_forward_pre_hook(lambda module, args: made.append(torch.is_grad_enabled()) or (args[0] * scale,))
    tracker, batch = hooked(model), torch.randn(8, 4)
    model(batch).square().mean().backward()
    tracker.micro_batch(8)
    tracker.step()
    assert made == [False, True] and scale.grad is not None


def test_an_embedding_that_counts_ids_over_the_batch_is_refused():
    model = nn.Sequential(nn.Embedding(9, 4, scale_grad_by_freq=True), nn.Linear(4, 1))
    with pytest.raises(ValueError, match=r"0 \(Embedding with scale_grad_by_freq"):
        NoiseTracker(model).use_example_hooks()


def test_a_part_that_was_refused_leaves_no_trace():
    model, batch = build("mlp"), data("mlp")
    tracker = hooked(model)
    loss(model, batch).backward()
    with pytest.raises(ValueError, match="its layer saw 12 rows for 11 examples"):
        tracker.micro_batch(BATCH - 1)
    model.zero_grad()
    loss(model, batch).backward()
    tracker.micro_batch(BATCH)
    tracker.step()
    assert_same(tracker.estimate(), truth(model, batch, [1] * BATCH))
