"""Committed tables and figures → report.md, report.html, and what README.md says was found:
`python -m experiments.cli.report`.
"""

from collections.abc import Sequence
from pathlib import Path

from experiments.analysis.sweep_summary import SweepResult, summarise
from experiments.errors import UserError
from experiments.report import answers, claim, design, evidence, gaps, images, language
from experiments.report.html import to_html

FOUND = "<!-- what was found, written by make publish -->", "<!-- end -->"
TITLE = "Does the gradient noise scale predict the critical batch size?"


def report(results: Path, out: Path | None = None, readme: Path | None = None) -> list[Path]:
    """Write the report of all analysed sweeps below `results` into `out` (`results` where None), where its figures are;
    the files come out the same for the same tables. With `readme`, its verdict goes there too.

    Raises:
        UserError: no analysed sweep, or a figure that is not drawn yet.
    """
    sweeps = [sweep for sweep in summarise(results) if sweep.preset != "smoke"]
    if not sweeps:
        raise UserError(f"no analysed sweep in {results} (smoke sweeps don't count); run `make sweep TASK=digits`")
    out = out or results
    undrawn = [path for path in evidence.pictures(sweeps) if not (out / path).exists()]
    if undrawn:
        raise UserError(f"no {out / undrawn[0]}; run `make figures`")
    markdown = "\n\n".join(_parts(sweeps, results)) + "\n"
    if readme is not None:
        write_findings(readme, claim.findings(sweeps, results))
    paths = [out / "report.md", out / "report.html"]
    paths[0].write_text(markdown, encoding="utf-8")
    paths[1].write_text(to_html(markdown, TITLE, out), encoding="utf-8")
    return paths


def write_findings(readme: Path, found: Sequence[str]) -> None:
    """`found`, between the two marks."""
    before, _, rest = readme.read_text(encoding="utf-8").partition(FOUND[0])
    _, _, after = rest.partition(FOUND[1])
    readme.write_text(before + "\n\n".join([FOUND[0], *found, FOUND[1]]) + after, encoding="utf-8")


def _parts(sweeps: Sequence[SweepResult], results: Path) -> list[str]:
    return [
        f"# {TITLE}",
        *claim.opening(sweeps, results),
        "## How good the sweeps' own design is",
        *design.designs(sweeps),
        "## Table 1, ours beside the paper's",
        *answers.table1(sweeps, results),
        "## Questions and answers",
        *answers.questions(sweeps),
        *evidence.beside_the_paper(sweeps, results),
        *evidence.against_exact_answers(sweeps),
        *language.branches(sweeps),
        *images.local_noise(results),
        *images.temperature(results),
        *images.adaptive(results),
        *images.autocorrelation(results),
        *images.variations(results),
        *language.groups(sweeps),
        *language.scaling(sweeps),
        "## Task by task",
        *(part for sweep in sweeps for part in evidence.one_sweep(sweep)),
        "## The paper's figures",
        *evidence.paper_figures(),
        "## What is missing",
        *gaps.missing(sweeps),
        "## Where and when",
        *gaps.environment(sweeps),
    ]
