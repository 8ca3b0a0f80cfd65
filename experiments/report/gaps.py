"""The report's end: what is missing and how to get it, where and when it was measured."""

from collections.abc import Iterable, Sequence

from experiments.analysis import paper
from experiments.analysis.sweep_summary import SweepResult
from experiments.report.markdown import duration, metric, table

COMMITS_SHOWN = 3


def missing(sweeps: Sequence[SweepResult]) -> list[str]:
    """Tasks of the paper without a sweep, goals without an answer, and the commands."""
    have = {sweep.task for sweep in sweeps}
    rows = []
    for task in paper.PAPER_TASKS:
        if not task.ours:
            rows.append([task.name, "no sweep", "no public environment"])
        rows += [
            [f"{task.name}: {ours}", "no sweep yet", f"`make sweep TASK={ours}`"]
            for ours in task.ours
            if ours not in have
        ]
    rows.append(["Fig. 19, test goals", "the curves hold the training metric alone", "not in this suite"])
    theirs = {ours for task in paper.PAPER_TASKS for ours in task.ours} | paper.POINTS_OF.keys()
    for sweep in sweeps:
        unknown = [f"{fit.goal:g}" for fit in sweep.fits if fit.verdict == "not determined"]
        if unknown:
            rows.append(
                [
                    sweep.name,
                    f"not determined at {metric(sweep)} {', '.join(unknown)}",
                    f"`make sweep TASK={sweep.task} PRESET={sweep.preset}` goes on with what is left of it; then "
                    f"`ARGS='sweep.seeds={sweep.tables.runs['seed'].nunique() + 2}'`",
                ]
            )
        if sweep.preset != "paper" and sweep.task in theirs:
            what = f"measured at preset {sweep.preset}, not at the paper's size"
            rows.append([sweep.name, what, f"`make sweep TASK={sweep.task} PRESET=paper`"])
    return [table(["what", "state", "how to get it"], rows)] if rows else ["Nothing."]


def environment(sweeps: Sequence[SweepResult]) -> list[str]:
    rows = []
    for sweep in sweeps:
        runs = sweep.tables.runs
        seconds = runs["seconds"].sum()
        shares = [f"{runs[column].sum() / seconds:.0%}" for column in ("eval_seconds", "measure_seconds")]
        rows.append(
            [
                sweep.name,
                f"{len(runs):,}",
                duration(seconds),
                *shares,
                ", ".join(sorted(set(runs["device"]))),
                "; ".join(sorted(set(runs["versions"]))),
                _commits(runs["git_sha"]),
                f"{runs['finished_at'].min()[:10]} – {runs['finished_at'].max()[:10]}",
            ]
        )
    header = [
        "sweep",
        "runs",
        "training time, all runs",
        "of it evaluating",
        "measuring",
        "device",
        "versions",
        "commit",
        "run",
    ]
    together = sum(sweep.tables.runs["seconds"].sum() for sweep in sweeps)
    rows.append(["all", f"{sum(len(s.tables.runs) for s in sweeps):,}", duration(together), *[""] * 6])
    return [table(header, rows), "A + after a commit says that files had changed since."]


def _commits(shas: Iterable[str]) -> str:
    """Those that runs were made with, or how many where they are many."""
    short = sorted({sha[:7] + "+" * sha.endswith("+") for sha in shas})
    return ", ".join(short) if len(short) <= COMMITS_SHOWN else f"{len(short)} commits, {short[0]} …"
