"""What some sweeps have besides: B_crit by branching, B_noise and temperature at points of one run, the noise scale by
group of parameters, Kaplan's law."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.fit import GoalFit, estimate
from experiments.layout import rounded, with_interval
from experiments.pooled import at_steps, simple_curve
from experiments.sections.markdown import b_crit, metric, table
from experiments.summary import Sweep
from experiments.verdict import ratio
from noisescale.pareto import Estimate

LOCAL = {"line search": "B_noise, line searches", "Hessian": "B_noise, Hessian", "b_simple": "B_simple"}
CUT = {"lr": "the learning rate", "batch": "the batch size", "both": "both"}


def branches(sweeps: Sequence[Sweep]) -> list[str]:
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
            scaled = getattr(point, "b_simple_preconditioned", None)
            rows.append(
                [
                    f"{point.goal:g}",
                    b_crit(fit) if fit else "–",
                    with_interval(branched) if branched.value != float("inf") else f"above {point.largest:,}",
                    with_interval(trunk),
                    "–"
                    if scaled is None
                    else with_interval(
                        Estimate(scaled, point.b_simple_preconditioned_low, point.b_simple_preconditioned_high)
                    ),
                    with_interval(fit.b_simple_avg) if fit else "–",
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


def _who_is_right(points: pd.DataFrame, fits: Mapping[str, GoalFit]) -> list[str]:
    """Every method as a multiple of the swept B_crit, and Merrill 2025's finding beside it."""
    keys = [f"{goal:g}" for goal in points["goal"]]
    swept = np.array([fits[key].b_crit.value if key in fits else np.nan for key in keys])
    if not np.isfinite(swept).any():
        return []
    branched, trunk = points["b_branch"].to_numpy(float), points["b_simple"].to_numpy(float)
    averaged = np.array([fits[key].b_simple_avg.value if key in fits else np.nan for key in keys])
    bounds = int(np.isinf(branched).sum())
    said = [
        f"branching gives {_times(branched / swept)} its B_crit" + (f" and {bounds} times only a bound" * (bounds > 0))
    ]
    said.append(
        f"B_simple at the trunk's weights {_times(trunk / swept)}, averaged on the way {_times(averaged / swept)}"
    )
    if "b_simple_preconditioned" in points:
        said.append(
            f"preconditioned by the optimizer {_times(points['b_simple_preconditioned'].to_numpy(float) / swept)}"
        )
    both = np.concatenate([trunk / swept, trunk / branched])
    lowest = both[np.isfinite(both) & (both > 0)].min()
    merrill = "not here" if lowest > 0.1 else "so it is here"
    return [
        f"**Who is right at this size?** With the sweep as the measure, over {np.isfinite(swept).sum()} goals: "
        f"{'; '.join(said)}. Merrill et al. 2025 found the noise scale orders of magnitude below B_crit: {merrill}; "
        f"B_simple at the trunk's weights is at least {rounded(float(lowest), 2)} times what the sweep gives, and "
        "branching where it gives a number."
    ]


def _times(ratios: np.ndarray) -> str:
    known = ratios[np.isfinite(ratios)]
    return f"{rounded(known.min(), 2)} to {rounded(known.max(), 2)} times" if known.size else "nothing"


def groups(sweeps: Sequence[Sweep]) -> list[str]:
    """B_simple of each group of parameters where the tuned runs pass each goal, where `groups.parquet` is committed."""
    blocks: list[str] = []
    for sweep in sweeps:
        path = sweep.tables.folder / "groups.parquet"
        if not path.exists():
            continue
        measured = pd.read_parquet(path)
        names = list(dict.fromkeys(measured["group"]))
        by_run = {
            key: rows.sort_values("step").assign(metric=math.nan)
            for key, rows in measured.groupby(["run_id", "group"], sort=False)
        }
        rows = []
        for fit in sweep.fits:
            arrived = sweep.arrived(fit.goal)
            cells = []
            for name in names:
                there = [run for run in arrived.itertuples() if (run.run_id, name) in by_run]
                curves = [simple_curve(by_run[run.run_id, name], int(run.batch_size)) for run in there]
                cells.append(with_interval(estimate(at_steps(curves, [float(run.steps) for run in there]))))
            rows.append([f"{fit.goal:g}", with_interval(fit.b_simple), *cells])
        blocks += [
            f"## {sweep.name}: the noise scale by group of parameters",
            f"B_simple in {sweep.unit}s where the tuned runs pass each goal; *preconditioned* is of the gradient "
            "divided by Adam's √v.",
            table([f"goal ({metric(sweep)})", "all", *names], rows),
        ]
    return blocks


