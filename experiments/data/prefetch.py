"""The next batch made in the background while the present one trains, with the same numbers as without.

A batch is a pure function of its size and its generator's state. After each batch the next one is made on a copy of the
generator, in a thread; it is handed out if the generator has been left alone meanwhile, and otherwise made anew.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

Batch = tuple[Tensor, ...]


class _Pending(NamedTuple):
    size: int
    start: Tensor
    made: Future[tuple[Batch, Tensor]]


class Prefetch:
    """Wraps `make(size, generator)`, which may read nothing else that changes. One batch ahead for each generator."""

    def __init__(self, make: Callable[[int, torch.Generator], Batch]):
        self.make = make
        self.thread = ThreadPoolExecutor(1)
        self.pending: dict[int, _Pending] = {}

    def __call__(self, size: int, generator: torch.Generator) -> Batch:
        """The batch; `generator` is left as `make` would leave it."""
        ahead = self.pending.pop(id(generator), None)
        if ahead is not None and ahead.size == size and ahead.start.equal(generator.get_state()):
            batch, end = ahead.made.result()
            generator.set_state(end)
        else:
            batch = self.make(size, generator)
        start = generator.get_state()
        copy = torch.Generator(generator.device)
        copy.set_state(start)
        self.pending[id(generator)] = _Pending(size, start, self.thread.submit(self._make, size, copy))
        return batch

    def _make(self, size: int, generator: torch.Generator) -> tuple[Batch, Tensor]:
        return self.make(size, generator), generator.get_state()
