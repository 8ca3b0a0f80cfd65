"""`fully_shard` and HSDP on gloo ranks: equal to one process, sharded norms counted once."""

import pytest
import torch
from ranks import on_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from zoo import build, data, exact_gradients, flat, loss, sq_norms

from noisescale import NoiseTracker, gradient_moments


def sharded(name, mesh):
    model = build(name)
    for module in list(model.children())[:2]:
        if any(True for _ in module.parameters(recurse=False)) and name != "tied":
            fully_shard(module, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def measure(rank, world, name, mesh, sync_every_time):
    model = sharded(name, mesh)
    tracker = NoiseTracker(model, groups="layer", window=1)
    inputs, labels = data(name, 16)
    mine = 16 // world
    for _ in range(2):  # the second time through, parameters have been gathered and freed before
        model.zero_grad()
        for part in range(2):
            start = rank * mine + part * mine // 2
            piece = inputs[start : start + mine // 2], labels[start : start + mine // 2]
            model.set_requires_gradient_sync(sync_every_time or part == 1)
            (loss(model, piece) / 2).backward()
            tracker.micro_batch(mine // 2)
        tracker.step()
    return {n: (s.grad_sq_norm, s.trace_cov, s.examples, s.dropped) for n, s in tracker.estimates().items()}


def measure_all(rank, world):
    meshes = {"fsdp": init_device_mesh("cpu", (world,))}
    if world == 4:
        meshes["hsdp"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    found = {}
    for kind, mesh in meshes.items():
        for name in ("transformer", "tied", "resnet", "mlp", "cnn", "lstm"):
            found[kind, name] = measure(rank, world, name, mesh, sync_every_time=name != "resnet")
    model = sharded("mlp", meshes["fsdp"])
    with pytest.raises(ValueError, match="precondition needs whole parameters"):
        NoiseTracker(model, precondition=torch.optim.Adam(model.parameters()))
    return found


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_agree_with_one_process(world):
    results = on_ranks(world, measure_all)
    assert all(result == results[0] for result in results)
    for (kind, name), found in results[0].items():
        each = exact_gradients(build(name), data(name, 16))
        layers = {n.rpartition(".")[0] for n in each}
        for group in ("total", *layers):
            rows = flat({n: g for n, g in each.items() if group in ("total", n.rpartition(".")[0])})
            parts = rows.unflatten(0, (2 * world, -1)).mean(1)
            moments = gradient_moments(sq_norms(parts), [8 // world] * 2 * world, sq_norms(parts.mean(0)))
            expected = float(moments.grad_sq_norm), float(moments.trace_cov), 16, 0
            assert found[group] == pytest.approx(expected, rel=1e-8, abs=1e-15), (kind, name, group)


def train(rank, world, with_tracker):
    model = sharded("transformer", init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    tracker = NoiseTracker(model) if with_tracker else None
    for step in range(3):
        batch = data("transformer", 8, seed=step * world + rank)
        for piece in zip(*(t.split(4) for t in batch), strict=True):
            (loss(model, piece) / 2).backward()
            if tracker is not None:
                tracker.micro_batch(4)
        if tracker is not None:
            tracker.step()
        optimizer.step()
        optimizer.zero_grad()
    return [p.full_tensor().detach() for p in model.parameters()]


def train_both(rank, world):
    return train(rank, world, True), train(rank, world, False)


def test_training_is_the_same_bit_for_bit():
    with_tracker, without = on_ranks(2, train_both)[0]
    assert all(torch.equal(a, b) for a, b in zip(with_tracker, without, strict=True))


class Holder(nn.Module):
    """A user's own `module`, which isn't DDP's."""

    def __init__(self):
        super().__init__()
        self.module = build("mlp")

    def forward(self, x):
        return self.module(x)


def wrapped(rank, world):
    mesh = init_device_mesh("cpu", (world,))
    inputs, labels = data("mlp", 16)
    piece = inputs[8 * rank : 8 * rank + 8], labels[8 * rank : 8 * rank + 8]
    found = []
    for model in (torch.compile(sharded("mlp", mesh), backend="aot_eager"), fully_shard(Holder(), mesh=mesh)):
        tracker = NoiseTracker(model)
        loss(model, piece).backward()
        tracker.micro_batch(8)
        tracker.step()
        found.append((tracker.estimate().grad_sq_norm, tracker.estimate().trace_cov))
    return found


def test_compiled_and_with_a_submodule_called_module():
    parts = flat(exact_gradients(build("mlp"), data("mlp", 16))).unflatten(0, (2, 8)).mean(1)
    moments = gradient_moments(sq_norms(parts), [8, 8], sq_norms(parts.mean(0)))
    for found in on_ranks(2, wrapped)[0]:
        assert found == pytest.approx((float(moments.grad_sq_norm), float(moments.trace_cov)), rel=1e-9)


class Untouched(nn.Module):
    """Uses a layer's weights without calling the layer."""

    def __init__(self):
        super().__init__()
        self.network = build("mlp")

    def forward(self, x):
        for layer in self.network:
            x = nn.functional.linear(x, layer.weight, layer.bias) if isinstance(layer, nn.Linear) else layer(x)
        return x


def unusual(rank, world):
    mesh = init_device_mesh("cpu", (world,))
    inputs, labels = data("mlp", 16)
    piece = inputs[8 * rank : 8 * rank + 8], labels[8 * rank : 8 * rank + 8]
    summed = sharded("mlp", mesh)
    for module in summed.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
    found = []
    for model, share in ((fully_shard(Untouched(), mesh=mesh), 1.0), (summed, 1 / world)):
        tracker = NoiseTracker(model)
        (loss(model, piece) * share).backward()
        tracker.micro_batch(8, weight=share)
        tracker.step()
        found.append((tracker.estimate().grad_sq_norm, tracker.estimate().trace_cov))
    return found


def test_weights_used_outside_their_layer_and_gradients_that_are_added_up():
    parts = flat(exact_gradients(build("mlp"), data("mlp", 16))).unflatten(0, (2, 8)).mean(1)
    moments = gradient_moments(sq_norms(parts), [8, 8], sq_norms(parts.mean(0)))
    for found in on_ranks(2, unusual)[0]:
        assert found == pytest.approx((float(moments.grad_sq_norm), float(moments.trace_cov)), rel=1e-9)


def mixed(rank, world):
    mesh = init_device_mesh("cpu", (1, world), mesh_dim_names=("data", "tensor"))
    partly, parallel, both, small = (build("mlp") for _ in range(4))
    fully_shard(partly[1], mesh=mesh["tensor"])
    for model in (parallel, both):
        parallelize_module(model, mesh["tensor"], {"1": ColwiseParallel()})
    fully_shard(both, mesh=mesh["data"])
    fully_shard(small, mesh=mesh["data"])
    messages = []
    for model in (partly, parallel, both, small):
        with pytest.raises(ValueError) as error:
            NoiseTracker(model)
        messages.append(str(error.value))
    return messages


def test_models_that_fully_shard_has_not_sharded_alone_are_refused():
    partly, parallel, both, small = on_ranks(2, mixed)[0]
    assert "outside fully_shard" in partly
    assert "outside fully_shard" in parallel
    assert "tensor parallelism" in both
    assert "sharded over 1" in small
