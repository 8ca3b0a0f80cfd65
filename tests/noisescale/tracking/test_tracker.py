"""The tracker under gradient accumulation: exact, invisible to training, honest about steps it can't use."""

import copy
import math

import pytest
import torch
from torch import nn
from zoo import BATCH, MODELS, assert_same, build, data, exact_gradients, loss, sq_norms, truth

from noisescale import NoiseTracker, gradient_moments, hessian_noise
from noisescale.preconditioning import inverse_roots


def accumulate(model, tracker, batch, sizes, weights=None, scaler=None):
    """One step's backward passes, each mean loss divided by their number or times its weight."""
    for i, piece in enumerate(zip(*(t.split(sizes) for t in batch), strict=True)):
        value = loss(model, piece) * (1 / len(sizes) if weights is None else weights[i])
        (value if scaler is None else scaler.scale(value)).backward()
        if tracker is not None:
            tracker.micro_batch(len(piece[0]), None if weights is None else weights[i])
    if tracker is not None:
        tracker.step(scaler)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sizes", [[6, 6], [3] * 4, [1] * BATCH, [5, 4, 3]], ids=str)
def test_equals_the_exact_per_example_answer(name, sizes):
    model, batch = build(name), data(name)
    tracker = NoiseTracker(model)
    accumulate(model, tracker, batch, sizes)
    assert_same(tracker.estimate(), truth(model, batch, sizes))
    assert tracker.estimate().examples == BATCH


@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_weights_make_unequal_micro_batches_count_by_their_examples(factor):
    model, batch, sizes = build("cnn"), data("cnn"), [7, 4, 1]
    weights = [factor * size / BATCH for size in sizes]
    tracker = NoiseTracker(model)
    accumulate(model, tracker, batch, sizes, weights)
    assert_same(tracker.estimate(), truth(model, batch, sizes, weights))
    assert_same(tracker.estimate(), truth(model, batch, sizes, [1.0 * size for size in sizes]))


def test_layers_and_named_groups_are_exact_and_add_up():
    model, batch, sizes = build("transformer"), data("transformer"), [4, 4, 4]
    layers, halves = (
        NoiseTracker(model, groups="layer"),
        NoiseTracker(model, groups=lambda n: "norms" if n.startswith("norm") else None),
    )
    for piece in zip(*(t.split(sizes) for t in batch), strict=True):
        (loss(model, piece) / 3).backward()
        layers.micro_batch(4)
        halves.micro_batch(4)
    layers.step(), halves.step()
    found = layers.estimates()
    assert_same(found["qkv"], truth(model, batch, sizes, names=["qkv.weight"]))
    assert_same(found["head"], truth(model, batch, sizes, names=["head.weight", "head.bias"]))
    assert sum(v.trace_cov for n, v in found.items() if n != "total") == pytest.approx(found["total"].trace_cov)
    norms = ["norm1.weight", "norm1.bias", "norm2.weight"]
    assert_same(halves.estimates()["norms"], truth(model, batch, sizes, names=norms))
    assert set(halves.estimates()) == {"total", "norms"}
    assert layers.scalars()["noise_scale/qkv/trace_cov"] == found["qkv"].trace_cov
    assert math.isnan(layers.scalars("x")["x/b_simple"])  # of a single step, which has no interval


def test_preconditioned_by_adam_is_exact():
    model, batch, sizes = build("cnn"), data("cnn"), [4, 4, 4]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    tracker = NoiseTracker(model, window=1, precondition=optimizer)
    accumulate(model, tracker, batch, sizes)
    first = tracker.estimates()["preconditioned"]
    assert first.steps == 0 and first.dropped == 1  # no second moment yet: counted, not guessed
    optimizer.step()
    optimizer.zero_grad()
    each = exact_gradients(copy.deepcopy(model), batch)
    scaled = []
    for n, p in model.named_parameters():
        v = optimizer.state[p]["exp_avg_sq"] / (1 - 0.999)
        scaled.append(each[n] / (v.sqrt() + 1e-8).flatten())
    parts = torch.stack([part.mean(0) for part in torch.cat(scaled, 1).split(sizes)])
    accumulate(model, tracker, batch, sizes)
    moments = gradient_moments(sq_norms(parts), sizes, sq_norms(parts.mean(0)))
    assert_same(tracker.estimates()["preconditioned"], moments)
    assert_same(tracker.estimates()["total"], truth(model, batch, sizes))


