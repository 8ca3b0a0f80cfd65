"""A model's parameters as one vector, and its gradient as another.

Squared norms, sums over micro-batches, optimizer steps and checkpoints then are one operation each, whatever the number
of layers: a dot product of one buffer costs 4 µs where the norms of 30 tensors cost 95. All of the suite's optimizers
act on each element by itself, so stepping the vector is stepping the parameters.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn


class FlatModel:
    """Turns the trainable parameters of `model` into views of `vector`.

    `vector`: shape (P,), an `nn.Parameter` for the optimizer. `slices`: parameter name → its slice of it, and of every
    gradient.
    """

    def __init__(self, model: nn.Module):
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError("the model has no trainable parameters")
        self.model = model
        self.vector = nn.Parameter(torch.cat([_in_memory(p.detach()) for _, p in named]))
        self.parameters = [p for _, p in named]
        self.slices: dict[str, slice] = {}
        start = 0
        for name, p in named:
            part = slice(start, start + p.numel())
            p.data = _as(self.vector.data[part], torch.empty_like(p))
            self.slices[name] = part
            start = part.stop

    def views(self, vector: Tensor) -> list[Tensor]:
        """The parts of a `vector` of shape (P,), each in its parameter's shape and memory format."""
        return [_as(vector[part], p) for part, p in zip(self.slices.values(), self.parameters, strict=True)]

    @property
    def strides(self) -> list[list[int]]:
        """By parameter, which with the shapes say where in the vector each entry lies."""
        return [list(p.stride()) for p in self.parameters]

    def group_slices(self, groups: Mapping[str, Sequence[str]]) -> dict[str, list[slice]]:
        """Of each group's parameters, whose names start with one of its prefixes."""
        return {
            group: [part for name, part in self.slices.items() if name.startswith(tuple(prefixes))]
            for group, prefixes in groups.items()
        }

    def differentiate(self, loss: Tensor, views: list[Tensor]) -> None:
        """∂loss/∂vector into the `views` of a vector; 0 for parameters that the loss doesn't depend on."""
        torch._foreach_copy_(views, torch.autograd.grad(loss, self.parameters, materialize_grads=True))

    def buffers(self) -> list[Tensor]:
        """What training changes besides the parameters (running statistics)."""
        return list(self.model.buffers())


def _in_memory(parameter: Tensor) -> Tensor:
    """Its entries (n,) in the order that they lie in memory; with gaps or overlaps there, as in a copy without."""
    dense = torch.empty_like(parameter).copy_(parameter)
    return dense.as_strided((parameter.numel(),), (1,))


def _as(part: Tensor, parameter: Tensor) -> Tensor:
    return part.as_strided(parameter.shape, parameter.stride())
