"""What the language models' sweeps have besides: B_crit by branching, the noise scale by group of parameters, Kaplan's
law."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from experiments.analysis.goal_fit import GoalFit, estimate
from experiments.analysis.noise_at_goal import at_steps, simple_curve
from experiments.analysis.sweep_summary import SweepResult
from experiments.analysis.verdict import ratio
from experiments.files import read_parquet
from experiments.report.markdown import b_crit, metric, noise, table
from noisescale.formatting import number, with_interval
from noisescale.pareto.fit import Estimate

NORMS = "norm"


def branches(sweeps: Sequence[SweepResult]) -> list[str]:
    """Swept, branched and predicted B_crit side by side, where `branch_points.csv` is committed."""
    blocks: list[str] = []
    for sweep in sweeps:
        path = sweep.tables.folder / "branch_points.csv"
        if not path.exists():
            continue
        points = pd.read_csv(path)
        fits = {f"{fit.goal:g}": fit for fit in sweep.fits}
        rows = []
        for point in points.itertuples():
            fit = fits.get(f"{point.goal:g}")
            branched = Estimate(point.b_branch, point.b_branch_low, point.b_branch_high)
            trunk = Estimate(point.b_simple, point.b_simple_low, point.b_simple_high)
            rows.append(
                [
                    f"{point.goal:g}",
                    b_crit(fit) if fit else "–",
                    with_interval(branched) if branched.value != float("inf") else f"above {point.largest:,}",
                    noise(trunk),
                    "–" if "b_simple_preconditioned" not in points else noise(_preconditioned(point)),
                    noise(fit.b_simple_avg) if fit else "–",
                    with_interval(ratio(trunk, branched)) if branched.value != float("inf") else "–",
                ]
            )
        header = [
            f"goal ({metric(sweep)})",
            f"B_crit, swept ({sweep.unit}s)",
            "B_crit, branched",
            "B_simple, trunk",
            "preconditioned",
            "B_simple, averaged",
            "B_simple / branched",
        ]
        first = points.iloc[0]
        blocks += [
            f"## {sweep.name}: B_crit by sweep, by branching, and the noise scale",
            f"Branches go on from checkpoints of one run at several batch sizes over the same {sweep.unit}s, with "
            "the learning rate rescaled; the branched B_crit is the largest batch whose loss stays within "
            f"{first['tolerance']:g} of the smallest's. It asks about the steps right after a goal, the swept one "
            "about all steps up to it.",
            table(header, rows),
            *_who_is_right(points, fits),
        ]
    return blocks


def _preconditioned(point: Any) -> Estimate:
    return Estimate(
        point.b_simple_preconditioned, point.b_simple_preconditioned_low, point.b_simple_preconditioned_high
    )


def _who_is_right(points: pd.DataFrame, fits: Mapping[str, GoalFit]) -> list[str]:
    """Every method as a multiple of the swept B_crit where both are determined, and Merrill 2025's finding beside
    it."""
    known = {key: fit for key, fit in fits.items() if fit.b_crit_status == "determined"}
    keys = [f"{goal:g}" for goal in points["goal"]]
    swept = np.array([known[key].b_crit.value if key in known else np.nan for key in keys])
    branched, trunk = points["b_branch"].to_numpy(float), points["b_simple"].to_numpy(float)
    both = np.concatenate([trunk / swept, trunk / branched])
    both = both[np.isfinite(both) & (both > 0)]
    if not both.size:
        return []
    averaged = np.array([known[key].b_simple_avg.value if key in known else np.nan for key in keys])
    bounds = int(np.isinf(branched).sum())
    said = [
        f"branching gives {_times(branched / swept)} its B_crit" + (f" and {bounds} times only a bound" * (bounds > 0))
    ]
    said.append(
        f"B_simple at the trunk's weights {_times(trunk / swept)}, averaged on the way {_times(averaged / swept)}"
    )
    if "b_simple_preconditioned" in points:
        scaled = [_preconditioned(point) for point in points.itertuples()]
        clear = np.array([e.value if e.low > 0 and np.isfinite(e.high) else np.nan for e in scaled])
        said.append(
            f"preconditioned by the optimizer {_times(clear / swept)}, not determined at {np.isnan(clear).sum()} goals"
        )
    bounded = trunk[np.isinf(branched)] / points["largest"].to_numpy(float)[np.isinf(branched)]
    lowest = min(both.min(), bounded.min(initial=np.inf))
    less = (
        f"; where branching gives only a bound, less than {number(float(bounded.max()), 2)} times"
        if bounded.size
        else ""
    )
    merrill = (
        "so it is here" if lowest <= 0.1 else "not here" if not bounded.size else "not here as far as it can be told"
    )
    return [
        f"**Who is right at this size?** With the sweep as the measure, over {np.isfinite(swept).sum()} goals: "
        f"{'; '.join(said)}. Merrill et al. 2025 found the noise scale orders of magnitude below B_crit: {merrill}; "
        f"B_simple at the trunk's weights is at least {number(float(both.min()), 2)} times what the sweep gives, and "
        f"branching where it gives a number{less}."
    ]


def _times(ratios: np.ndarray) -> str:
    known = ratios[np.isfinite(ratios)]
    if not known.size:
        return "nothing that is determined"
    low, high = number(known.min(), 2), number(known.max(), 2)
    return f"{low} times" if low == high else f"{low} to {high} times"


def groups(sweeps: Sequence[SweepResult]) -> list[str]:
    """B_simple of each group of parameters where the tuned runs pass each goal, where `groups.parquet` is committed."""
    blocks: list[str] = []
    for sweep in sweeps:
        path = sweep.tables.folder / "groups.parquet"
        if not path.exists():
            continue
        found = by_group(sweep, read_parquet(path))
        names = list(dict.fromkeys(name for _, estimates in found for name in estimates))
        rows = [
            [f"{fit.goal:g}", noise(fit.b_simple), *(noise(estimates[name]) for name in names)]
            for fit, estimates in found
        ]
        length = int(sweep.tables.describe("sample_size"))
        blocks += [
            f"## {sweep.name}: the noise scale by group of parameters",
            f"B_simple in {sweep.unit}s where the tuned runs pass each goal; in samples of {length} {sweep.unit}s it "
            f"is 1/{length} of that. *Preconditioned* is of the gradient divided by Adam's √v.",
            table([f"goal ({metric(sweep)})", "all", *names], rows),
        ]
        if NORMS in names:
            blocks.append(norms_predict([ratio(estimates[NORMS], fit.b_simple) for fit, estimates in found]))
    return blocks


def by_group(sweep: SweepResult, measured: pd.DataFrame) -> list[tuple[GoalFit, dict[str, Estimate]]]:
    """B_simple by group at each goal, from the tuned runs' rows of `groups.parquet`."""
    by_run = {
        key: rows.sort_values("step").assign(metric=math.nan)
        for key, rows in measured.groupby(["run_id", "group"], sort=False)
    }
    found = []
    for fit in sweep.fits:
        arrived = sweep.arrived(fit.goal)
        estimates = {}
        for name in dict.fromkeys(measured["group"]):
            there = [run for run in arrived.itertuples() if (run.run_id, name) in by_run]
            curves = [simple_curve(by_run[run.run_id, name], int(run.batch_size)) for run in there]
            estimates[name] = estimate(at_steps(curves, [float(run.steps) for run in there]))
        found.append((fit, estimates))
    return found


