import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from pydantic import ValidationError

from experiments.errors import UserError
from experiments.tasks.lm import LmConfig, LmTask, LmTransformerConfig
from experiments.tasks.lm_models import LstmModel, TransformerModel

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOISESCALE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def lstm(seed: int = 0, **fields) -> LmTask:
    return LmTask(
        LmConfig(name="lm", **{"vocab_size": 400, "embedding": 24, "hidden": 32, "eval_samples": 64} | fields),
        seed,
        CPU,
    )


def transformer(seed: int = 0, **fields) -> LmTask:
    small = {"vocab_size": 400, "width": 24, "heads": 2, "eval_samples": 64}
    return LmTask(LmTransformerConfig(name="lm_transformer", **small | fields), seed, CPU)


BOTH = pytest.mark.parametrize("make", [lstm, transformer])


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", ["lm", "lm_transformer"])
def test_yaml_lists_every_field_with_its_default(name):
    fields = yaml.safe_load(Path(f"configs/task/{name}.yaml").read_text())
    config = {"lm": LmConfig, "lm_transformer": LmTransformerConfig}[name]
    assert config(**fields) == config(name=name)
    assert set(fields) == set(config.__dataclass_fields__)


@pytest.mark.parametrize(
    "bad", [{"hidden": 0}, {"vocab_size": 256}, {"text": "enwik8"}, {"width": 64}, {"eval_part": "test"}]
)
def test_config_refuses(bad):
    with pytest.raises(ValidationError):
        LmConfig(name="lm", **bad)


def test_heads_divide_the_width():
    with pytest.raises(ValidationError, match="heads=5 does not divide width=64"):
        LmTransformerConfig(name="lm_transformer", heads=5)


def test_sizes_span_sixteen_fold():
    count = {h: sum(p.numel() for p in LstmModel(1024, h, h).parameters()) for h in (32, 96, 288)}
    for h in count:
        assert count[h] == 2 * 1024 * h + 1024 + 8 * h * h + 8 * h
    assert 16 <= count[288] / count[32] <= 18


@BOTH
def test_batches_are_windows_of_the_text(make):
    task = make()
    (windows,) = task.batch(50, generator())
    assert windows.shape == (50, 21)
    places = task.tokens.unfold(0, 21, 1)
    for window in windows:
        assert (places == window).all(1).any()
    assert torch.equal(task.batch(50, generator())[0], windows)
    assert not torch.equal(task.batch(50, generator(2))[0], windows)


def test_every_place_of_the_text_is_drawn():
    task = lstm()
    task.tokens = torch.arange(25, dtype=torch.int32)  # 5 windows of 21
    starts = task.batch(5000, generator())[0][:, 0]
    counts = torch.bincount(starts, minlength=5)
    assert len(counts) == 5
    assert ((counts - 1000).abs() < 5 * math.sqrt(800)).all()


@BOTH
def test_loss_is_the_mean_over_samples(make):
    task = make()
    (windows,) = task.batch(6, generator())
    singles = [task.loss((window[None],)) for window in windows]
    torch.testing.assert_close(task.loss((windows,)), torch.stack(singles).mean())


@BOTH
def test_loss_against_log_probabilities_by_hand(make):
    task = make()
    (windows,) = task.batch(3, generator())
    probabilities = task.model(windows[:, :-1]).double().softmax(-1)
    picked = probabilities.gather(2, windows[:, 1:, None]).log()
    assert task.loss((windows,)).item() == pytest.approx(-picked.mean().item(), rel=1e-5)


def test_lstm_against_its_equations():
    model = LstmModel(50, 8, 12).double()
    tokens = torch.randint(50, (4, 20), generator=generator())
    cell = model.recurrent
    state, memory = torch.zeros(4, 12, dtype=torch.float64), torch.zeros(4, 12, dtype=torch.float64)
    expected = []
    for t in range(20):
        x = model.embedding.weight[tokens[:, t]]
        gates = x @ cell.weight_ih_l0.T + cell.bias_ih_l0 + state @ cell.weight_hh_l0.T + cell.bias_hh_l0
        enter, forget, content, leave = gates.chunk(4, 1)
        memory = forget.sigmoid() * memory + enter.sigmoid() * content.tanh()
        state = leave.sigmoid() * memory.tanh()
        expected.append(state @ model.head.weight.T + model.head.bias)
    torch.testing.assert_close(model(tokens), torch.stack(expected, 1))


