"""The report's evidence: the paper's points beside ours, the quadratic against exact answers, sweep by sweep."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from experiments.analysis import paper
from experiments.analysis.beside_exact import Truth, truths
from experiments.analysis.beside_paper import beside_paper, words
from experiments.analysis.sweep_summary import SweepResult
from experiments.report.markdown import b_crit, counted, duration, figure, metric, table
from noisescale.formatting import number, with_interval

CLOSENESS = ("RMS difference", "largest difference", "interval holds the exact value")
KINDS = ("pareto", "noise", "curves", "lr")
PAPER_FIGURES = {
    1: "The trade-off of steps against examples",
    2: "Momentum on a noisy quadratic, batches 16 times the noise scale 𝓑 and equal to it",
    3: "One step: how large, and how much it gains, against B/𝓑",
    5: "SVHN: best learning rate against batch size, and what one best step gains with the B_noise fitted to it",
    6: "SVHN: curves against steps and against examples",
    7: "SVHN: fronts and noise scales",
    8: "Language models of several sizes: B_simple",
    9: "Autoencoder, VAE, language model: fronts and noise scales",
    10: "ImageNet, here the subset named in the title, by 32 pixels; the paper's points are not digitised",
    11: "Atari: fronts of seven games, the paper's points in grey, ours in colour where measured",
    12: "Atari: B_crit against the score",
    13: "Dota 1v1",
    14: "CIFAR10, SVHN with Adam and SGD, MNIST: fronts and noise scales",
    15: "B_simple after the temperature ε/B was cut 16-fold through the learning rate, the batch size or both",
    16: "Steps and examples with B = √(r B_simple), stars, against fixed batch sizes, and in units of S_min and E_min",
    17: "The best step of a line search over the step taken, by batch size",
    18: "Gradient autocorrelation under Adam",
    19: "Fig. 14 with test goals",
}
ENDS = {
    "reached": "came past the last goal",
    "not_reached": "ended before it, as the budget was spent",
    "diverged": "diverged",
}


def pictures(sweeps: Sequence[SweepResult]) -> list[str]:
    """Files that the report shows, relative to the results folder."""
    names = [f"{sweep.name}-{kind}" for sweep in sweeps for kind in KINDS] + ["fig04"]
    return [f"figures/{name}.png" for name in [*names, *(f"fig{index:02d}" for index in PAPER_FIGURES)]]


def beside_the_paper(sweeps: Sequence[SweepResult], results: Path) -> list[str]:
    """For every sweep that shares a task with the digitised points."""
    blocks: list[str] = []
    for sweep in sweeps:
        if sweep.task not in paper.POINTS_OF:
            continue
        pairs = beside_paper(sweep, results)
        name = paper.POINTS_OF[sweep.task].replace("_", ", ")
        blocks += [
            f"## {sweep.name} beside the paper's {name}",
            f"Ours: {_setup(sweep)}. The paper's points were read off its figures, good to a few per cent, and "
            "fitted in the same way.",
        ]
        if pairs:
            rows = [
                [
                    f"{pair.goal:g}",
                    *(with_interval(e) for n in ("b_crit", "s_min") for e in (pair.ours[n], getattr(pair.theirs, n))),
                    number(pair.ratio("b_crit"), 2),
                    "yes" if pair.overlap("b_crit") else "no",
                ]
                for pair in pairs
            ]
            header = [
                f"goal ({metric(sweep)})",
                f"B_crit, ours ({sweep.unit}s)",
                "B_crit, paper",
                "S_min, ours (steps)",
                "S_min, paper",
                "ratio of B_crit",
                "intervals overlap",
            ]
            blocks.append(table(header, rows))
        blocks += [f"- {line}" for line in words(pairs)]
        if pairs and sweep.task.startswith("lm"):
            blocks.append(
                "The tokens aren't the same: ours are pieces of words, more to a text and each easier to guess than "
                "the paper's. Equal perplexity isn't equal progress, and agreement is weaker evidence than for images."
            )
        if pairs and sweep.task == "svhn_vae":
            blocks.append(
                "The paper doesn't say how its VAE's loss is scaled, so that a goal of the same number need not be the "
                "same goal."
            )
    return blocks


def against_exact_answers(sweeps: Sequence[SweepResult]) -> list[str]:
    """The quadratic, where every number is known."""
    blocks: list[str] = []
    for sweep in sweeps:
        found = truths(sweep) if sweep.task == "quadratic" else []
        if not found:
            continue
        names = list(dict.fromkeys(name for truth in found for name in truth.pairs))
        rows = [[f"{truth.goal:g}", *(_beside(truth, name) for name in names)] for truth in found]
        summary = zip(*(_closeness(found, name) for name in names), strict=True)
        rows += [[label, *cells] for label, cells in zip(CLOSENESS, summary, strict=True)]
        blocks += [
            f"## {sweep.name} against exact answers",
            "On the noisy quadratic the expected loss under any learning rate is known, and so S(B), B_crit, B_simple "
            f"and B_noise. Measured / exact in {sweep.unit}s, and the difference.",
            table([f"goal ({metric(sweep)})", *names], rows),
            *_local_theory(found),
        ]
    return blocks


def _closeness(found: Sequence[Truth], name: str) -> tuple[str, str, str]:
    """The cells of `CLOSENESS` for one quantity, over the goals at which it was measured."""
    there = [truth for truth in found if name in truth.pairs]
    off = [truth.off(name) for truth in there]
    held = [measured.low <= exact <= measured.high for measured, exact in (truth.pairs[name] for truth in there)]
    rms = math.sqrt(sum(x * x for x in off) / len(off))
    return f"{rms:.1%}", f"{max(off, key=abs):+.1%}", f"at {sum(held)} of {len(held)} goals"


def _local_theory(found: Sequence[Truth]) -> list[str]:
    """How far the averaged B_noise is from B_crit, both measured and both exact."""
    both = [truth.pairs for truth in found if {"B_noise averaged", "B_crit"} <= truth.pairs.keys()]
    if not both:
        return []
    gaps = [
        [pairs["B_noise averaged"][0].value / pairs["B_crit"][0].value - 1 for pairs in both],
        [pairs["B_noise averaged"][1] / pairs["B_crit"][1] - 1 for pairs in both],
    ]
    measured, exact = (f"{min(gap):+.0%} to {max(gap):+.0%}" for gap in gaps)
    return [
        f"The averaged B_noise, which the local theory equates with B_crit, lies {measured} from the swept B_crit "
        f"and, both exact, {exact} from the exact one."
    ]


def _beside(truth: Truth, name: str) -> str:
    if name not in truth.pairs:
        return "–"
    measured, exact = truth.pairs[name]
    return f"{with_interval(measured)} / {number(exact)} ({truth.off(name):+.0%})"


def one_sweep(sweep: SweepResult) -> list[str]:
    rows = [
        [
            f"{fit.goal:g}",
            fit.verdict,
            with_interval(fit.ratio),
            b_crit(fit),
            *(with_interval(e) for e in (fit.b_simple_avg, fit.b_simple, fit.b_noise_avg, fit.s_min, fit.e_min)),
            "; ".join(filter(None, (fit.remark, fit.design))),
        ]
        for fit in sweep.fits
    ]
    unit = f"({sweep.unit}s)"
    header = [
        f"goal ({metric(sweep)})",
        "verdict",
        "ratio",
        f"B_crit {unit}",
        f"B_simple averaged {unit}",
        f"at the goal {unit}",
        f"B_noise averaged {unit}",
        "S_min (steps)",
        f"E_min {unit}",
        "remark",
    ]
    captions = {
        "pareto": f"{sweep.name}: steps against examples to each goal, with fits; dotted where B_crit is not "
        "determined",
        "noise": f"{sweep.name}: B_crit and the noise scales against the metric, 95% intervals",
        "curves": f"{sweep.name}: tuned runs",
        "lr": f"{sweep.name}: best learning rates",
    }
    return [
        f"### {sweep.name}: {sweep.verdict}",
        f"{_setup(sweep)}. {_effort(sweep)}",
        table(header, rows),
        *_in_frames(sweep),
        *(figure(f"{sweep.name}-{kind}", captions[kind]) for kind in KINDS),
    ]


def _in_frames(sweep: SweepResult) -> list[str]:
    frames = sweep.tables.frames_per_example
    if frames is None or frames == 1:
        return []
    return [
        f"An observation is {frames:g} frames of the game: examples and batch sizes in frames are {frames:g} times "
        "those of the table."
    ]


def _setup(sweep: SweepResult) -> str:
    runs = sweep.tables.runs
    sizes = runs["batch_size"]
    several = f"{sizes.nunique()} batch sizes from {sizes.min():,} to {sizes.max():,}"
    scanned = several if sizes.nunique() > 1 else f"one batch size, {sizes.min():,}"
    data = sweep.tables.describe("data").partition("; CNN")[0]  # MNIST's names its network too
    described = [data, sweep.tables.network] if sweep.tables.network else [data]
    return (
        f"{'; '.join(described)}; {int(sweep.tables.describe('parameters')):,} parameters, "
        f"{sweep.tables.describe('optimizer')}, {scanned} {sweep.unit}s, "
        f"{counted(runs['seed'].nunique(), 'seed')}"
    )


def _effort(sweep: SweepResult) -> str:
    runs = sweep.tables.runs
    ends = Counter(runs["status"])
    told = ", ".join(f"{count} {ENDS[status]}" for status, count in sorted(ends.items()))
    return f"{counted(len(runs), 'run')} ({told}), {duration(runs['seconds'].sum())} of training."


def paper_figures() -> list[str]:
    return [figure(f"fig{index:02d}", f"Fig. {index}: {caption}") for index, caption in PAPER_FIGURES.items()]
