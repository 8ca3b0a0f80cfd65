"""The table of small models that every way to collect is tested on, and their exact per-example gradients."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from noisescale import gradient_moments

BATCH = 12


class GroupNormResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm1 = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4)
        self.conv, self.norm2 = nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.GroupNorm(4, 4)
        self.down, self.head = nn.Conv2d(4, 6, 3, stride=2, dilation=2, padding=1), nn.Linear(6, 3)

    def forward(self, x):
        x = F.relu(self.norm1(self.stem(x)))
        x = x + F.relu(self.norm2(self.conv(x)))
        return self.head(self.down(x).mean((2, 3)))


class Transformer(nn.Module):
    """One causal block with LayerNorm, RMSNorm and an untied head: tokens (B, T) → logits (B, T, V)."""

    def __init__(self, vocabulary=11, width=8):
        super().__init__()
        self.embed, self.place = nn.Embedding(vocabulary, width), nn.Embedding(6, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 16), nn.Linear(16, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1])[None])
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        x = x + self.down(F.gelu(self.up(self.norm2(x))))
        return self.head(x)


class Tied(nn.Module):
    """Embedding and head share their weight, and one linear layer is used twice."""

    def __init__(self, vocabulary=11, width=8):
        super().__init__()
        self.embed, self.mix = nn.Embedding(vocabulary, width), nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.mix(torch.tanh(self.mix(self.embed(tokens))))))


class Recurrent(nn.Module):
    def __init__(self, vocabulary=11):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(vocabulary, 5), nn.LSTM(5, 6, batch_first=True)
        self.head = nn.Linear(6, vocabulary)

    def forward(self, tokens):
        return self.head(self.lstm(self.embed(tokens))[0])


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(50, 8), nn.ReLU(), nn.Linear(8, 3))


def cnn():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Unflatten(1, (2, -1)), nn.Conv1d(2, 3, 1),
        nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


MODELS = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet": GroupNormResNet,
    "transformer": Transformer,
    "tied": Tied,
    "lstm": Recurrent,
}
IMAGES = ("mlp", "cnn", "resnet")


def build(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().to(dtype)


def data(name: str, size: int = BATCH, seed: int = 1, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if name in IMAGES:
        return torch.randn(size, 2, 5, 5, dtype=dtype, generator=generator), torch.arange(size) % 3
    tokens = torch.randint(11, (size, 7), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean over the examples; over the positions of an example too, where it has some."""
    return F.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def exact_gradients(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """name → (B, numel), one backward pass an example."""
    named = dict(model.named_parameters())
    rows = [
        torch.autograd.grad(loss(model, (x[None], y[None])), list(named.values()), materialize_grads=True)
        for x, y in zip(*batch, strict=True)
    ]
    return {n: torch.stack([row[i].flatten() for row in rows]) for i, n in enumerate(named)}


def flat(gradients: dict[str, Tensor]) -> Tensor:
    return torch.cat(list(gradients.values()), dim=1)


def sq_norms(parts: Tensor) -> Tensor:
    return (parts**2).sum(-1)


class BehindItsBack(nn.Module):
    """The head uses the embedding's weight without a layer of its own."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 4)

    def forward(self, tokens):
        return nn.functional.linear(self.embed(tokens), self.embed.weight)


def truth(model, batch, sizes, weights=None, names=None):
    """The pair from exact per-example gradients cut into the same parts."""
    each = exact_gradients(model, batch)
    rows = flat(each if names is None else {n: each[n] for n in names})
    parts = torch.stack([part.mean(0) for part in rows.split(sizes)])
    w = torch.tensor([1 / len(sizes)] * len(sizes) if weights is None else weights, dtype=torch.float64)
    return gradient_moments(sq_norms(parts), sizes, sq_norms(w / w.sum() @ parts), w)


def assert_same(scale, moments, rel=1e-9):
    assert scale.grad_sq_norm == pytest.approx(float(moments.grad_sq_norm), rel=rel, abs=1e-12)
    assert scale.trace_cov == pytest.approx(float(moments.trace_cov), rel=rel)
