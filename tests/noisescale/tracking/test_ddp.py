"""DDP on gloo ranks: equal to one process, invisible to the reduced gradients, by leaf hooks and by the bucket hook."""

import contextlib

import pytest
import torch
from ranks import on_ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP
from zoo import build, data, exact_gradients, flat, loss, sq_norms

from noisescale import NoiseTracker, gradient_moments

SIZES = {2: [[3, 3], [4, 2]], 4: [[1, 2], [2, 1], [1, 1], [3, 1]]}  # micro-batches by rank


def pieces(name, world, rank):
    parts = [size for sizes in SIZES[world] for size in sizes]
    cut = list(zip(*(t.split(parts) for t in data(name)), strict=True))
    return cut[2 * rank : 2 * rank + 2]


def steps(model, tracker, world, rank, name, optimizer=None, count=1):
    """`count` steps of two micro-batches, the first under no_sync."""
    reduced = []
    for _ in range(count):
        for i, piece in enumerate(pieces(name, world, rank)):
            with model.no_sync() if i == 0 else contextlib.nullcontext():
                (loss(model, piece) / 2).backward()
            if tracker is not None:
                tracker.micro_batch(len(piece[0]))
        if tracker is not None:
            tracker.step()
        reduced.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
    return reduced


def measure(rank, world, name, bucket_hook, views):
    model = DDP(build(name), gradient_as_bucket_view=views, bucket_cap_mb=0.0005)
    tracker = NoiseTracker(model, groups="layer")
    if bucket_hook:
        tracker.use_ddp_hook()
    steps(model, tracker, world, rank, name)
    scale = tracker.estimate()
    return scale.grad_sq_norm, scale.trace_cov, scale.examples, sorted(tracker.estimates())


def truth(name, world, by_rank):
    sizes = [size for of_rank in SIZES[world] for size in of_rank]
    rows = flat(exact_gradients(build(name), data(name)))
    parts = torch.stack([part.mean(0) for part in rows.split(sizes)])
    mean = sq_norms(parts.mean(0))
    if by_rank:  # each rank's gradient is the mean of its two micro-batches', of unequal size
        parts = parts.unflatten(0, (world, 2)).mean(1)
        sizes = [4 / (1 / a + 1 / b) for a, b in SIZES[world]]
    return gradient_moments(sq_norms(parts), sizes, mean, weights=[1.0] * len(sizes))


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_agree_with_one_process(world):
    for (name, bucket_hook), result in on_ranks(world, measure_all)[0].items():
        moments = truth(name, world, by_rank=bucket_hook)
        assert result[:3] == pytest.approx((float(moments.grad_sq_norm), float(moments.trace_cov), 12), rel=1e-9), name
        assert "total" in result[3] and len(result[3]) > 2


def measure_all(rank, world):
    cases = [("transformer", False), ("tied", True), ("resnet", True), ("mlp", False), ("cnn", True), ("lstm", True)]
    found = {(name, hook): measure(rank, world, name, hook, views) for name, views in cases for hook in (False, True)}
    for name, result in found.items():
        everywhere = [None] * world
        torch.distributed.all_gather_object(everywhere, result)
        assert everywhere == [result] * world, name
    return found