def test_an_adam_that_counts_its_steps_in_a_plain_number_preconditions_alike():
    model, batch = build("mlp"), data("mlp")
    optimizer = torch.optim.Adam(model.parameters())
    loss(model, batch).backward()
    optimizer.step()
    expected = inverse_roots(optimizer)
    for state in optimizer.state.values():
        state["step"] = int(state["step"])
    found = inverse_roots(optimizer)
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_preconditioning_needs_a_second_moment():
    model, batch = build("mlp"), data("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss(model, batch).backward()
    optimizer.step()
    NoiseTracker(model, precondition=optimizer)
    with pytest.raises(ValueError, match="SGD keeps no second moment"):
        loss(model, batch).backward()


def train(name, with_tracker, steps=4, scaled=False):
    model = build(name, torch.float32).train()
    if not isinstance(model, nn.Sequential):
        model.add_module("unused", nn.Linear(2, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    tracker = NoiseTracker(model, groups="layer", precondition=optimizer) if with_tracker else None
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10) if scaled else None
    for step in range(steps):
        batch = data(name, seed=step, dtype=torch.float32)
        batch = (F_dropout(batch[0]), batch[1])
        accumulate(model, tracker, batch, [4, 4, 4], scaler=scaler)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return [*model.parameters(), torch.get_rng_state()]


def F_dropout(x):
    return nn.functional.dropout(x, 0.1) if x.is_floating_point() else x


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scaled", [False, True])
def test_training_is_the_same_bit_for_bit(name, scaled):
    for a, b in zip(train(name, True, scaled=scaled), train(name, False, scaled=scaled), strict=True):
        assert torch.equal(a, b)


def test_grad_scaler_is_divided_out_and_an_overflow_is_dropped():
    model, batch, sizes = build("cnn"), data("cnn"), [4, 4, 4]
    tracker, scaler = NoiseTracker(model), torch.amp.GradScaler("cpu", init_scale=2.0**12)
    accumulate(model, tracker, batch, sizes, scaler=scaler)
    assert_same(tracker.estimate(), truth(model, batch, sizes))
    with torch.no_grad():
        next(model.parameters()).grad.fill_(torch.inf)
    accumulate(model, tracker, batch, sizes, scaler=scaler)
    model.zero_grad()
    assert tracker.estimate().dropped == 1
    assert_same(tracker.estimate(), truth(model, batch, sizes))


def test_half_precision_gradients_are_not_squared_in_half_precision():
    model = nn.Linear(4, 1, bias=False).half()
    tracker = NoiseTracker(model)
    for sign in (1.0, -1.0):
        (model(torch.full((1, 4), 300.0 + sign, dtype=torch.float16)).sum() / 2).backward()
        tracker.micro_batch(1)
    tracker.step()
    assert tracker.estimate().grad_sq_norm == pytest.approx(4 * 300**2 - 2, rel=1e-3)


def test_nan_gradient_is_dropped_and_counted():
    model, batch, sizes = build("cnn"), data("cnn"), [4, 4, 4]
    tracker = NoiseTracker(model)
    accumulate(model, tracker, batch, sizes)
    model.zero_grad()
    accumulate(model, tracker, (batch[0] * torch.nan, batch[1]), sizes)
    assert tracker.estimate().dropped == 1 and tracker.estimate().steps == 1
    assert_same(tracker.estimate(), truth(model, batch, sizes))


def test_one_part_no_gradient_and_zero_gradients():
    model, batch = build("mlp"), data("mlp")
    tracker = NoiseTracker(model)
    accumulate(model, tracker, batch, [12])
    model.zero_grad()
    tracker.step()
    assert dict(tracker.skipped) == {"only one part: no two gradients to compare": 1, "no gradient": 1}
    assert tracker.estimate().dropped == 2 and tracker.estimate().steps == 0
    assert tracker.estimate().remark == "no steps: 1 left out, only one part: no two gradients to compare"
    for _ in range(3):
        for piece in zip(*(t.split(6) for t in batch), strict=True):
            (loss(model, piece) * 0).backward()
            tracker.micro_batch(6)
        tracker.step()
    scale = tracker.estimate()
    assert scale.grad_sq_norm == 0 and scale.trace_cov == 0 and not scale.determined and scale.remark


def test_frozen_parameters_and_ones_without_a_gradient_this_step():
    model, batch, sizes = build("resnet"), data("resnet"), [6, 6]
    model.stem.requires_grad_(False)
    model.add_module("unused", nn.Linear(2, 2).double())
    tracker = NoiseTracker(model, groups="layer", window=1)
    accumulate(model, tracker, batch, sizes)
    names = [n for n, p in model.named_parameters() if p.requires_grad and not n.startswith("unused")]
    model.requires_grad_(True)
    del model.unused
    assert_same(tracker.estimate(), truth(model, batch, sizes, names=names))
    assert tracker.estimates()["stem"].trace_cov == 0 and tracker.estimates()["unused"].trace_cov == 0
    model.zero_grad()
    accumulate(model, tracker, batch, sizes)  # `stem` was unfrozen after the step was opened
    assert tracker.skipped["a parameter began to train in the middle of a step"] == 1
    model.zero_grad()
    accumulate(model, tracker, batch, sizes)
    assert_same(tracker.estimate(), truth(model, batch, sizes))


def test_two_backward_passes_in_one_part_are_not_taken_for_one():
    model, batch = build("mlp"), data("mlp")
    tracker = NoiseTracker(model)
    for _ in range(2):
        loss(model, batch).backward()
        loss(model, batch).backward()
        tracker.micro_batch(12)
    tracker.step()
    assert tracker.skipped["two backward passes reached one parameter within one part"] == 1


@pytest.mark.parametrize("spoil", ["clip", "zero", "replace", "unscale"])
def test_gradients_changed_before_step_are_an_error_not_a_number(spoil):
    model, batch = build("mlp"), data("mlp")
    tracker = NoiseTracker(model)
    for piece in zip(*(t.split(6) for t in batch), strict=True):
        (loss(model, piece) / 2).backward()
        tracker.micro_batch(6)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=1.0)
    if spoil == "clip":
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    elif spoil == "zero":
        optimizer.zero_grad(set_to_none=False)
    elif spoil == "replace":
        for p in model.parameters():
            p.grad = p.grad / 2
    else:
        scaler.scale(torch.zeros(()))  # makes the scale
        scaler.unscale_(optimizer)
        tracker.step(scaler, unscaled=True)  # said, so nothing is wrong
        assert tracker.estimate().steps == 1
        return
    with pytest.raises(ValueError, match=r"gradients changed between the last micro_batch\(\) and step\(\)"):
        tracker.step()


@pytest.mark.parametrize("set_to_none", [True, False, None])
def test_gradients_that_were_not_cleared_are_not_measured(set_to_none):
    model, batch = build("mlp"), data("mlp")
    tracker = NoiseTracker(model)
    for _ in range(3):
        accumulate(model, tracker, batch, [6, 6])
        if set_to_none is not None:
            model.zero_grad(set_to_none)
    left_out = 2 if set_to_none is None else 0
    assert tracker.estimate().steps == pytest.approx(3 - left_out) and tracker.estimate().dropped == left_out
    assert_same(tracker.estimate(), truth(model, batch, [6, 6]))


@pytest.mark.parametrize("between", ["zero_grad", "zero", "clip", "step"])
def test_what_happens_between_two_parts_of_a_step_is_noticed(between):
    model, batch = build("mlp"), data("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracker = NoiseTracker(model)
    for piece in zip(*(t.split(6) for t in batch), strict=True):
        (loss(model, piece) / 2).backward()
        tracker.micro_batch(6)
        if len(tracker._collector._examples) == 1:
            if between.startswith("zero"):
                optimizer.zero_grad(set_to_none=between == "zero_grad")
            elif between == "clip":
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            else:
                optimizer.step()
    tracker.step()
    what = "weights changed" if between == "step" else "gradients were cleared or changed"
    assert dict(tracker.skipped) == {f"{what} between two parts of one step": 1}


def test_a_model_that_is_moved_or_made_complex_is_measured_all_the_same():
    model, batch = build("mlp", torch.float32), data("mlp")
    tracker = NoiseTracker(model)
    model.double()
    accumulate(model, tracker, batch, [6, 6])
    assert_same(tracker.estimate(), truth(model, batch, [6, 6]))
    weight = nn.Parameter(torch.tensor([1 + 2j, 3 - 1j]))
    holder = nn.ParameterList([weight])
    tracker = NoiseTracker(holder)
    for x in (1.0, 3.0):
        ((weight.real + 2 * weight.imag).sum() * x / 2).backward()
        tracker.micro_batch(1)
    tracker.step()
    assert tracker.estimate().trace_cov == pytest.approx(10 * 2) and tracker.estimate().grad_sq_norm == pytest.approx(
        10 * (4 - 1)
    )


def test_channels_last_and_sparse_gradients():
    model, batch, sizes = build("cnn"), data("cnn"), [4, 4, 4]
    model[0].to(memory_format=torch.channels_last)
    tracker = NoiseTracker(model)
    accumulate(model, tracker, (batch[0].to(memory_format=torch.channels_last), batch[1]), sizes)
    assert_same(tracker.estimate(), truth(model, batch, sizes))
    tokens = data("tied")[0]
    dense, sparse = (nn.Embedding(11, 4, sparse=s).double() for s in (False, True))
    sparse.load_state_dict(dense.state_dict())
    found = []
    for table in (dense, sparse):
        tracker = NoiseTracker(table)
        for piece in tokens.split(4):
            (table(piece).square().sum() / 3).backward()
            tracker.micro_batch(4)
        tracker.step()
        found.append(tracker.estimate().trace_cov)
    assert found[0] == pytest.approx(found[1])


@pytest.mark.parametrize("every", [1, 4])
def test_gradients_that_nobody_clears_are_left_out(every):
    model, (inputs, labels) = build("mlp"), data("mlp")
    tracker = NoiseTracker(model, every=every)
    for _ in range(12):
        for piece in zip(inputs.split(4), labels.split(4), strict=True):
            loss(model, piece).backward()
            tracker.micro_batch(len(piece[0]))
        tracker.step()
    assert tracker.skipped.total() == 12 // every - 1
    assert "zero_grad() is missing" in next(iter(tracker.skipped))


def test_every_nth_step_measures_only_those():
    model, sizes = build("mlp"), [6, 6]
    tracker, reference = NoiseTracker(model, every=3), NoiseTracker(build("mlp"))
    for step in range(7):
        accumulate(model, tracker, data("mlp", seed=step), sizes)
        if step % 3 == 0:
            accumulate(reference.model, reference, data("mlp", seed=step), sizes)
        model.zero_grad(), reference.model.zero_grad()
    assert tracker.estimate() == reference.estimate() and tracker.estimate().steps == pytest.approx(3)


def test_resume_gives_the_same_bits():
    model, sizes = build("mlp"), [6, 6]
    optimizer = torch.optim.Adam(model.parameters())
    straight, first, second = (
        NoiseTracker(model, decay=0.9, groups="layer", precondition=optimizer, every=2) for _ in range(3)
    )
    first_half, second_half = [straight, first], [straight, second]
    for step in range(9):
        if step == 5:
            second.load_state_dict(copy.deepcopy(first.state_dict()))
            first.close()
        for piece in zip(*(t.split(sizes) for t in data("mlp", seed=step)), strict=True):
            (loss(model, piece) / 2).backward()
            for tracker in first_half if step < 5 else second_half:
                tracker.micro_batch(6)
        for tracker in first_half if step < 5 else second_half:
            tracker.step()
        optimizer.step()
        optimizer.zero_grad()
    assert straight.estimates() == second.estimates()
    with pytest.raises(ValueError, match="state was saved with"):
        NoiseTracker(model, decay=0.9).load_state_dict(straight.state_dict())


@pytest.mark.parametrize("after", [0, 5])
def test_a_layer_put_in_after_the_tracker_was_made_is_named(after):
    model, batch = build("mlp"), data("mlp")
    tracker = NoiseTracker(model)
    with pytest.raises(ValueError, match=r"3\.weight, 3\.bias: new since the tracker was made"):
        for step in range(after + 65):
            if step == after:
                model[3] = nn.Linear(8, 3).double()
            accumulate(model, tracker, batch, [6, 6])
            model.zero_grad()


def test_close_takes_every_hook_off():
    model = build("mlp")
    NoiseTracker(model).close()
    assert all(not p._backward_hooks for p in model.parameters())


def test_errors_say_what_is_wrong():
    model, batch = build("mlp"), data("mlp")
    tracker = NoiseTracker(model)
    with pytest.raises(ValueError, match="examples must be positive, got 0"):
        tracker.micro_batch(0)
    with pytest.raises(ValueError, match="examples must be positive, got nan"):
        tracker.micro_batch(float("nan"))
    with pytest.raises(ValueError, match="weight must be positive"):
        tracker.micro_batch(1, -1.0)
    loss(model, batch).backward()
    with pytest.raises(ValueError, match=r"after the last micro_batch\(\)"):
        tracker.step()
    with pytest.raises(ValueError, match="every must be"):
        NoiseTracker(model, every=0)
    with pytest.raises(ValueError, match="groups must be"):
        NoiseTracker(model, groups="layers")
    with pytest.raises(ValueError, match="at least one is needed"):
        NoiseTracker(model, groups=lambda name: None)
    with pytest.raises(ValueError, match="none may be called 'total' or 'preconditioned'"):
        NoiseTracker(model, groups=lambda name: "preconditioned")
    with pytest.raises(ValueError, match="no parameters"):
        NoiseTracker(nn.ReLU())
    tracker.close()
    model.zero_grad()
    tracker = NoiseTracker(model)
    for i in range(2):
        loss(model, batch).backward()
        tracker.micro_batch(6, weight=0.5 if i else None)
    with pytest.raises(ValueError, match="1 of 2 parts have a weight"):
        tracker.step()


def test_compiled_model_is_exact():
    model, batch, sizes = build("mlp"), data("mlp"), [6, 6]
    compiled = torch.compile(model, backend="aot_eager")
    tracker = NoiseTracker(compiled, groups="layer")
    accumulate(compiled, tracker, batch, sizes)
    assert_same(tracker.estimate(), truth(model, batch, sizes))
    assert set(tracker.estimates()) == {"total", "1", "3"}


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("examples", [False, True])
def test_no_step_waits_for_the_gpu(examples):
    model = build("cnn", torch.float32).cuda()
    batch = tuple(t.cuda() for t in data("cnn", dtype=torch.float32))
    tracker = NoiseTracker(model, groups="layer")
    if examples:
        tracker.use_example_hooks()
    accumulate(model, tracker, batch, [6, 6])  # the first step sets things up, and checks the hooks
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            accumulate(model, tracker, batch, [6, 6])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert tracker.estimate().steps == pytest.approx(21)


def test_a_tracker_taken_off_the_backward_pass_says_so():
    model = torch.nn.Linear(3, 1)
    tracker = NoiseTracker(model)
    tracker.close()
    model(torch.randn(4, 3)).mean().backward()
    with pytest.raises(ValueError, match="use another NoiseTracker"):
        tracker.micro_batch(4)


@pytest.mark.parametrize("how", ["alternating", "frozen", "frozen before"])
def test_gradients_left_over_from_an_earlier_step_are_not_this_ones(how):
    model, batch, sizes = build("resnet"), data("resnet"), [6, 6]
    names = [n for n, _ in model.named_parameters() if not n.startswith("stem")]
    expected = truth(model, batch, sizes, names=names)
    tracker = NoiseTracker(model, window=1)
    accumulate(model, tracker, batch, sizes)
    if how == "frozen before":
        tracker.close()
    for n, p in model.named_parameters():
        if n in names:
            p.grad = None
    model.stem.requires_grad_(False)
    if how == "alternating":  # every second step leaves the stem out
        for _ in range(2):
            model.stem.requires_grad_(True)
            accumulate(model, tracker, batch, sizes)
            assert "zero_grad() is missing" in str(tracker.skipped)
            for n, p in model.named_parameters():
                if n in names:
                    p.grad = None
            model.stem.requires_grad_(False)
    if how == "frozen before":
        tracker = NoiseTracker(model, window=1)
    accumulate(model, tracker, batch, sizes)
    assert_same(tracker.estimate(), expected)


def test_two_networks_that_take_turns():
    """As a GAN does: each optimizer clears its own gradients only, the other's stay."""
    nets = nn.ModuleDict({"a": nn.Linear(50, 3), "b": nn.Linear(50, 3)}).double()
    (images, labels), tracker = data("mlp"), NoiseTracker(nets, window=1)
    batch = images.flatten(1), labels
    for name in ("a", "b", "a", "b"):
        nets[name].zero_grad()
        accumulate(nets[name], tracker, batch, [6, 6])
        assert not tracker.skipped
        assert_same(tracker.estimate(), truth(copy.deepcopy(nets[name]), batch, [6, 6]))


def test_a_models_own_module_is_not_ddps():
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = build("mlp")
            self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))

        def forward(self, x):
            return self.module(x) * self.weight

    model, batch = Holder(), data("mlp")
    model.module[1].weight.requires_grad_(False)
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    tracker, beside = NoiseTracker(model), NoiseTracker(model, groups="layer")
    accumulate(model, tracker, batch, [6, 6])
    beside.probe(loss, batch, parts=2)
    model.requires_grad_(True)
    for found in (tracker, beside):
        assert_same(found.estimate(), truth(model, batch, [6, 6], names=names))
    assert set(beside.estimates()) == {"total", "weight", "module.1", "module.3"}


