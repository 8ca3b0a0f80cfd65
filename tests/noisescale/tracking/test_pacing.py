"""How often a tracker measures where nobody says."""

import copy

import numpy as np
import pytest
import torch
from ranks import on_ranks
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from noisescale import NoiseTracker


def mlp():
    return nn.Sequential(nn.Linear(700, 800), nn.ReLU(), nn.Linear(800, 10))


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 144, 64)
    )


class Words(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(vocabulary, 128), nn.LSTM(128, 128, batch_first=True)
        self.head = nn.Linear(128, 16)

    def forward(self, tokens):
        return self.head(self.lstm(self.embed(tokens))[0])


def train(tracker, inputs, steps=1, parts=4):
    for _ in range(steps):
        for piece in inputs.chunk(parts):
            tracker.model(piece).square().mean().div(parts).backward()
            tracker.micro_batch(len(piece))
        tracker.step()
        tracker.model.zero_grad()
    return tracker


def cadence(model, inputs, parts=4):
    return train(NoiseTracker(model), inputs, steps=2, parts=parts).every


def test_a_weight_that_serves_few_rows_is_read_in_few_steps():
    # 3.3 · (4 + 1) / (4 · 32) / .0125 = 10.3
    assert cadence(mlp(), torch.randn(128, 700)) == 11
    assert cadence(mlp(), torch.randn(2048, 700)) == 1
    assert cadence(mlp(), torch.randn(8, 700)) == 12
    # 3.3 · (2 + 1) / (2 · 64) / .0125 = 6.2
    assert cadence(mlp(), torch.randn(128, 700), parts=2) == 7


def test_positions_count_and_ids_do_not():
    # 604,000 numbers; 589,824 · 128 products in the linear layer, 18,432 · 128 · 144 and 864 · 128 · 676 before it: 1.6
    assert cadence(cnn(), torch.randn(128, 3, 28, 28)) == 2
    # 4,000 · 128 in the embedding, 134,160 in products: 3.3 · 5 · 646,160 / (640 · 134,160) / .0125 = 9.9
    assert cadence(Words(4000), torch.randint(100, (32, 20))) == 10
    assert cadence(Words(100_000), torch.randint(100, (32, 20))) == 12


class Layer(nn.Module):
    """A matrix in a module that isn't one of PyTorch's."""

    def __init__(self, kernel_size=None, keyed=False):
        super().__init__()
        self.weight, self.kernel_size, self.keyed = nn.Parameter(torch.randn(700, 800) / 30), kernel_size, keyed

    def forward(self, x):
        return {"logits": x["x"] @ self.weight} if self.keyed else x @ self.weight


class Flattened(nn.Conv2d):
    def forward(self, x):
        return super().forward(x).flatten(1)


@pytest.mark.parametrize("kernel_size", [3, None, (3, 3)])
def test_a_kernel_size_means_what_it_does_in_pytorchs_convolutions_only(kernel_size):
    assert cadence(Layer(kernel_size), torch.randn(128, 700)) == 11


def test_a_convolution_whose_output_is_flat():
    # 600,000 numbers that each meet 128 positions or more
    assert cadence(Flattened(600, 1000, 1), torch.randn(128, 600, 1, 1)) == 11


def test_where_rows_cant_be_seen_the_weight_does_not_count():
    class Keyed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = Layer(keyed=True), nn.Linear(800, 800)

        def forward(self, x):
            return self.head(self.body({"x": x})["logits"])

    assert cadence(Keyed(), torch.randn(2048, 700)) == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors():
    layer = nn.Linear(700, 800)
    tracker = NoiseTracker(layer)
    for _ in range(2):
        for _ in range(2):
            ragged = torch.nested.nested_tensor([torch.randn(5, 700), torch.randn(3, 700)])
            layer(ragged).to_padded_tensor(0).square().mean().backward()
            tracker.micro_batch(2)
        tracker.step()
        layer.zero_grad()
    assert tracker.every == 1


def test_what_is_frozen_takes_time_too():
    body = cnn().requires_grad_(False)
    assert cadence(nn.Sequential(body, nn.Linear(64, 10_000)), torch.randn(128, 3, 28, 28)) == 2  # 11 without it


@pytest.mark.parametrize(("given", "then"), [(None, 1), (3, 3)])
def test_example_hooks_that_come_late_measure_every_step_again_unless_told_otherwise(given, then):
    model = mlp()
    tracker = train(NoiseTracker(model, window=1, every=given), torch.randn(128, 700), steps=4)
    assert tracker.every == (given or 11)
    tracker.use_example_hooks()
    assert tracker.every == then
    for _ in range(2):  # what isn't measured leaves nothing behind
        train(tracker, torch.randn(16, 700), parts=1)
    inputs = torch.randn(16, 700)
    found = train(tracker, inputs, parts=1).estimate()
    tracker.close()
    alone = NoiseTracker(model)
    alone.use_example_hooks()
    assert not tracker.skipped
    assert found.trace_cov == train(alone, inputs, parts=1).estimate().trace_cov


def test_small_models_are_measured_at_every_step():
    assert cadence(nn.Linear(100, 100), torch.randn(8, 100)) == 1


def test_what_is_asked_for_is_done():
    tracker = train(NoiseTracker(mlp(), every=2), torch.randn(128, 700), steps=7)
    assert (tracker.every, tracker.estimate().steps) == (2, 4)


def test_what_runs_beside_training_does_not_count():
    model, inputs = mlp(), torch.randn(128, 700)
    tracker = NoiseTracker(model)
    train(tracker, inputs)
    with torch.no_grad():
        model(torch.randn(5000, 700))
    assert train(tracker, inputs).every == 11


def test_only_the_second_step_is_counted_and_nothing_stays_on_the_model():
    model = mlp()
    tracker = train(NoiseTracker(model), torch.randn(128, 700), steps=24)
    assert (tracker.every, tracker.estimate().steps) == (11, 4)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_run_that_goes_on_keeps_its_pace():
    inputs = torch.randn(128, 700)
    whole = train(NoiseTracker(mlp()), inputs, steps=24)
    state = train(NoiseTracker(mlp()), inputs, steps=5).state_dict()
    other = NoiseTracker(mlp())
    other.load_state_dict(state)
    assert train(other, inputs, steps=19).estimate().steps == whole.estimate().steps == 4


def test_a_count_from_numpy_goes_into_a_checkpoint_as_a_plain_number():
    assert type(NoiseTracker(mlp(), every=np.int64(3)).state_dict()["every"]) is int


@pytest.mark.parametrize("how", ["before", "after", "in place", "one layer"])
def test_compiled_models_are_measured_at_every_step_and_compiled_once(how):
    """Forward hooks would be compiled in, and taking them off would compile again."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = mlp()
    if how in ("in place", "one layer"):
        (model if how == "in place" else model[0]).compile(backend=backend)
        tracker = NoiseTracker(model)
    else:
        compiled = torch.compile(model, backend=backend)
        tracker = NoiseTracker(compiled if how == "before" else model)
        tracker.model = compiled
    assert train(tracker, torch.randn(128, 700), steps=4).every == 1
    assert (tracker.estimate().steps, len(graphs)) == (4, 1)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")
def test_scripted_models_take_no_hooks():
    assert cadence(torch.jit.script(mlp()), torch.randn(128, 700)) == 1


def test_before_training_the_model_has_no_hooks():
    """A copy, for an average of the weights, would keep them."""
    model = mlp()
    tracker = NoiseTracker(model)
    copied = copy.deepcopy(model)
    train(tracker, torch.randn(128, 700), steps=2)
    assert not any(module._forward_hooks for module in copied.modules())


def uneven(rank, world):
    found = []
    for wrap in (DDP, fully_shard):
        tracker = NoiseTracker(wrap(mlp()))
        train(tracker, torch.randn(128 if rank else 2048, 700), steps=24)
        found += [tracker.every, tracker.estimate().steps]
    return found


def test_ranks_agree():
    assert on_ranks(2, uneven) == [[11, 4, 11, 4]] * 2
