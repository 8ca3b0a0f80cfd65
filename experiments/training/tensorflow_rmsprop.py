"""RMSProp as TensorFlow has it, and with it the A2C of the paper."""

from typing import Any

import torch
from torch import Tensor


class RMSpropTF(torch.optim.Optimizer):
    r"""v ← α v + (1 − α) g², θ ← θ − ε g / √(v + δ), from v = 1 on (δ is `eps`).

    `torch.optim.RMSprop` starts at v = 0 and divides by √v + δ, so that its first steps move every weight by ten
    learning rates; on Pong they leave nine in ten of the last layer's units dead. Here steps grow from nothing over
    some 10/(1 − α) steps, and where v ≪ δ they are those of SGD at ε/√δ.
    """

    def __init__(self, params: list[torch.nn.Parameter], lr: float, alpha: float, eps: float) -> None:
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps})
        self.roots: dict[torch.nn.Parameter, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step along the gradients in `.grad`."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["mean_square"] = torch.ones_like(p)
                v = state["mean_square"]
                v.mul_(group["alpha"]).addcmul_(p.grad, p.grad, value=1 - group["alpha"])
                root = self.roots.setdefault(p, torch.empty_like(p))
                torch.add(v, group["eps"], out=root).sqrt_()
                p.addcdiv_(p.grad, root, value=-group["lr"])
