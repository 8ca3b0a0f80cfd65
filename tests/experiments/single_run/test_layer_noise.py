import numpy as np
import pytest
import torch

from experiments.single_run.layer_noise import layer_noise
from experiments.tasks.digits import DigitsConfig, DigitsTask
from experiments.tasks.lm import LmTask, LmTransformerConfig
from experiments.training.flat_model import FlatModel

CPU = torch.device("cpu")


@pytest.fixture
def task(tmp_path, monkeypatch) -> LmTask:
    """A transformer on 30 windows of text, few enough for every sample's own gradient."""
    monkeypatch.setenv("NOISESCALE_CACHE", str(tmp_path))
    config = LmTransformerConfig(name="lm_transformer", vocab_size=300, width=8, layers=1, heads=2, eval_samples=8)
    made = LmTask(config, 0, CPU)
    made.tokens = made.tokens[:50]
    return made


def measured(task, optimizer_of, rows=200):
    flat = FlatModel(task.model)
    optimizer = optimizer_of(flat.vector)
    if optimizer.state_dict()["param_groups"][0].get("betas"):
        flat.vector.grad = torch.randn(flat.vector.shape, generator=torch.Generator().manual_seed(3))
        flat.vector.grad[:100] = 0  # never seen: left out of the metric
        optimizer.step()
    table = layer_noise(task, flat, optimizer, 40, rows, 4, torch.Generator().manual_seed(1))
    return flat, optimizer, table


def exact(task, flat, scale):
    """|G|² and tr Σ per token over the 30 equally likely windows, by group."""
    windows = task.tokens.long().unfold(0, 21, 1)
    gradients = []
    for window in windows:
        gradient = torch.zeros_like(flat.vector.data)
        flat.differentiate(task.loss((window[None],)), flat.views(gradient))
        gradients.append(gradient.double() * scale)
    g = torch.stack(gradients)
    found = {}
    for group, prefixes in {"total": [""], **task.groups}.items():
        columns = [
            i for name, s in flat.slices.items() if name.startswith(tuple(prefixes)) for i in range(s.start, s.stop)
        ]
        part = g[:, columns]
        found[group] = (part.mean(0).square().sum().item(), 20 * part.var(0, correction=0).sum().item())
    return found


@pytest.mark.parametrize("adam", [False, True])
def test_against_every_samples_gradient(task, adam):
    make = (lambda v: torch.optim.Adam([v], lr=1e-4)) if adam else (lambda v: torch.optim.SGD([v], lr=0.1))
    flat, optimizer, table = measured(task, make)
    scale = 1.0
    if adam:
        state = optimizer.state[flat.vector]
        scale = 1 / ((state["exp_avg_sq"].double() / (1 - 0.999 ** state["step"].item())).sqrt() + 1e-8)
        scale[:100] = 0
    truth = exact(task, flat, scale)
    rows = table[table["preconditioned"] == adam].set_index("group")
    assert set(rows.index) == set(truth) == {"total", "embedding", "attention", "mlp", "norm", "head"}
    for group, (grad_sq_norm, trace_cov) in truth.items():
        row = rows.loc[group]
        assert row["grad_sq_norm"] == pytest.approx(grad_sq_norm, rel=0.1), group
        assert row["trace_cov"] == pytest.approx(trace_cov, rel=0.1), group
        assert row["determined"]
        assert row["b_simple_low"] / 1.1 < trace_cov / grad_sq_norm < row["b_simple_high"] * 1.1, group


def test_groups_add_up(task):
    _, _, table = measured(task, lambda v: torch.optim.Adam([v]), rows=4)
    for _, rows in table.groupby("preconditioned"):
        rows = rows.set_index("group")
        for column in ("grad_sq_norm", "trace_cov"):
            np.testing.assert_allclose(rows.loc["total", column], rows[column].drop("total").sum(), rtol=1e-4)


def test_a_task_without_groups_has_a_total_and_sgd_no_metric_of_its_own():
    task = DigitsTask(DigitsConfig(name="digits"), 0, CPU)
    flat = FlatModel(task.model)
    before = flat.vector.detach().clone()
    torch.manual_seed(0)
    state = torch.get_rng_state()
    table = layer_noise(task, flat, torch.optim.SGD([flat.vector]), 16, 8, 4, torch.Generator().manual_seed(1))
    assert table["group"].tolist() == ["total"] and not table["preconditioned"].any()
    assert torch.equal(flat.vector, before) and torch.equal(torch.get_rng_state(), state)