@pytest.mark.parametrize(
    "optimizer",
    [torch.optim.SGD, torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.ASGD],
    ids=lambda o: o.__name__,
)
def test_preconditioning_by_what_divides_by_no_root_is_refused(optimizer):
    model, batch = build("mlp"), data("mlp")
    NoiseTracker(model, precondition=optimizer(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match=f"{optimizer.__name__} keeps no second moment"):
        loss(model, batch).backward()


def test_preconditioning_needs_every_parameter_in_the_optimizer():
    model, batch = build("mlp"), data("mlp")
    NoiseTracker(model, precondition=torch.optim.Adam(model[3].parameters()))
    with pytest.raises(ValueError, match=r"1\.\w+ has a gradient, but isn't in the optimizer"):
        loss(model, batch).backward()


def test_preconditioned_by_centered_rmsprop_is_exact():
    model, batch, sizes = build("mlp"), data("mlp"), [4, 4, 4]
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, alpha=0.9, centered=True)
    tracker = NoiseTracker(model, window=1, precondition=optimizer)
    accumulate(model, tracker, batch, sizes)
    mean = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    optimizer.zero_grad()
    each = exact_gradients(copy.deepcopy(model), batch)
    scaled = [
        each[n] / ((0.1 * g**2 - (0.1 * g) ** 2).sqrt() + 1e-8).flatten() for n, g in zip(each, mean, strict=True)
    ]
    parts = torch.stack([part.mean(0) for part in torch.cat(scaled, 1).split(sizes)])
    accumulate(model, tracker, batch, sizes)
    moments = gradient_moments(sq_norms(parts), sizes, sq_norms(parts.mean(0)))
    assert_same(tracker.estimates()["preconditioned"], moments)


