"""The best learning rate at each batch size, for one goal: the one whose seeds got there in the fewest steps.

A learning rate competes if all seeds ran at it. Seeds that did not get there count against it before steps do, so a
rate that always arrives beats a faster one that sometimes fails; where none arrives the batch size stays in the fit
as a lower bound.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

# Natural logarithms of steps stay below 100, so these sort before them.
UNREACHED, DIVERGED = 1e6, 1e3


@dataclass(frozen=True)
class Grid:
    """One batch size at one goal: `steps` and `reached` of shape (learning rates, seeds), for the `lrs` that all
    seeds ran at.

    `tried` are all learning rates with any run. Where a run did not reach the goal, `steps` is where it ended and
    `diverged` says if it blew up.
    """

    batch_size: int
    tried: NDArray[np.float64]
    lrs: NDArray[np.float64]
    seeds: NDArray[np.int64]
    steps: NDArray[np.float64]
    reached: NDArray[np.bool_]
    diverged: NDArray[np.bool_]

    def best(self) -> int:
        """Index of the best learning rate."""
        missed = ~self.reached
        blown = missed & self.diverged
        with np.errstate(divide="ignore"):
            cost = np.log(self.steps).mean(axis=1)
        return int(np.argmin(cost + UNREACHED * missed.sum(axis=1) + DIVERGED * blown.sum(axis=1)))

    @property
    def open_ends(self) -> int:
        """At how many ends of what was tried the best learning rate lies, so that a better one may lie beyond: 2 where
        only one was tried."""
        best = self.lrs[self.best()]
        return int(best == self.tried.min()) + int(best == self.tried.max())


def grids(goal_rows: pd.DataFrame, diverged: set[str]) -> list[Grid]:
    """One `Grid` a batch size from the rows of `crossings.cross` that belong to one goal; `diverged` holds run ids."""
    found = []
    for size, rows in goal_rows.groupby("batch_size"):
        runs = rows.assign(diverged=rows["run_id"].isin(diverged))
        wide = {name: runs.pivot(index="lr", columns="seed", values=name) for name in ("steps", "reached", "diverged")}
        counts = wide["steps"].notna().sum(axis=1)
        complete = counts == counts.max()
        seeds = wide["steps"].columns[wide["steps"][complete].notna().all(axis=0)]
        part = {name: frame.loc[complete, seeds] for name, frame in wide.items()}
        found.append(
            Grid(
                batch_size=int(size),
                tried=wide["steps"].index.to_numpy(float),
                lrs=part["steps"].index.to_numpy(float),
                seeds=seeds.to_numpy(int),
                steps=part["steps"].to_numpy(float),
                reached=part["reached"].to_numpy(bool),
                diverged=part["diverged"].to_numpy(bool),
            )
        )
    return found
