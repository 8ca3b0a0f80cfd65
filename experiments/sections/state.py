"""The report's end: what is missing and how to get it, where and when it was measured."""

from collections.abc import Iterable, Sequence

from experiments import paper
from experiments.sections.markdown import duration, metric, table
from experiments.summary import SweepResult

COMMITS_SHOWN = 3


def missing(sweeps: Sequence[SweepResult]) -> list[str]:
    """Tasks of the paper without a sweep, goals without an answer, and the commands."""
    have = {sweep.task for sweep in sweeps}
    rows = []
    for task in paper.PAPER_TASKS:
        if not any(ours in have for ours in task.ours):
            command = f"`make sweep TASK={task.ours[0]}`" if task.ours else "no public environment"
            rows.append([f"{task.name}", "no sweep yet", command])
    for sweep in sweeps:
        unknown = [f"{fit.goal:g}" for fit in sweep.fits if fit.verdict == "not determined"]
        if unknown:
            rows.append(
                [sweep.name, f"not determined at {metric(sweep)} {', '.join(unknown)}", "more batch sizes or seeds"]
            )
        if sweep.preset != "paper" and sweep.task in paper.POINTS_OF:
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
    return [table(header, rows), "A + after a commit says that files had changed since."]


def _commits(shas: Iterable[str]) -> str:
    """Those that runs were made with, or how many where they are many."""
    short = sorted({sha[:7] + "+" * sha.endswith("+") for sha in shas})
    return ", ".join(short) if len(short) <= COMMITS_SHOWN else f"{len(short)} commits, {short[0]} …"