def norms_predict(shares: Sequence[Estimate]) -> str:
    """Gray et al. 2024: does the norm layers' noise scale, times one constant, give the total's?"""
    known = [share for share in shares if share.value > 0]
    if len(known) < 2:
        return "**Do the norm layers predict the total (Gray 2024)?** Not determined at two goals."
    low, high = max(share.low for share in known), min(share.high for share in known)
    values = sorted(share.value for share in known)
    said = (
        f"can't tell: one factor from {number(low, 2)} to {number(high, 2)} lies in all intervals"
        if low <= high
        else "no: no one factor lies in all intervals"
    )
    return (
        f"**Do the norm layers predict the total (Gray 2024)?** Theirs is {number(values[0], 2)} to "
        f"{number(values[-1], 2)} times the total's over {len(known)} goals; {said}."
    )


def scaling(sweeps: Sequence[SweepResult]) -> list[str]:
    """The constants of B_crit = B*/L^(1/α) beside Kaplan 2020, where they were fitted."""
    blocks: list[str] = []
    for sweep in sweeps:
        path = sweep.tables.folder / "scaling.csv"
        if path.exists():
            rows = [
                [row.constant, with_interval(Estimate(row.value, row.low, row.high)), number(row.kaplan_2020)]
                for row in pd.read_csv(path).itertuples()
            ]
            blocks += [
                f"## {sweep.name}: B_crit against the loss",
                f"B_crit = B*/L^(1/α) over the sweep's goals, B* in {sweep.unit}s, L in nats.",
                table(["", "ours", "Kaplan 2020"], rows),
            ]
    return blocks
