"""The paper's single-layer LSTM, and a small decoder-only transformer."""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel


class LstmModel(nn.Module):
    """Token ids (n, T) → logits (n, T, vocabulary), from a state of zeros."""

    groups: ClassVar[dict[str, list[str]]] = {
        "embedding": ["embedding."],
        "recurrent": ["recurrent."],
        "head": ["head."],
    }

    def __init__(self, vocab_size: int, embedding: int, hidden: int):
        super().__init__()
        # First, so that its weights start the flat parameter vector: cuDNN wants them in one piece.
        self.recurrent = nn.LSTM(embedding, hidden, batch_first=True)
        self.embedding = nn.Embedding(vocab_size, embedding)
        self.head = nn.Linear(hidden, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.recurrent(self.embedding(tokens))
        return self.head(states)


class TransformerModel(nn.Module):
    """Token ids (n, T) → logits (n, T, vocabulary); T at most `length`.

    Pre-norm with RMSNorm, learned positions, no dropout. With `fused`, attention takes PyTorch's fastest kernel, which
    has no second derivative: no B_noise then.
    """

    groups: ClassVar[dict[str, list[str]]] = {
        "embedding": ["embedding.", "position."],
        "attention": ["attention."],
        "mlp": ["mlp."],
        "norm": ["attention_norm.", "mlp_norm.", "norm."],
        "head": ["head."],
    }

    def __init__(self, vocab_size: int, width: int, layers: int, heads: int, length: int, fused: bool):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.position = nn.Embedding(length, width)
        self.attention = nn.ModuleList(CausalAttention(width, heads, fused) for _ in range(layers))
        self.attention_norm = nn.ModuleList(nn.RMSNorm(width) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers)
        )
        self.mlp_norm = nn.ModuleList(nn.RMSNorm(width) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocab_size)
        for embedding in (self.embedding, self.position):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position.weight[: tokens.shape[1]]
        blocks = zip(self.attention_norm, self.attention, self.mlp_norm, self.mlp, strict=True)
        for attention_norm, attention, mlp_norm, mlp in blocks:
            x = x + attention(attention_norm(x))
            x = x + mlp(mlp_norm(x))
        return self.head(self.norm(x))


class CausalAttention(nn.Module):
    """Multi-head self-attention, (n, T, width) → (n, T, width)."""

    def __init__(self, width: int, heads: int, fused: bool):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.inputs = nn.Linear(width, 3 * width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        query, key, value = self.inputs(x).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            with sdpa_kernel(SDPBackend.MATH):
                mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).reshape(n, length, width))