def test_transformer_against_its_equations():
    model = TransformerModel(50, width=12, layers=2, heads=3, length=20, fused=False).double()
    tokens = torch.randint(50, (2, 20), generator=generator())

    def rms(x, norm):
        return x / (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt() * norm.weight

    x = model.embedding.weight[tokens] + model.position.weight
    for i in range(2):
        query, key, value = (rms(x, model.attention_norm[i]) @ model.attention[i].inputs.weight.T).chunk(3, -1)
        heads = []
        for q, k, v in zip(query.split(4, -1), key.split(4, -1), value.split(4, -1), strict=True):
            scores = q @ k.transpose(1, 2) / 2.0
            scores = scores.masked_fill(torch.ones(20, 20).triu(1).bool(), -math.inf)
            heads.append(scores.softmax(-1) @ v)
        x = x + torch.cat(heads, -1) @ model.attention[i].output.weight.T
        first, _, second = model.mlp[i]
        x = x + F.gelu(rms(x, model.mlp_norm[i]) @ first.weight.T + first.bias) @ second.weight.T + second.bias
    expected = rms(x, model.norm) @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(tokens), expected)


def test_fused_attention_is_the_same_function():
    torch.manual_seed(0)
    plain, fused = (TransformerModel(50, 16, 2, 4, 20, fused) for fused in (False, True))
    fused.load_state_dict(plain.state_dict())
    tokens = torch.randint(50, (4, 20))
    torch.testing.assert_close(fused(tokens), plain(tokens), atol=1e-5, rtol=1e-5)


@BOTH
def test_no_token_sees_what_follows(make):
    task = make()
    (windows,) = task.batch(2, generator())
    changed = windows.clone()
    changed[:, 10] = (changed[:, 10] + 1) % 400
    before, after = task.model(windows[:, :-1]), task.model(changed[:, :-1])
    assert torch.equal(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


@BOTH
def test_evaluation_is_fixed_and_of_the_last_token(make):
    task = make(eval_samples=300)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = task.evaluate()
    assert torch.equal(torch.get_rng_state(), state)
    assert task.evaluate() == first
    windows = task._fixed
    with torch.no_grad():
        losses = F.cross_entropy(task.model(windows[:, :-1]).transpose(1, 2), windows[:, 1:], reduction="none").double()
    assert first.loss == pytest.approx(losses.mean().item(), rel=1e-6)
    assert first.metric == pytest.approx(losses[:, -1].mean().exp().item(), rel=1e-5)
    assert first.metric == pytest.approx(400, rel=0.3)
    assert make(eval_samples=300, eval_part="held_out").evaluate() != first


def test_a_diverged_model_has_an_infinite_perplexity():
    task = lstm()
    task.model.head.weight.data.mul_(1e6)
    assert task.evaluate().metric == math.inf


@BOTH
def test_weights_depend_on_the_seed_alone(make):
    torch.manual_seed(1)
    first = make(seed=3).model.state_dict()
    torch.manual_seed(2)
    again, other = make(seed=3).model.state_dict(), make(seed=4).model.state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


@BOTH
def test_groups_cover_every_parameter_once(make):
    task = make()
    for name, _ in task.model.named_parameters():
        assert sum(name.startswith(tuple(prefixes)) for prefixes in task.groups.values()) == 1, name
    for group, prefixes in task.groups.items():
        assert any(name.startswith(tuple(prefixes)) for name, _ in task.model.named_parameters()), group


@BOTH
def test_second_derivatives_exist(make):
    task = make()
    parameters = list(task.model.parameters())
    gradients = torch.autograd.grad(task.loss(task.batch(4, generator())), parameters, create_graph=True)
    products = torch.autograd.grad(sum((g * g.detach()).sum() for g in gradients), parameters)
    assert all(product.isfinite().all() for product in products)


@BOTH
def test_it_learns_more_than_token_frequencies(make):
    task = make()
    counts = torch.bincount(task.tokens, minlength=400).double()
    shares = counts[counts > 0] / counts.sum()
    unigram = -(shares * shares.log()).sum().item()
    optimizer = torch.optim.Adam(task.model.parameters(), lr=0.01, betas=(0.5, 0.999))
    stream = generator()
    for _ in range(250):
        optimizer.zero_grad()
        task.loss(task.batch(32, stream)).backward()
        optimizer.step()
    assert task.evaluate().loss < unigram - 0.5


def test_a_sample_longer_than_the_text_is_refused():
    with pytest.raises(UserError, match=r"task.sample_size=1000000: .* tokens; allowed: fewer"):
        lstm(sample_size=1_000_000)


def test_data_line_says_what_was_measured():
    assert lstm().data.startswith("Python's help topics (")
    assert lstm().data.endswith("of a byte-level BPE of 400; perplexity on 64 fixed samples of the training text")
