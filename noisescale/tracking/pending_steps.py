r"""From the norms of steps to the averages: several steps at once, and round the ranks where there are any."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor

from noisescale.averaging import BLOCK, MomentAverage
from noisescale.preconditioning import PRECONDITIONED
from noisescale.tracking.collector import Collector
from noisescale.tracking.parameter_groups import Columns
from noisescale.tracking.step_sums import Layout, StepSums, over_ranks

TOGETHER = 8  # steps whose sums go round the ranks together


class Ledger:
    """Steps that wait to be summed, and sums over the ranks that wait on the device, before they reach the averages."""

    def __init__(self, collector: Collector, columns: Columns, averages: Mapping[str, MomentAverage]) -> None:
        self._collector, self._columns, self._averages = collector, columns, averages
        self._waiting: list[tuple[Tensor, Layout] | None] = []
        self._reduced: list[StepSums] = []

    def add(self, step: tuple[Tensor, Layout] | None, together: bool) -> None:
        """One step, None where it can't be used; on several ranks `together` with others, or at once."""
        if self._collector.ranks > 1:
            self._waiting.append(step)
            if len(self._waiting) >= (TOGETHER if together else 1):
                self._send()
        elif step is not None:
            self._waiting.append(step)
            if len(self._waiting) >= BLOCK:
                self.collect()

    def collect(self) -> None:
        """Into the averages: all that has gone round, on one rank all that waits."""
        for sums in self._reduced if self._collector.ranks > 1 else self._summed():
            self._update(sums)
        self._reduced.clear()

    def clear(self) -> None:
        """Forget what hasn't reached the averages."""
        self._reduced.clear()
        self._waiting.clear()

    def _summed(self) -> list[StepSums]:
        """The steps that wait, those that were cut alike in one."""
        found = []
        for layout, alike in itertools.groupby(self._waiting, key=lambda step: step and step[1]):
            steps = list(alike)
            if layout is None:
                found += [self._collector.nothing() for _ in steps]
            else:
                norms = torch.stack([step[0] for step in steps if step is not None])
                found.append(layout.sums(norms, self._columns, self._collector.kinds))
        self._waiting.clear()
        return found

    def _send(self) -> None:
        self._reduced.append(over_ranks(self._summed(), self._collector.group, self._collector.sharded))
        if len(self._reduced) * TOGETHER >= BLOCK:
            self.collect()

    def _update(self, sums: StepSums) -> None:
        moments = sums.moments(self._collector.averaged)
        columns = len(self._columns.names)
        self._averages[""].extend(*(x[:, :columns] for x in moments), sums.examples)
        if PRECONDITIONED in self._averages:
            self._averages[PRECONDITIONED].extend(*(x[:, columns:] for x in moments), sums.examples)