def test_a_state_that_does_not_fit_says_what_differs():
    model = build("mlp")
    plain, decaying = NoiseTracker(model, window=10), NoiseTracker(model, decay=0.9)
    adam = NoiseTracker(model, window=10, precondition=torch.optim.Adam(model.parameters()))
    with pytest.raises(ValueError, match=r"saved with window=10, this average has decay=0\.9"):
        decaying.load_state_dict(plain.state_dict())
    with pytest.raises(ValueError, match="saved with a tracker without precondition, this one is with precondition"):
        adam.load_state_dict(plain.state_dict())
    with pytest.raises(ValueError, match="saved with a tracker with precondition, this one is without"):
        plain.load_state_dict(adam.state_dict())
    with pytest.raises(ValueError, match="no state of a NoiseTracker: averages, columns, every"):
        plain.load_state_dict({})


def test_a_short_last_batch_is_cut_into_fewer_or_skipped():
    model, (images, labels) = build("mlp"), data("mlp")
    split, beside = NoiseTracker(model), NoiseTracker(copy.deepcopy(model))
    for size in (12, 3, 1):
        batch = images[:size], labels[:size]
        beside.probe(loss, batch, parts=4)
        split.backward(loss, batch, parts=4)
        split.step()
        model.zero_grad()
    for tracker in (split, beside):
        assert tracker.estimate().steps == pytest.approx(2)
        assert dict(tracker.skipped) == {"only one part: no two gradients to compare": 1}
    with pytest.raises(ValueError, match="parts = 4: a batch of 3 can be cut into 1 to 3"):
        NoiseTracker(model).backward(loss, (images[:3], labels[:3]), parts=4)


