"""How large a batch is worth paying for, from B_crit (or B_simple) and the time of a step."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from noisescale.averaging import NoiseScale
from noisescale.formatting import number, table, whole, with_interval
from noisescale.pareto.fit import Estimate, ParetoFit
from noisescale.planning.advice_inputs import BCrit, Floats, checked_run, checked_times, doubt, estimate_of


@dataclass(frozen=True)
class Row:
    """What training to the goal takes at one batch size, with the range over the interval of B_crit.

    `steps` and `examples` are S and E where a run's length is known, else S/S_min and E/E_min; `hours` and
    `device_hours` (hours times devices) are NaN then. `time` is relative to the fastest row, `cost` to the one of
    fewest device-hours. `measured` is False where the seconds per step are interpolated.
    """

    batch_size: float
    devices: float
    step_seconds: float
    measured: bool
    steps: Estimate
    examples: Estimate
    hours: Estimate
    device_hours: Estimate
    time: Estimate
    cost: Estimate


@dataclass(frozen=True)
class Advice:
    """`rows` by batch size, and what follows from them.

    `name` is what `b_crit` was measured as: "B_crit", or "B_simple" in its place; `remark` says why that isn't
    determined, '' where it is. `stops` is the batch size from which doubling no longer pays, inf where it pays
    throughout. Doubling pays where it takes a larger share off the time than it adds to the device-hours; with one
    number of devices for all batch sizes, where it makes training faster. With devices in proportion to the batch it
    stops at B_crit. Where the batch sizes given are further apart than a factor of two, a step to the next one stands
    for doubling, and `stops` is only as exact as they are close.
    """

    name: str
    b_crit: Estimate
    rows: tuple[Row, ...]
    stops: Estimate
    absolute: bool
    remark: str = ""

    @property
    def fastest(self) -> Row:
        """The row of least time to the goal."""
        return min(self.rows, key=lambda row: row.time.value)

    @property
    def cheapest(self) -> Row:
        """The row of fewest device-hours to the goal."""
        return min(self.rows, key=lambda row: row.cost.value)

    def __str__(self) -> str:
        """The table, without columns that would say nothing, and what it comes to in words."""
        devices = {row.devices for row in self.rows}
        columns = {
            "batch": [whole(row.batch_size) for row in self.rows],
            "devices": [whole(row.devices) for row in self.rows] if devices != {1} else [],
            "s/step": [("" if row.measured else "~") + number(row.step_seconds) for row in self.rows],
            "steps" if self.absolute else "steps/S_min": [with_interval(row.steps) for row in self.rows],
            "examples" if self.absolute else "examples/E_min": [with_interval(row.examples) for row in self.rows],
            "hours": [with_interval(row.hours) for row in self.rows] if self.absolute else [],
            "device-hours": [with_interval(row.device_hours) for row in self.rows]
            if self.absolute and devices != {1}
            else [],
            "time/fastest": [with_interval(row.time) for row in self.rows],
            "cost/cheapest": [with_interval(row.cost) for row in self.rows] if len(devices) > 1 else [],
        }
        shown = {name: cells for name, cells in columns.items() if cells}
        doubt = [f"{self.name} {self.remark}."] if self.remark else []
        return "\n".join([*doubt, table(list(shown), list(zip(*shown.values(), strict=True))), *self._words()])

    def _words(self) -> list[str]:
        fastest, cheapest, largest = self.fastest, self.cheapest, whole(self.rows[-1].batch_size)
        critical = f"{self.name} {with_interval(self.b_crit)}."
        if fastest is cheapest:
            first = f"{critical} B = {whole(fastest.batch_size)} is the fastest and the cheapest."
        else:
            first = (
                f"{critical} "
                f"B = {whole(fastest.batch_size)} is the fastest, at {number(fastest.cost.value)} times the least "
                f"cost; B = {whole(cheapest.batch_size)} is the cheapest, in {number(cheapest.time.value)} times "
                "the least time."
            )
        if math.isinf(self.stops.low):
            return [first, f"Doubling pays up to the largest batch size given, {largest}."]
        least = whole(self.stops.low)
        most = f"beyond {largest}" if math.isinf(self.stops.high) else whole(self.stops.high)
        if math.isinf(self.stops.value):
            return [
                first,
                f"Doubling pays up to the largest batch size given, {largest} (to {least} at the least {self.name}).",
            ]
        spread = "" if least == most else f" (between {least} and {most} over the interval of {self.name})"
        after = _next(np.array([row.batch_size for row in self.rows]), self.stops.value)
        onwards = "there" if np.isclose(after, 2 * self.stops.value) else f"there to {whole(after)}"
        return [
            first,
            f"Doubling stops paying at B = {whole(self.stops.value)}{spread}: "
            f"from {onwards} it adds a larger share to the cost than it takes off the time.",
        ]


def advise(
    b_crit: BCrit,
    batch_size: Sequence[float],
    step_seconds: Sequence[float],
    *,
    devices: float | Sequence[float] = 1,
    run: tuple[float, float] | None = None,
) -> Advice:
    r"""The table batch size → steps, examples, hours and cost, and where doubling the batch stops paying (eq. 2.11).

    S(B) = S_min (1 + B_crit/B) and E(B) = B S(B); hours are S(B) times the seconds per step. Where one number of
    devices holds for all batch sizes, rows for doublings between the measured batch sizes are added, with seconds
    interpolated between measurements in log-log; nothing is extrapolated.

    Args:
        b_crit: in examples; B_simple stands in for it.
        batch_size, step_seconds: (n,) the measured or stated time of one step at n ≥ 2 batch sizes.
        devices: that the steps are timed on: one number, or one for each batch size.
        run: (batch size, steps) that a run to the goal takes; from a `ParetoFit` its own. Without it steps and examples
        are relative.

    Raises:
        ValueError: numbers that are not positive and finite, fewer than two batch sizes, one twice, a B_crit that is
            not a positive number, or a `run` that is no pair.
    """
    name = "B_simple" if isinstance(b_crit, NoiseScale) else "B_crit"
    critical = estimate_of(name, b_crit)
    if isinstance(b_crit, ParetoFit) and run is None:
        # The point in the middle of the front, which the sweep pins down whatever B_crit is.
        middle = math.sqrt(b_crit.smallest * b_crit.largest)
        run = (middle, float(b_crit.steps(middle)))
    batch, seconds, count = checked_times(batch_size, step_seconds, devices)
    if run is not None:
        run = checked_run(run)

    measured = np.ones(batch.size, dtype=bool)
    if np.ndim(devices) == 0:
        doublings = batch[0] * 2.0 ** np.arange(1, math.floor(math.log2(batch[-1] / batch[0])) + 1)
        added = doublings[~np.isclose(doublings[:, None], batch).any(1)]
        between = np.exp(np.interp(np.log(added), np.log(batch), np.log(seconds)))
        order = np.argsort(np.concatenate([batch, added]))
        batch, seconds = np.concatenate([batch, added])[order], np.concatenate([seconds, between])[order]
        measured = np.concatenate([measured, np.zeros(added.size, dtype=bool)])[order]
        count = np.full(batch.size, count[0])

    # Each of these is monotone in B_crit, so that its range over the interval lies between the values at the two ends.
    ends = [critical.value, critical.low, critical.high]
    steps = np.stack([_relative_steps(b, batch, run) for b in ends])
    per_step = np.stack([_relative_steps(b, batch, (batch[0], 1.0)) for b in ends])
    time, cost = per_step * seconds, per_step * seconds * count
    fastest, cheapest = time[0].argmin(), cost[0].argmin()
    examples = steps * batch if run else np.stack([_relative_examples(b, batch) for b in ends])
    hours = steps * seconds / 3600 if run else np.full(steps.shape, np.nan)
    columns = [
        steps, examples, hours, hours * count,
        time / time[:, fastest, None], cost / cost[:, cheapest, None],
    ]  # fmt: skip
    rows = tuple(
        Row(
            *map(float, (batch[i], count[i], seconds[i])),
            bool(measured[i]),
            *(_range(column[:, i]) for column in columns),
        )
        for i in range(batch.size)
    )
    stops = _range(np.array([_stop(batch, t, c) for t, c in zip(time, cost, strict=True)]))
    return Advice(name, critical, rows, stops, run is not None, doubt(b_crit))


def _relative_steps(b_crit: float, batch: Floats, run: tuple[float, float] | None) -> Floats:
    """S(B) through the run's point, or S/S_min = 1 + B_crit/B without one; B_crit may be 0 or inf."""
    if run is None:
        return 1 + b_crit / batch
    at, steps = run
    return steps * (at / batch if math.isinf(b_crit) else (1 + b_crit / batch) / (1 + b_crit / at))


def _relative_examples(b_crit: float, batch: Floats) -> Floats:
    """E/E_min = 1 + B/B_crit."""
    return 1 + (batch / b_crit if b_crit > 0 else np.full(batch.shape, np.inf))


def _range(values: Floats) -> Estimate:
    """The first value, with the least and greatest of all."""
    return Estimate(float(values[0]), float(values.min()), float(values.max()))


def _next(batch: Floats, size: float) -> float:
    """The smallest batch size that is at least twice `size`, or the largest there is."""
    return float(np.append(batch[batch >= 2 * size * (1 - 1e-8)], batch[-1])[0])


def _stop(batch: Floats, time: Floats, cost: Floats) -> float:
    """The smallest batch size from which a step to the next doesn't lower the product of time and cost; else inf."""
    for i, size in enumerate(batch[:-1]):
        j = int((batch == _next(batch, size)).argmax())
        if time[j] * cost[j] >= time[i] * cost[i]:
            return float(size)
    return math.inf
