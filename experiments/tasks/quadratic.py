r"""The noisy quadratic: every number that the sweep measures is known exactly (experiments.tasks.quadratic_theory).

The loss of one example ξ at weights θ ∈ R^d is ½ θᵀHθ + ξᵀθ with ξ ~ N(0, Σ), so the true loss is L(θ) = ½ θᵀHθ, the
true gradient is G = Hθ, and per-example gradients have covariance Σ at every θ. H and Σ are diagonal in one basis.
"""

from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from experiments.tasks.base import Evaluation, Metric
from experiments.tasks.quadratic_theory import NoisyQuadratic

Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class QuadraticConfig:
    """H has `dim` eigenvalues at equal ratios from 1 down to 1/`condition`, and Σ ∝ H^`noise_power` (0: the identity).

    `trace_cov` is tr Σ. Every seed starts from the same weights, with `initial_loss` shared equally by the directions:
    equal shares of many directions keep a run close to its expectation.
    """

    name: Literal["quadratic"]
    dim: Annotated[int, Field(gt=1)] = 128
    condition: Annotated[float, Field(ge=1)] = 100.0
    noise_power: float = 1.0
    trace_cov: Positive = 4.0
    initial_loss: Positive = 1.0

    @property
    def dataset_size(self) -> None:
        """Examples are drawn from a distribution and never run out."""

    def theory(self) -> NoisyQuadratic:
        """The exact answers for this configuration."""
        curvature = self.condition ** -np.linspace(0, 1, self.dim)
        noise = curvature**self.noise_power
        start = np.sqrt(2 * self.initial_loss / (self.dim * curvature))
        return NoisyQuadratic(curvature, noise * (self.trace_cov / noise.sum()), start)


class Quadratic(nn.Module):
    """½ θᵀHθ for the diagonal H."""

    curvature: Tensor

    def __init__(self, curvature: Tensor, start: Tensor):
        super().__init__()
        self.register_buffer("curvature", curvature)
        self.weights = nn.Parameter(start)

    def forward(self) -> Tensor:
        return 0.5 * (self.curvature * self.weights).dot(self.weights)


class QuadraticTask:
    """An example is one draw ξ; the metric is the exact loss."""

    unit = "example"
    sample_size = 1
    metric = Metric("loss", "min")

    def __init__(self, config: QuadraticConfig, seed: int, device: torch.device):
        del seed  # the start is part of the problem
        exact = config.theory()
        curvature, cov, start = (
            torch.from_numpy(a).to(device, torch.float32) for a in (exact.curvature, exact.cov, exact.start)
        )
        self.data = f"{config.dim}-dimensional noisy quadratic, examples drawn afresh"
        self.model = Quadratic(curvature, start)
        self.noise_std = cov.sqrt()

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor]:
        """ξ (size, dim)."""
        noise = torch.randn(size, len(self.noise_std), generator=generator, device=generator.device)
        return (noise.to(self.noise_std.device) * self.noise_std,)

    def loss(self, batch: tuple[Tensor, ...]) -> Tensor:
        (noise,) = batch
        return self.model() + noise.mean(0).dot(self.model.weights)

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        loss = self.model().item()
        return Evaluation(loss=loss, metric=loss)
