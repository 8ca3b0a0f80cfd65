"""Runs of two sweeps in pairs, the same batch size, learning rate and seed in both: which are equal, and by what factor
the others differ on average.
"""

import json
import math

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import bdtr, stdtrit

from experiments.analysis.goal_fit import UNKNOWN
from experiments.training.curve import CURVE_COLUMNS
from noisescale.pareto.fit import Estimate, fit_pareto

Floats = NDArray[np.float64]

ROUNDING = 1e-3  # relative, of a loss or a metric, at every evaluation
FEWEST = 4  # pairs, or batch sizes, that a ratio is taken of
POINT = ["batch_size", "lr", "seed"]
RUN = ["run_id", "run_id_reference"]
OF_AN_END = ["status", "status_reference", "config", "config_reference"]
SCIENCE = [column for column in CURVE_COLUMNS if column not in ("step", "seconds")]


def pair(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Rows of two `runs.parquet` at the points that both have; the other's columns end in `_reference`."""
    return ours.merge(theirs, on=POINT, suffixes=("", "_reference"))


def nearness(
    pairs: pd.DataFrame, ours: pd.DataFrame, theirs: pd.DataFrame
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64]]:
    """Which pairs have curves that are equal bit for bit as far as both go, which have losses and metrics equal but for
    rounding, and the steps at which the others part. Where two end at different steps, the last row of the shorter may
    lie between two evaluations of the other."""
    both = pairs[RUN].merge(ours, on="run_id")
    both = both.merge(
        theirs, left_on=["run_id_reference", "step"], right_on=["run_id", "step"], suffixes=("", "_theirs")
    )
    mine, reference = both[SCIENCE].to_numpy(float), both[[f"{c}_theirs" for c in SCIENCE]].to_numpy(float)
    equal = (mine == reference) | (np.isnan(mine) & np.isnan(reference))
    with np.errstate(invalid="ignore"):  # losses of diverged runs
        near = equal | (np.abs(mine - reference) <= ROUNDING * np.abs(reference))
    rows = pd.DataFrame({"run_id": both["run_id"], "step": both["step"], "equal": equal.all(axis=1)})
    rows["near"] = near[:, [SCIENCE.index("loss"), SCIENCE.index("metric")]].all(axis=1)
    by_run = rows.groupby("run_id")
    lengths = [pairs[run].map(curves["run_id"].value_counts()) for run, curves in zip(RUN, (ours, theirs), strict=True)]
    whole = pairs["run_id"].map(by_run.size()).fillna(0) >= np.minimum(*lengths) - 1
    first, second = ((whole & pairs["run_id"].map(by_run[of].all()).eq(True)).to_numpy() for of in ("equal", "near"))
    parted = rows[~rows["near"]].groupby("run_id")["step"].min()
    return first, second, pairs.loc[~second, "run_id"].map(parted).dropna().to_numpy(int)


def log_ratios(rows: pd.DataFrame) -> Floats:
    """ln of steps over the reference's in pairs of rows of `crossings.csv` (with `OF_AN_END` of the runs); NaN where
    neither got there. A run that did not takes longer than it was tried, one that diverged longer than its budget: that
    bound counts where it is beyond the other's steps."""
    tried = []
    for end in ("", "_reference"):
        budget = rows[f"config{end}"].map(lambda text: json.loads(text)["max_steps"])
        blown = ~rows[f"reached{end}"] & (rows[f"status{end}"] == "diverged")
        tried.append(rows[f"steps{end}"].mask(blown, budget).to_numpy(float))
    logs = np.log(tried[0] / tried[1])
    mine, theirs = rows["reached"].to_numpy(bool), rows["reached_reference"].to_numpy(bool)
    bound = (mine & ~theirs & (logs < 0)) | (theirs & ~mine & (logs > 0))
    return np.where((mine & theirs) | bound, logs, np.nan)


