"""A user's runs into the reference, and the reference's fits, figures and report made again: `make publish TASK=svhn`.

Nothing is published that differs from the reference, and nothing of the reference is written over: a run that both have
with other numbers stays as the reference has it, and so does a table of an experiment on single runs; both are named.
Killed anywhere, the same command goes on.
"""

from dataclasses import asdict
from pathlib import Path

from experiments.analysis.b_crit_methods import methods
from experiments.analysis.beside_reference import compare
from experiments.analysis.scaling_law import scaling, table
from experiments.analysis.sweep_fit import analyse, format_table
from experiments.config import SuiteConfig
from experiments.errors import UserError
from experiments.files import write_atomically
from experiments.tables.collecting import collect
from experiments.tables.merging import merge
from experiments.tables.reading import REFERENCE, check_can_grow, read_collected, read_tables, write_csv

OF_THE_SWEEP = ("crossings.csv", "fits.csv", "scaling.csv", "methods.csv")  # made again from the merged runs
README = Path("README.md")
SHOWN = 5


def publish(suite: SuiteConfig) -> None:
    """The sweep's finished runs and the other tables beside them.

    Raises:
        UserError: there is nothing to publish, or it is another experiment's, or differs from the reference.
    """
    own, reference = suite.tables, suite.reference_tables
    _check(suite)
    collect(suite)
    if not (own / "runs.parquet").exists():
        raise UserError(f"no {own / 'runs.parquet'}: no run has finished, so there is nothing to publish")
    check_can_grow(own / "runs.parquet", read_collected(own, ["run_id"])[0], asdict(suite.run))
    analyse(own, suite.sweep.goals)
    if (reference / "fits.csv").exists():
        comparison = compare(own, reference)
        print(comparison.sentence)
        if comparison.differs:
            raise UserError("nothing was published; `make compare` says more")
    merged = merge(own, reference)
    print(f"{reference}: {merged.new} new runs")
    if merged.kept:
        some = ", ".join(merged.kept[:SHOWN]) + ", …" * (len(merged.kept) > SHOWN)
        print(f"{reference}: {len(merged.kept)} runs are there with other numbers and stay as they are ({some})")
    for path in sorted(own.glob("*.csv")):
        if path.name not in OF_THE_SWEEP:
            _take(path, reference / path.name)
    _renew(suite)


def _check(suite: SuiteConfig) -> None:
    if suite.tables.resolve() == suite.reference_tables.resolve():
        raise UserError(f"results={suite.results} is the reference itself; publish from another folder")
    if suite.preset == "smoke":
        raise UserError("preset=smoke only shows that a task works; the reference holds no smoke sweeps")


def _take(path: Path, to: Path) -> None:
    """A table of an experiment on single runs, where the reference has none of its name."""
    content = path.read_bytes()
    if not to.exists():
        write_atomically(to, content)
        print(f"{to}: new")
    elif to.read_bytes() != content:
        print(f"{to}: is there with other numbers and stays as it is; `git rm` it first to replace it by {path}")


def _renew(suite: SuiteConfig) -> None:
    """What is made of the reference's tables: this sweep's fits and figures, and the figures and report over all. The
    README tells of the committed reference alone."""
    from experiments.figures.files import draw  # matplotlib takes half a second, which every other command would pay
    from experiments.figures.registry import OF_THE_PAPER
    from experiments.report.pages import report

    results, reference = Path(suite.reference), suite.reference_tables
    fits, tables = analyse(reference, suite.sweep.goals), read_tables(reference)
    print(format_table(fits, tables.describe("unit"), tables.frames_per_example))
    if (reference / "scaling.csv").exists():
        write_csv(table(scaling(reference)[0]), reference / "scaling.csv")
    if (reference / "methods.csv").exists():
        write_csv(methods(reference), reference / "methods.csv")
    pictures = draw(results, [suite.name, *(f"fig{number:02d}" for number in OF_THE_PAPER)])
    readme = README if results.resolve() == REFERENCE.resolve() else None
    pages = report(results, readme=readme)
    print(f"\nwritten: {reference}, {len(pictures)} figures in {results / 'figures'},", *pages, readme or "")
