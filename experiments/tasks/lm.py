"""Language modelling: the next token of short pieces of text, each read from a fresh state."""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from experiments.data.sampling import seeded_weights
from experiments.data.text import Part, TextName, open_corpus
from experiments.errors import UserError
from experiments.tasks.base import Evaluation, Metric
from experiments.tasks.lm_models import LstmModel, TransformerModel

frozen = dataclass(frozen=True, config=ConfigDict(extra="forbid"), kw_only=True)
Count = Annotated[int, Field(gt=0)]
EVAL_CHUNK = 128


@frozen
class TextConfig:
    """A sample predicts `sample_size` tokens; the metric is taken on `eval_samples` fixed ones of `eval_part`."""

    text: TextName = "embedded"
    vocab_size: Annotated[int, Field(ge=257)] = 1024
    sample_size: Count = 20
    eval_part: Part = "train"
    eval_samples: Count = 512


@frozen
class LmConfig(TextConfig):
    """The paper's LSTM: one layer of `hidden` cells on embeddings of size `embedding`. A name for each use."""

    name: Literal["lm", "lm_narrow", "lm_wide", "lm_lm1b"]
    embedding: Count = 96
    hidden: Count = 96

    @property
    def architecture(self) -> str:
        """The network in words."""
        paper = "the paper's: 2,048 on 512, a vocabulary of 40,000"
        return f"LSTM of {self.hidden:,} cells on embeddings of {self.embedding:,} ({paper})"


@frozen
class LmTransformerConfig(TextConfig):
    """A decoder-only transformer; `fused` attention is faster on long samples and has no second derivative."""

    name: Literal["lm_transformer"]
    width: Count = 64
    layers: Count = 2
    heads: Count = 4
    fused: bool = False

    @property
    def architecture(self) -> str:
        """The network in words."""
        return f"transformer of {self.layers} layers, {self.width} wide, {self.heads} heads"

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "LmTransformerConfig":
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads} does not divide width={self.width}")
        return self


class LmTask:
    """Windows of `sample_size` + 1 tokens at random places of the training text; the last token is only a target.

    The loss is the cross-entropy in nats, the mean over the samples, each the mean over its tokens. The metric is exp
    of the mean cross-entropy of the samples' last token, the one with the most context. `groups` names the parameters
    of each kind of layer by prefix.
    """

    unit = "token"
    sample_size = 20
    metric = Metric("last_token_perplexity", "min")

    def __init__(self, config: LmConfig | LmTransformerConfig, seed: int, device: torch.device):
        corpus = open_corpus(config.text, config.vocab_size)
        self.sample_size = config.sample_size
        self.tokens = corpus.train.to(device)
        self._offsets = torch.arange(config.sample_size + 1, device=device)
        evaluated = corpus.train if config.eval_part == "train" else corpus.held_out
        shortest = min(len(corpus.train), len(evaluated))
        if shortest <= config.sample_size:
            raise UserError(
                f"task.sample_size={config.sample_size}: {corpus.origin} has {shortest} tokens; allowed: fewer"
            )
        fixed = torch.Generator().manual_seed(0)
        self._fixed = self._windows(evaluated, config.eval_samples, fixed, self._offsets.cpu()).to(device)
        with seeded_weights(seed):
            self.model = _build(config).to(device)
        self.groups = self.model.groups
        part = "the training text" if config.eval_part == "train" else "the held-out text"
        self.data = (
            f"{corpus.origin}: {len(corpus.train):,} training tokens of a byte-level BPE of {config.vocab_size:,}; "
            f"perplexity on {config.eval_samples:,} fixed samples of {part}"
        )

    @staticmethod
    def _windows(tokens: Tensor, size: int, generator: torch.Generator, offsets: Tensor) -> Tensor:
        starts = torch.randint(len(tokens) - len(offsets) + 1, (size, 1), generator=generator).to(tokens.device)
        return tokens[starts + offsets].long()

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """(size, sample_size + 1) token ids, drawn with replacement."""
        return (self._windows(self.tokens, size, generator, self._offsets),)

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        """Scalar: cross-entropy in nats."""
        (windows,) = batch
        return F.cross_entropy(self.model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """Loss over all tokens, perplexity of the last one."""
        total = torch.zeros(self.sample_size, dtype=torch.float64, device=self._fixed.device)
        for windows in self._fixed.split(EVAL_CHUNK):
            logits, targets = self.model(windows[:, :-1]), windows[:, 1:]
            losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
            total += losses.view_as(targets).sum(0)
        by_position = total / len(self._fixed)
        return Evaluation(loss=by_position.mean().item(), metric=by_position[-1].exp().item())


def _build(config: LmConfig | LmTransformerConfig) -> LstmModel | TransformerModel:
    if isinstance(config, LmConfig):
        return LstmModel(config.vocab_size, config.embedding, config.hidden)
    return TransformerModel(
        config.vocab_size, config.width, config.layers, config.heads, config.sample_size, config.fused
    )
