"""A batch size that follows the noise scale."""

import bisect
import math
from collections.abc import Iterable, Iterator
from numbers import Integral
from typing import Any

from torch.utils.data import Sampler

from noisescale.averaging import NoiseScale


class AdaptiveBatchSize:
    r"""B = √(r · B_simple), the schedule of least E + r S: r examples are paid for each step saved (App. D).

        schedule = AdaptiveBatchSize(r=256, start=64, smallest=32, largest=4096, unit=32)
        ...
        for _ in range(schedule.accumulation):
            backward(next(micro_batches))                     # 32 examples each
        if step % 100 == 0:
            schedule.update(tracker.estimate())
            for group in optimizer.param_groups:
                group["lr"] = lr_at_start * schedule.lr_factor

    Batch sizes are `unit` times a whole number (a power of two by default), so that `accumulation` micro-batches of
    `unit` examples – on all ranks together – make one. The batch size changes only where √(r · B_simple) is more than a
    factor `hysteresis` away from it, and then to the allowed size nearest in ratio. An estimate that isn't determined,
    or not positive, changes nothing and is counted in `held`.

    The learning rate goes with the theory's best step at the noise scale 𝓑 of the moment: at each change,
    `lr_factor` = ((1 + 𝓑/B_start)/(1 + 𝓑/B))^alpha (eq. 2.6), close to B/B_start where both are well below 𝓑.

    Args:
        r: examples worth one step, positive; B = B_simple where B_simple = r. A larger r gives larger batches.
        start: the first batch size, one of the allowed ones.
        smallest, largest: bounds of the batch size. Where micro-batches of `unit` are what the noise is measured from,
            one alone measures nothing: let `smallest` be at least two.
        unit: what every batch size is a multiple of.
        powers_of_two: allow only unit · 2^k.
        hysteresis: at least 1. With powers of two it has an effect above √2: at 1.7 the batch goes from 64 to 128 where
            109 are wanted, and back where 75 are.
        alpha: 1 for SGD and momentum, between 0.5 and 1 for Adam and RMSProp, 0 to leave the learning rate alone.

    Raises:
        ValueError: on an argument outside its range, or bounds with no allowed size between them.
    """

    def __init__(
        self,
        r: float,
        *,
        start: int,
        smallest: int,
        largest: int,
        unit: int = 1,
        powers_of_two: bool = True,
        hysteresis: float = 1.7,
        alpha: float = 1.0,
    ) -> None:
        sizes = {"start": start, "smallest": smallest, "largest": largest, "unit": unit}
        for name, size in sizes.items():
            if not isinstance(size, Integral):
                raise ValueError(f"{name} must be a whole number of examples, got {size!r}")
        start, smallest, largest, unit = map(int, sizes.values())  # NumPy's too
        if not (math.isfinite(r) and r > 0):
            raise ValueError(f"r must be positive and finite, got {r}")
        if unit < 1 or smallest < 1 or largest < smallest:
            raise ValueError(f"unit ≥ 1 and 1 ≤ smallest ≤ largest needed, got {unit=}, {smallest=}, {largest=}")
        if not hysteresis >= 1:
            raise ValueError(f"hysteresis must be at least 1, got {hysteresis}")
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must lie between 0 and 1, got {alpha}")
        self.r, self.unit, self.hysteresis, self.alpha = r, unit, hysteresis, alpha
        least, most = -(-smallest // unit), largest // unit
        if powers_of_two:
            counts = [2**k for k in range(most.bit_length()) if least <= 2**k <= most]
        else:
            counts = range(least, most + 1)
        if not counts:
            kind = "unit · 2^k" if powers_of_two else "multiple of unit"
            raise ValueError(f"no {kind} lies between {smallest} and {largest} for unit {unit}")
        self._counts = counts
        if start < 1:
            raise ValueError(f"start must be at least 1 example, got {start}")
        if start % unit or start // unit not in counts:
            raise ValueError(f"start {start} is not an allowed batch size; the nearest is {self._nearest(start)}")
        self.start = self.batch_size = start
        self.lr_factor = 1.0
        self.held = 0

    @property
    def accumulation(self) -> int:
        """Micro-batches of `unit` examples in one batch."""
        return self.batch_size // self.unit

    def update(self, noise: NoiseScale) -> int:
        """The batch size from here on.

        Args:
            noise: as measured now; one that isn't determined, or not positive, changes nothing.
        """
        if not (noise.determined and noise.b_simple > 0):
            self.held += 1
            return self.batch_size
        wanted = math.sqrt(self.r * noise.b_simple)
        if abs(math.log(wanted / self.batch_size)) > math.log(self.hysteresis):
            size = self._nearest(wanted)
            if size != self.batch_size:
                self.batch_size = size
                best = [1 + noise.b_simple / b for b in (self.start, size)]
                self.lr_factor = (best[0] / best[1]) ** self.alpha
        return self.batch_size

    def state_dict(self) -> dict[str, Any]:
        """The batch size, the learning rate's factor and the count of `held` of the moment."""
        return {"batch_size": self.batch_size, "lr_factor": self.lr_factor, "held": self.held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state. Raises ValueError where its batch size isn't allowed here."""
        size = state["batch_size"]
        if size % self.unit or size // self.unit not in self._counts:
            raise ValueError(f"the saved batch size {size} is not an allowed one; the nearest is {self._nearest(size)}")
        self.batch_size, self.lr_factor, self.held = size, state["lr_factor"], state["held"]

    def _nearest(self, size: float) -> int:
        above = bisect.bisect(self._counts, size / self.unit)
        around = self._counts[max(above - 1, 0) : above + 1]
        return self.unit * min(around, key=lambda count: abs(math.log(count * self.unit / size)))


class AdaptiveBatchSampler(Sampler[list[int]]):
    """Batches of indices for `DataLoader(batch_sampler=...)`, each of the schedule's size at the moment it is drawn.

    Workers of the loader draw a few batches ahead (`prefetch_factor` each), so that a change comes that much later.
    What is left of `sampler` at the end of an epoch and doesn't fill a batch is dropped.

    Args:
        sampler: indices in the order of an epoch, such as a `RandomSampler`.
        schedule: whose `batch_size` is read before each batch.
    """

    def __init__(self, sampler: Iterable[int], schedule: AdaptiveBatchSize) -> None:
        self.sampler = sampler
        self.schedule = schedule

    def __len__(self) -> int:
        """Batches in an epoch at the present batch size, whatever it may become meanwhile."""
        return len(self.sampler) // self.schedule.batch_size  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        size = self.schedule.batch_size
        for index in self.sampler:
            batch.append(index)
            if len(batch) == size:
                yield batch
                batch, size = [], self.schedule.batch_size
