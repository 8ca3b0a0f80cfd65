"""One goal of a sweep: B_crit from the tuned runs' steps, and the noise scale of the same runs beside it."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd

from experiments.analysis.learning_rate_choice import Grid
from experiments.analysis.noise_along_run import averaged
from experiments.analysis.noise_at_goal import Curve, at_start, at_steps, hessian_curve, simple_curve
from experiments.analysis.sweep_design import design
from experiments.analysis.verdict import judge, ratio
from experiments.tables.reading import Tables
from noisescale.averaging import Ratio
from noisescale.pareto.bootstrap import bootstrap_seeds
from noisescale.pareto.fit import Estimate, ParetoFit, fit_pareto

UNKNOWN = Estimate(math.nan, math.nan, math.nan)
REPLICATES = 400


@dataclass(frozen=True)
class GoalFit:
    """A row of `fits.csv`. Steps in `s_min`, all else in the task's unit; NaN where there is no measurement, ±inf
    for an open end, 0 for one of the fit's.

    The interval of `b_crit` is the fit's, that of `b_crit_boot` the bootstrap's over seeds, each replicate choosing
    its learning rates again. `b_simple` is at the goal, `b_simple_start` at step 0, `b_simple_avg` averaged up to the
    goal by full-batch steps (`path.averaged`), `b_noise…` likewise. `ratio` is `b_simple_avg`/`b_crit`, which is
    what the theory says is 1. `design` says which of `sweep_design`'s checks the goal's runs fail, empty where none.
    """

    goal: float
    s_min: Estimate
    e_min: Estimate
    b_crit: Estimate
    b_crit_status: str
    b_crit_boot: Estimate
    rms: float
    batch_sizes: int
    censored: int
    b_simple_start: Estimate
    b_simple: Estimate
    b_simple_avg: Estimate
    b_noise: Estimate
    b_noise_avg: Estimate
    ratio: Estimate
    verdict: str
    remark: str
    design: str


def fit_goal(tables: Tables, goal: float, found: list[Grid], tuned: pd.DataFrame) -> GoalFit:
    """One goal: `found` are its learning-rate grids, `tuned` the crossings of its best learning rates, of which some
    are after step 0."""
    start_met = bool((tuned["steps"] <= 0).any())
    usable = tuned[tuned["steps"] > 0]
    fit = fit_pareto(usable["batch_size"], usable["steps"], reached=usable["reached"])
    arrived = usable[usable["reached"]]
    steps = arrived["steps"].to_list()
    simple, hessian = simple_curves(tables, arrived), hessian_curves(tables, arrived)
    average = averaged(simple, steps, goal)
    both = fit.determined and average.determined
    predicted = ratio(estimate(average), fit.b_crit) if both else UNKNOWN
    checked = design(found, fit.b_crit.value)
    return GoalFit(
        goal=goal,
        s_min=fit.s_min,
        e_min=fit.e_min,
        b_crit=fit.b_crit,
        b_crit_status=fit.status,
        b_crit_boot=bootstrapped(found),
        rms=fit.rms,
        batch_sizes=fit.n,
        censored=fit.n_censored,
        b_simple_start=estimate(at_start(simple, arrived["seed"].to_list())),
        b_simple=estimate(at_steps(simple, steps)),
        b_simple_avg=estimate(average),
        b_noise=estimate(at_steps(hessian, steps)),
        b_noise_avg=estimate(averaged(hessian, steps, goal)),
        ratio=predicted,
        verdict=judge(predicted, both),
        remark="; ".join(remarks(fit, average, found, start_met)),
        design="; ".join(checked.faults.values()) if checked else "",
    )


def bootstrapped(found: list[Grid]) -> Estimate:
    """B_crit's percentile interval over seeds; unknown where no batch size has two, or a run has the goal at step 0."""
    size, lr, steps, reached = (
        np.concatenate([np.asarray(part, dtype=float).ravel() for part in parts])
        for parts in zip(*map(_columns, found), strict=True)
    )
    if max(len(grid.seeds) for grid in found) < 2 or (steps <= 0).any() or reached.sum() < 3:
        return UNKNOWN
    return bootstrap_seeds(size, steps, candidate=lr, reached=reached, replicates=REPLICATES)


def _columns(grid: Grid) -> tuple[np.ndarray, ...]:
    shape = grid.steps.shape
    return np.full(shape, grid.batch_size), np.broadcast_to(grid.lrs[:, None], shape), grid.steps, grid.reached


def simple_curves(tables: Tables, arrived: pd.DataFrame) -> list[Curve]:
    """(tr Σ, |G|²) of the runs in `arrived` (columns run_id, batch_size), in its order."""
    return [simple_curve(rows, size, tables.direction) for rows, size in _rows(tables, arrived)]


def hessian_curves(tables: Tables, arrived: pd.DataFrame) -> list[Curve]:
    """(tr HΣ, GᵀHG) of the same."""
    examples = json.loads(tables.describe("config"))["measure"]["probe_examples"]
    return [hessian_curve(rows, size, examples, tables.direction) for rows, size in _rows(tables, arrived)]


def _rows(tables: Tables, arrived: pd.DataFrame) -> list[tuple[pd.DataFrame, int]]:
    ours = tables.curves[tables.curves["run_id"].isin(arrived["run_id"])]
    by_run = dict(tuple(ours.groupby("run_id", sort=False)))
    return [(by_run[run.run_id], run.batch_size) for run in arrived.itertuples()]


def estimate(found: Ratio) -> Estimate:
    """NaN throughout where no run has the measurement."""
    if found.rows == 0:
        return UNKNOWN
    return Estimate(found.value, found.low, found.high)


def remarks(fit: ParetoFit, average: Ratio, found: list[Grid], start_met: bool) -> list[str]:
    """What a reader of the row has to know."""
    said = [] if fit.determined else [fit.remark]
    if not average.determined:
        too_few = "too few tuned runs measured it near enough to the goal"
        why = average.remark.replace("denominator", "its denominator") if "rows" not in average.remark else too_few
        said.append(f"B_simple not determined: {why}")
    if fit.n_censored:
        sizes = [grid.batch_size for grid in found if not grid.reached[grid.best()].any()]
        said.append(f"not reached at B = {_listed(sizes)}")
    said += incomplete(found)
    if start_met:
        said.append("some runs meet the goal at step 0 and are left out")
    return said


def incomplete(found: list[Grid]) -> list[str]:
    """Batch sizes whose best learning rate has fewer seeds than the best of another batch size."""
    seeds = {grid.batch_size: len(grid.seeds) for grid in found}
    most = max(seeds.values())
    return [
        f"B = {_listed([size for size, n in seeds.items() if n == count])}: {count} of {most} seeds"
        for count in sorted(set(seeds.values()) - {most})
    ]


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(f"{size:,}" for size in sizes)


def fits_frame(fits: Sequence[GoalFit]) -> pd.DataFrame:
    """`fits.csv`: an estimate x becomes the columns x, x_low, x_high."""
    rows = []
    for fit in fits:
        row: dict[str, object] = {}
        for field in fields(fit):
            value = getattr(fit, field.name)
            if isinstance(value, Estimate):
                row |= {field.name: value.value, f"{field.name}_low": value.low, f"{field.name}_high": value.high}
            else:
                row[field.name] = value
        rows.append(row)
    return pd.DataFrame(rows)