def median_ratio(logs: Floats) -> Estimate:
    """exp of the median of what is finite, with the 95% interval of its order statistics, which needs six: a run near
    divergence that parts may take twice as long, or half, and few such must not outvote the rest."""
    logs = np.sort(logs[np.isfinite(logs)])
    outside = np.searchsorted(bdtr(np.arange(len(logs)), len(logs), 0.5), 0.025, "right")  # at each end
    if outside == 0:
        return UNKNOWN
    return Estimate(*np.exp([np.median(logs), logs[outside - 1], logs[-outside]]).tolist())


class NoiseSums:
    """Σ n tr Σ and Σ n |G|² along every run of a `curves.parquet`, n the examples behind each row."""

    def __init__(self, curves: pd.DataFrame):
        self._of: dict[str, tuple[Floats, Floats]] = {}
        for run_id, rows in curves.groupby("run_id", sort=False):
            both = rows[["trace_cov", "grad_sq_norm"]].to_numpy(float) * rows[["noise_examples"]].to_numpy(float)
            sums = np.vstack([np.zeros(2), np.cumsum(np.nan_to_num(both), axis=0)])
            self._of[str(run_id)] = rows["step"].to_numpy(float), sums

    def up_to(self, runs: pd.Series, steps: pd.Series | None = None) -> Floats:
        """Both sums of each of `runs` up to its step in `steps` (to the end where None), shape (runs, 2)."""
        ends = np.full(len(runs), math.inf) if steps is None else steps.to_numpy(float)
        found = []
        for run_id, end in zip(runs, ends, strict=True):
            at, sums = self._of[run_id]
            found.append(sums[np.searchsorted(at, end, "right")])
        return np.reshape(found, (-1, 2))


def noise_ratio(ours: Floats, theirs: Floats) -> Estimate:
    """B_simple over the reference's, both ratios of means over the pairs, from `NoiseSums` of shape (pairs, 2), each
    pair in units of the reference's tr Σ. The 95% interval comes of leaving out one pair after the other (jackknife).
    """
    known = theirs[:, 0] > 0
    sums = np.stack([ours[known], theirs[known]]) / theirs[known, :1]
    total = sums.sum(axis=1)
    every = np.concatenate([total[:, None], total[:, None] - sums], axis=1)
    if not (every > 0).all():
        return UNKNOWN
    logs = np.log(every[0, :, 0] / every[0, :, 1] * every[1, :, 1] / every[1, :, 0])
    return _jackknife(float(logs[0]), logs[1:])


def b_crit_ratio(rows: pd.DataFrame) -> Estimate:
    """B_crit over the reference's, both fitted to the same points, from pairs of rows of `crossings.csv`. The 95%
    interval comes of leaving out one pair after the other; unknown where a fit has no bend."""

    def log(left_out: int | None) -> float:
        kept = rows if left_out is None else rows.drop(rows.index[left_out])
        ours, theirs = (
            fit_pareto(kept["batch_size"], kept[f"steps{of}"], reached=kept[f"reached{of}"]).b_crit.value
            for of in ("", "_reference")
        )
        known = 0 < ours < math.inf and 0 < theirs < math.inf
        return math.log(ours / theirs) if known else math.nan

    if rows["batch_size"].nunique() < FEWEST:
        return UNKNOWN
    return _jackknife(log(None), np.array([log(i) for i in range(len(rows))]))


def _jackknife(log: float, without: Floats) -> Estimate:
    n = len(without)
    if n < FEWEST or not (math.isfinite(log) and np.isfinite(without).all()):
        return UNKNOWN
    return _interval(log, math.sqrt((n - 1) / n * np.square(without - without.mean()).sum()), n - 1)


def _interval(log: float, error: float, freedom: int) -> Estimate:
    reach = float(stdtrit(freedom, 0.975)) * error
    return Estimate(math.exp(log), math.exp(log - reach), math.exp(log + reach))
