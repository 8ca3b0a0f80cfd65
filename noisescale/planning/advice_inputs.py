"""What `advise` is given, checked and brought to one form."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from noisescale.averaging import NoiseScale
from noisescale.pareto.fit import Estimate, ParetoFit

Floats = NDArray[np.float64]
BCrit = Estimate | ParetoFit | NoiseScale | float


def doubt(b_crit: BCrit) -> str:
    """Why it isn't determined, '' where it is."""
    if not isinstance(b_crit, ParetoFit | NoiseScale) or b_crit.determined:
        return ""
    return b_crit.remark if b_crit.remark.startswith("not determined") else f"not determined: {b_crit.remark}"


def checked_run(run: tuple[float, float]) -> tuple[float, float]:
    """A batch size and a number of steps. Raises ValueError where it isn't two positive numbers."""
    try:
        batch, steps = (float(x) for x in run)
    except (TypeError, ValueError):
        batch = steps = math.nan
    if isinstance(run, str) or not all(math.isfinite(x) and x > 0 for x in (batch, steps)):
        raise ValueError(f"run must be a positive batch size and number of steps, such as (256, 100_000), got {run!r}")
    return batch, steps


def estimate_of(name: str, b_crit: BCrit) -> Estimate:
    """B_crit with its interval. Raises ValueError where it isn't a positive number within it."""
    hint = ""
    if isinstance(b_crit, ParetoFit):
        found, hint = b_crit.b_crit, "; measure at more batch sizes"
    elif isinstance(b_crit, NoiseScale):
        found, hint = Estimate(b_crit.b_simple, max(b_crit.low, 0.0), b_crit.high), "; measure longer"
    elif isinstance(b_crit, Estimate):
        found = b_crit
    else:
        try:
            found = Estimate(*[float(b_crit)] * 3)
        except (TypeError, ValueError):
            raise ValueError(
                f"b_crit must be a number, an Estimate(value, low, high), a ParetoFit or a NoiseScale, got {b_crit!r}"
            ) from None
    if not (math.isfinite(found.value) and found.value > 0):
        raise ValueError(f"{name} must be a positive number, got {found.value:g}{hint}")
    if not 0 <= found.low <= found.value <= found.high:
        raise ValueError(
            f"{name} must lie within its interval, low ≤ value ≤ high, got value {found.value:g}, low {found.low:g}, "
            f"high {found.high:g}"
        )
    return found


def checked_times(
    batch_size: Sequence[float], step_seconds: Sequence[float], devices: float | Sequence[float]
) -> tuple[Floats, Floats, Floats]:
    """Batch sizes in order, with their seconds and devices, (n,) each. Raises ValueError where they don't fit."""
    batch, seconds = np.asarray(batch_size, dtype=float), np.asarray(step_seconds, dtype=float)
    count = (
        np.broadcast_to(np.asarray(devices, dtype=float), batch.shape)
        if np.ndim(devices) == 0
        else np.asarray(devices, dtype=float)
    )
    for name, values in (("batch_size", batch), ("step_seconds", seconds), ("devices", count)):
        if values.shape != batch.shape or batch.ndim != 1:
            raise ValueError(
                f"{name} has shape {values.shape} and batch_size {batch.shape}; one entry a batch size is needed"
            )
        wrong = ~(np.isfinite(values) & (values > 0))
        if wrong.any():
            raise ValueError(f"{name}[{wrong.argmax()}] is {values[wrong][0]:g}; positive finite numbers are needed")
    if batch.size < 2:
        raise ValueError(f"the time of a step is needed at two batch sizes or more, got {batch.size}")
    order = batch.argsort()
    batch = batch[order]
    if (batch[1:] == batch[:-1]).any():
        raise ValueError(f"batch size {batch[:-1][batch[1:] == batch[:-1]][0]:g} is given twice")
    return batch, seconds[order], count[order]
