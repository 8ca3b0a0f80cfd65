r"""How often to measure, so that training doesn't notice: from how many multiplications each weight takes part in.

Measuring reads every part's gradient once more, and their mean. Beside the backward pass that is nothing where a weight
serves many positions (convolutions, transformers), and a tenth of a multilayer perceptron's step at 32 rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from noisescale.side_effects import beside

SHARE = 0.0125
READ = 3.3  # time to read a gradient's number that has left the cache, in multiply-adds of a training step; a CPU's
CACHED = 2**19  # numbers that stay in a core's cache from the backward pass to the hook that reads them
RAREST = 12  # reading is at most a seventh of a step: gradient, accumulation and optimizer move as much memory each


class Pace:
    """Counts a step's use of each parameter in forward hooks, from when it is made to `close`.

    Make it after a step: `torch.compile`, copies and checkpoints of the model at the start then see no hooks. What was
    compiled until then doesn't see them later either, and isn't counted.
    """

    def __init__(self, model: nn.Module, parameters: Collection[nn.Parameter]) -> None:
        self._numbers = {id(p): p.numel() for p in parameters}
        self._read = {id(p) for p in parameters if p.requires_grad}
        self._uses: Counter[int] = Counter()
        self._handles = []
        for module in [] if any(map(_compiled, model.modules())) else model.modules():
            keys = [id(p) for p in module.parameters(recurse=False) if id(p) in self._numbers]
            if keys and not isinstance(module, torch.jit.ScriptModule):  # which takes no hooks
                self._handles.append(module.register_forward_hook(partial(self._count, keys)))

    def every(self, parts: int) -> int:
        """Steps from one measurement of `parts` gradients to the next, to cost at most about `SHARE` of training."""
        numbers = sum(self._numbers[key] for key in self._uses if key in self._read)
        products = sum(self._numbers[key] * rows for key, rows in self._uses.items())
        if numbers < CACHED or products == 0:
            return 1
        return min(math.ceil(READ * (parts + 1) * numbers / products / SHARE), RAREST)

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _count(self, keys: list[int], module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if torch.compiler.is_compiling() or beside() or not torch.is_grad_enabled():
            return
        rows = [_rows(module, x) for x in (_first(inputs), _first(output)) if x is not None]
        if rows:
            self._uses.update(dict.fromkeys(keys, min(rows)))


def _compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _first(value: Any) -> Tensor | None:
    while isinstance(value, tuple | list) and value:
        value = value[0]
    return value if isinstance(value, Tensor) and value.dim() and not value.is_nested else None


def _rows(module: nn.Module, x: Tensor) -> int:
    """Positions that a weight is multiplied with; none where the input are ids."""
    if not (x.is_floating_point() or x.is_complex()):
        return 0
    spatial = len(module.kernel_size) if isinstance(module, _ConvNd) else 0
    return x.numel() // max(x.shape[-1 - spatial if x.dim() > spatial else -1], 1)