def train(rank, world, mode):
    torch.manual_seed(0)
    model = DDP(build("cnn", torch.float32), bucket_cap_mb=0.0005)
    hook, state = (bf16_compress_hook, None) if mode.startswith("bf16") else (None, None)
    tracker = None
    if mode in ("leaf", "bucket", "bf16 bucket"):
        tracker = NoiseTracker(model)
        if mode != "leaf":
            tracker.use_ddp_hook(hook, state)
    elif hook is not None:
        torch.distributed._register_comm_hook(model.reducer, state, hook)  # DDP's own check asks for CUDA
    images, labels = data("cnn", dtype=torch.float32)
    reduced = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        for part in range(2):
            mine = slice(4 * rank + 2 * part, 4 * rank + 2 * part + 2)
            with model.no_sync() if part == 0 else contextlib.nullcontext():
                (loss(model, (images[mine], labels[mine])) / 2).backward()
            if tracker is not None:
                tracker.micro_batch(2)
        if tracker is not None:
            tracker.step()
        reduced += [p.grad.clone() for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
    return reduced


def train_all(rank, world):
    return {mode: train(rank, world, mode) for mode in ("plain", "leaf", "bucket", "bf16", "bf16 bucket")}


def test_reduced_gradients_are_the_same_bit_for_bit():
    """On three ranks, where dividing and multiplying by the inverse round differently."""
    runs = on_ranks(3, train_all)[0]
    for plain, measured in (("plain", "leaf"), ("plain", "bucket"), ("bf16", "bf16 bucket")):
        assert all(torch.equal(a, b) for a, b in zip(runs[plain], runs[measured], strict=True)), measured
    assert not all(torch.equal(a, b) for a, b in zip(runs["plain"], runs["bf16"], strict=True))


class OneOfTwo(nn.Module):
    """Rank r uses its own layer and a common one: ranks disagree on which parameters have gradients."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.common, self.own = nn.Linear(3, 3).double(), nn.ModuleList([nn.Linear(3, 1).double() for _ in range(2)])

    def forward(self, x, rank):
        return self.own[rank](torch.tanh(self.common(x)))


def disagree(rank, world):
    return [disagreement(rank, bucket_hook) for bucket_hook in (False, True)]


def disagreement(rank, bucket_hook):
    model = DDP(OneOfTwo(), find_unused_parameters=True)
    tracker = NoiseTracker(model)
    if bucket_hook:
        tracker.use_ddp_hook()
    x = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    model(x[4 * rank : 4 * rank + 4], rank).square().mean().backward()
    tracker.micro_batch(4)
    tracker.step()
    return tracker.estimate()


def test_ranks_that_disagree_on_which_parameters_have_gradients():
    model = OneOfTwo()
    x = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    parts = []
    for rank in range(2):
        value = model(x[4 * rank : 4 * rank + 4], rank).square().mean()
        grads = torch.autograd.grad(value, list(model.parameters()), materialize_grads=True)
        parts.append(torch.cat([g.flatten() for g in grads]))
    moments = gradient_moments(sq_norms(torch.stack(parts)), [4, 4], sq_norms(torch.stack(parts).mean(0)))
    first, second = on_ranks(2, disagree)
    assert first == second
    for found in first:
        assert found.grad_sq_norm == pytest.approx(float(moments.grad_sq_norm))
        assert found.trace_cov == pytest.approx(float(moments.trace_cov))


def trouble(rank, world):
    skipped = {}
    model = DDP(build("mlp"))
    tracker = NoiseTracker(model)
    tracker.use_ddp_hook()
    for _ in range(2):  # reduced at every micro-batch
        loss(model, data("mlp")).backward()
        tracker.micro_batch(12)
    tracker.step()
    skipped["twice"] = (tracker.estimate().dropped, dict(tracker.skipped))
    with pytest.raises(ValueError, match="example hooks come too late"):
        tracker.use_example_hooks()
    model = DDP(build("mlp"))
    tracker = NoiseTracker(model)
    images, labels = data("mlp")
    loss(model, (images * (torch.nan if rank == 1 else 1), labels)).backward()  # one rank's gradient isn't finite
    tracker.micro_batch(12)
    tracker.step()
    skipped["nan"] = tracker.estimate().dropped
    model.zero_grad()
    loss(model, (images, labels)).backward()
    if rank == 0:  # a rank that forgot its micro_batch takes part all the same, and the step is dropped everywhere
        tracker.micro_batch(12)
    else:
        tracker._collector._guard.touched = False
    tracker.step()
    skipped["missing"] = tracker.estimate().dropped
    return skipped


def test_a_step_that_one_rank_cannot_use_is_dropped_on_all():
    for found in on_ranks(2, trouble):
        assert found["twice"][0] >= 1 and "more than once" in str(found["twice"][1])
        assert (found["nan"], found["missing"]) == (1, 2)


def test_the_bucket_hook_needs_ddp():
    with pytest.raises(ValueError, match="needs DDP on 2 or more, got Sequential on 1"):
        NoiseTracker(build("mlp")).use_ddp_hook()


def many(rank, world):
    """80 steps, of which rank 1 can't use one and cuts every third differently; then an estimate on rank 0 alone."""
    model = DDP(build("mlp"))
    tracker, found = NoiseTracker(model, window=80), []
    for step in range(80):
        images, labels = data("mlp", seed=step)
        images, labels = images[6 * rank : 6 * rank + 6], labels[6 * rank : 6 * rank + 6]
        sizes = [2, 4] if rank == 1 and step % 3 == 0 else [3, 3]
        for i, piece in enumerate(zip(images.split(sizes), labels.split(sizes), strict=True)):
            with model.no_sync() if i == 0 else contextlib.nullcontext():
                (loss(model, piece) * len(piece[0]) / 6).backward()
            tracker.micro_batch(len(piece[0]), len(piece[0]) / 6)
        if rank == 1 and step == 70:
            tracker._collector._guard.problem = "made up"
        tracker.step()
        found.append(gradient_moments(*parts_of_step(step)))
        model.zero_grad()
    if rank == 0:
        tracker.estimate()
    del found[70]
    means = [float(torch.stack([getattr(m, f) for m in found]).mean()) for f in ("grad_sq_norm", "trace_cov")]
    scale = tracker.estimate()
    return (scale.grad_sq_norm, scale.trace_cov), means, scale.steps, scale.dropped, dict(tracker.skipped)


def parts_of_step(step):
    sizes = [3, 3, *([2, 4] if step % 3 == 0 else [3, 3])]
    rows = flat(exact_gradients(build("mlp"), data("mlp", seed=step)))
    parts = torch.stack([part.mean(0) for part in rows.split(sizes)])
    weights = torch.tensor(sizes, dtype=torch.float64)
    return sq_norms(parts), sizes, sq_norms(weights / 12 @ parts), weights


def test_steps_that_go_round_the_ranks_together():
    first, second = on_ranks(2, many)
    assert first[:4] == second[:4]
    assert first[0] == pytest.approx(first[1], rel=1e-9)
    assert (first[2], first[3]) == (pytest.approx(79), 1)
    assert (first[4], second[4]) == ({}, {"made up": 1})


class Holder(nn.Module):
    def __init__(self, inner, beside=False):
        super().__init__()
        self.inner = inner
        if beside:
            self.beside = nn.Linear(2, 2).double()

    def forward(self, x):
        return self.inner(x)


def wrapped(rank, world):
    found, alone = {}, [torch.distributed.new_group([r]) for r in range(world)][rank]
    ddp = DDP(build("mlp"))
    cases = {
        "compiled": torch.compile(ddp, backend="aot_eager"),
        "compiled inside": DDP(torch.compile(build("mlp"), backend="aot_eager")),
        "inside a module": Holder(DDP(build("mlp"))),
    }
    for name, model in cases.items():
        tracker = NoiseTracker(model, groups="layer")
        for i, piece in enumerate(pieces("mlp", world, rank)):
            model.zero_grad(set_to_none=i == 0)
            loss(model, piece).backward()
            tracker.micro_batch(len(piece[0]))
            if i == 0:
                tracker.step()
        found[name] = tracker.estimate().grad_sq_norm, tracker.estimate().trace_cov, list(tracker.estimates())
    for name, model in (("module", ddp.module), ("outside", Holder(DDP(build("mlp")), beside=True))):
        try:
            loss(model, pieces("mlp", world, rank)[0]).backward()
            NoiseTracker(model).micro_batch(3)
        except ValueError as error:
            found[name] = str(error)
    NoiseTracker(ddp.module, process_group=alone).micro_batch(3)
    try:
        NoiseTracker(FSDP(build("mlp"), device_id=torch.device("cpu"), use_orig_params=True))
    except ValueError as error:
        found["fsdp1"] = str(error)
    return found


def test_ddp_is_found_wherever_it_is_and_other_ranks_are_never_overlooked():
    found = on_ranks(2, wrapped)[0]
    sizes = [SIZES[2][0][0], SIZES[2][1][0]]
    rows = flat(exact_gradients(build("mlp"), data("mlp")))
    parts = torch.stack([rows[:3].mean(0), rows[6:10].mean(0)])
    moments = gradient_moments(sq_norms(parts), sizes, sq_norms(parts.mean(0)), weights=[1.0, 1.0])
    for name in ("compiled", "compiled inside", "inside a module"):
        assert found[name][:2] == pytest.approx((float(moments.grad_sq_norm), float(moments.trace_cov)), rel=1e-9), name
    assert found["compiled"][2] == found["compiled inside"][2] == ["total", "1", "3"]
    assert "runs on 2 ranks, but neither DDP nor fully_shard is found" in found["module"]
    assert found["outside"].startswith("beside.weight, beside.bias: outside the model's DDP")
    assert "FSDP1" in found["fsdp1"]


def joined(rank, world):
    model = DDP(build("mlp"))
    tracker, (inputs, labels) = NoiseTracker(model, window=3), data("mlp", 8)
    mine = inputs[rank::world], labels[rank::world]
    with model.join(enable=True, throw_on_early_termination=True):
        loss(model, mine).backward()
        tracker.micro_batch(4)
    tracker.step()
    with model.join():
        loss(model, mine).backward()
        with pytest.raises(ValueError, match="different numbers of steps"):
            tracker.micro_batch(4)
    return tracker.estimate().steps


def test_ranks_that_may_end_apart_are_refused():
    assert on_ranks(2, joined) == [1, 1]
