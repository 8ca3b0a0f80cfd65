"""A model's parameters as one vector, and its gradient as another.

Squared norms, sums over micro-batches, optimizer steps and checkpoints then are one operation each, whatever the number
of layers: a dot product of one buffer costs 4 µs where the norms of 30 tensors cost 95. All of the suite's optimizers
act on each element by itself, so stepping the vector is stepping the parameters.
"""

import torch
from torch import Tensor, nn


class FlatModel:
    """Turns the trainable parameters of `model` into views of `vector`, and their gradients into views of `gradient`.

    `vector`: shape (P,), an `nn.Parameter` for the optimizer. `gradient`: shape (P,); `backward()` adds to it, so zero
    it before.
    `slices`: parameter name → its slice of both.
    """

    def __init__(self, model: nn.Module):
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError("the model has no trainable parameters")
        self.model = model
        self.vector = nn.Parameter(torch.cat([p.detach().reshape(-1) for _, p in named]))
        self.gradient = torch.zeros_like(self.vector.data)
        self.slices: dict[str, slice] = {}
        start = 0
        for name, p in named:
            part = slice(start, start + p.numel())
            p.data = self.vector.data[part].view_as(p)
            p.grad = self.gradient[part].view_as(p)
            self.slices[name] = part
            start = part.stop

    def buffers(self) -> list[Tensor]:
        """What training changes besides the parameters (running statistics)."""
        return list(self.model.buffers())
