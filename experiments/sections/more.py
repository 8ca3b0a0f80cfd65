"""What some sweeps have besides: B_crit by branching, and the noise scale by group of parameters."""

import math
from collections.abc import Sequence

import pandas as pd

from experiments.fit import estimate
from experiments.layout import with_interval
from experiments.pooled import at_steps, simple_curve
from experiments.sections.markdown import b_crit, table
from experiments.summary import Sweep
from experiments.verdict import ratio
from noisescale.pareto import Estimate


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
            rows.append(
                [
                    f"{point.goal:g}",
                    b_crit(fit) if fit else "–",
                    with_interval(branched) if branched.value != float("inf") else f"above {point.largest:,}",
                    with_interval(trunk),
                    with_interval(fit.b_simple_avg) if fit else "–",
                    with_interval(ratio(trunk, branched)) if branched.value != float("inf") else "–",
                ]
            )
        header = [
            "goal",
            "B_crit, swept",
            "B_crit, branched",
            "B_simple, trunk",
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
        ]
    return blocks


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
            table(["goal", "all", *names], rows),
        ]
    return blocks