def local_noise(results: Path) -> list[str]:
    """B_noise by line searches and by Hessian-vector products, and B_simple, at the same weights of one run."""
    blocks: list[str] = []
    for path in sorted(results.glob("*/local_noise.csv")):
        found = pd.read_csv(path)
        names = list(dict.fromkeys(found["quantity"]))
        rows = []
        for goal, mine in found.groupby("goal", sort=False):
            by_name = {row.quantity: Estimate(row.value, row.low, row.high) for row in mine.itertuples()}
            rows.append([f"{goal:g}", *(with_interval(by_name[name]) for name in names)])
        blocks += [
            f"## {path.parent.name}: B_noise two ways",
            "At the same weights of one run, in the unit of B: the paper's line searches, Hessian-vector products, "
            "and B_simple.",
            table(["goal", *(LOCAL.get(name, name) for name in names)], rows),
        ]
    return blocks


def temperature(results: Path) -> list[str]:
    """What a 16-fold cut of the temperature did to B_simple, by the way it was made (Fig. 15; Gray 2024)."""
    blocks: list[str] = []
    for path in sorted(results.glob("*/temperature.csv")):
        found = pd.read_csv(path)
        rows, moved = [], {"lr": [], "batch": [], "both": []}
        for goal, mine in found.groupby("goal", sort=False):
            by_cut = {row.cut: Estimate(row.b_simple, row.b_simple_low, row.b_simple_high) for row in mine.itertuples()}
            factors = {cut: ratio(by_cut[cut], by_cut["none"]) for cut in moved}
            for cut, factor in factors.items():
                moved[cut].append(factor.low > 1 or factor.high < 1)
            cells = (f"{with_interval(by_cut[cut])}, {with_interval(factors[cut])} times" for cut in moved)
            rows.append([f"{goal:g}", with_interval(by_cut["none"]), *cells])
        said = "; ".join(f"through {CUT[cut]} at {sum(clear)} of {len(clear)} goals" for cut, clear in moved.items())
        blocks += [
            f"## {path.parent.name}: does B_simple follow the temperature?",
            "From checkpoints of one run, with the temperature ε/B cut 16-fold; the paper's Fig. 15 says that "
            "either way moves B_simple, Gray 2024 saw only the learning rate move it.",
            table(["from goal", "uncut", *(f"through {CUT[cut]}" for cut in moved)], rows),
            f"B_simple clearly moved (the interval of the factor excludes 1): {said}.",
        ]
    return blocks


def scaling(sweeps: Sequence[Sweep]) -> list[str]:
    """The constants of B_crit = B*/L^(1/α) beside Kaplan 2020, where they were fitted."""
    blocks: list[str] = []
    for sweep in sweeps:
        path = sweep.tables.folder / "scaling.csv"
        if path.exists():
            rows = [
                [row.constant, with_interval(Estimate(row.value, row.low, row.high)), rounded(row.kaplan_2020)]
                for row in pd.read_csv(path).itertuples()
            ]
            blocks += [
                f"## {sweep.name}: B_crit against the loss",
                f"B_crit = B*/L^(1/α) over the sweep's goals, B* in {sweep.unit}s, L in nats.",
                table(["", "ours", "Kaplan 2020"], rows),
            ]
    return blocks