def test_whole_numbers_and_names_are_asked_for():
    model = build("mlp")
    with pytest.raises(ValueError, match=r"every must be a whole number of steps, at least 1, got 1\.5"):
        NoiseTracker(model, every=1.5)
    with pytest.raises(ValueError, match=r"window must be a whole number of steps, at least 1, got 2\.5"):
        NoiseTracker(model, window=2.5)
    with pytest.raises(ValueError, match=r"groups must give names \(str\) or None, got 3"):
        NoiseTracker(model, groups=lambda name: 3)


@pytest.mark.parametrize("examples", [False, True])
def test_measuring_beside_a_step_leaves_its_tracker_alone(examples):
    model, batch = build("mlp"), data("mlp")
    pieces = list(zip(*(t.split([6, 6]) for t in batch), strict=True))
    tracker, probing = NoiseTracker(model), NoiseTracker(model)
    if examples:
        tracker.use_example_hooks()
    for _ in range(2):
        model.zero_grad()
        for piece in pieces:
            hessian_noise(model, loss, (pieces[0], pieces[1], batch))
            (loss(model, piece) / 2).backward()
            tracker.micro_batch(6)
            probing.probe(loss, batch)
        tracker.step()
    assert_same(tracker.estimate(), truth(model, batch, [1] * BATCH if examples else [6, 6]))
    assert not tracker.skipped


def test_a_lazy_module_has_to_run_first():
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
    with pytest.raises(ValueError, match=r"0.weight, 0.bias: no shape yet \(a lazy module\); run the model once"):
        NoiseTracker(model)
    model(torch.randn(2, 4))
    NoiseTracker(model)


@pytest.mark.parametrize("how", ["micro-batches", "examples"])
def test_norms_of_many_numbers_keep_their_digits(how):
    """One float32 sum over 8 million squares is 3 in 10,000 short, and parts and mean mustn't differ by that."""
    torch.manual_seed(0)
    model = nn.Linear(4096, 1024, bias=False)
    inputs, outputs = torch.randn(2, 850, 4096), torch.randn(2, 850, 1024)  # too many positions for their products
    tracker = NoiseTracker(model, every=1)
    if how == "examples":
        tracker.use_example_hooks()
    (model(inputs) * outputs).sum((1, 2)).mean().backward()
    tracker.micro_batch(2)
    tracker.step()
    each = outputs.double().mT @ inputs.double() / 2
    whole = each.sum(0).norm().item()
    expected = [each.norm().item(), whole] if how == "examples" else [whole]
    assert tracker._collector._sheet.copy(2).tolist() == pytest.approx(expected, rel=1e-5)
