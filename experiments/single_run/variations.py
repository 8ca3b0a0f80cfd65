"""What a sweep's answer owes to choices that the paper leaves open: the sweep again, smaller, with one of them changed.

`python -m experiments.cli.variations task=svhn_vae preset=small sweep=fixed sweep.batch_sizes=[8,32,128] sweep.seeds=1`
fits the sweep, with few batch sizes and no search of the learning rate, as it is and with each of the task's `VARIED`
overrides, and puts the fits side by side. Goals are values of the loss, which a change of its scaling moves too, so
compare B_crit and B_simple, not steps.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from experiments.analysis.goal_fit import fits_frame
from experiments.analysis.sweep_fit import analyse
from experiments.config import SuiteConfig, load
from experiments.errors import UserError
from experiments.launch.job import train_one
from experiments.sweep.driver import Sweep, train_wanted
from experiments.sweep.search import Point
from experiments.tables.collecting import collect
from experiments.tables.reading import write_csv

VARIED: dict[str, dict[str, tuple[str, ...]]] = {
    "svhn_autoencoder": {
        "as chosen": (),
        "latent 16": ("task.latent=16",),
        "Adam's β₁ 0.5": ("optimizer.beta1=0.5",),
    },
    "svhn_vae": {
        "as chosen": (),
        "latent 16": ("task.latent=16",),
        "pixel_std 0.2": ("task.pixel_std=0.2",),
        "Adam's β₁ 0.5": ("optimizer.beta1=0.5",),
    },
}
COLUMNS = ["goal", "s_min", "e_min", "b_crit", "b_crit_low", "b_crit_high", "b_crit_status"]
COLUMNS += ["b_simple_avg", "b_simple_avg_low", "b_simple_avg_high", "verdict", "remark"]


def fitted(suite: SuiteConfig) -> pd.DataFrame:
    """The fits of a sweep that is trained in this process, but for what is done."""

    def launch(shares: list[list[Point]]) -> None:
        for number, points in enumerate(shares):
            for point in points:
                run = suite.point(*point)
                train_one(suite, run, sweep.record(point))
            print(f"{suite.tables}: {number + 1} of {len(shares)} shares of this round done", flush=True)

    sweep = Sweep(suite)
    train_wanted(sweep, sweep.wanted(), launch)
    collect(suite)
    return fits_frame(analyse(suite.tables, suite.sweep.goals))


def measure(arguments: Sequence[str]) -> pd.DataFrame:
    """`variations.csv`, a row a variation and goal."""
    chosen = load(arguments)
    varied = VARIED.get(chosen.run.task.name)
    if varied is None:
        raise UserError(f"task={chosen.run.task.name}: nothing of it is varied; allowed: {', '.join(VARIED)}")
    rows = []
    for name, overrides in varied.items():
        suite = load([*arguments, *overrides])
        own = Path(chosen.runs) / f"{chosen.name}-variations" / re.sub(r"[^a-z0-9]+", "-", name.lower())
        found = fitted(replace(suite, results=str(own / "results"), runs=str(own)))
        rows.append(found[COLUMNS].assign(variation=name))
    table = pd.concat(rows)[["variation", *COLUMNS]]
    chosen.tables.mkdir(parents=True, exist_ok=True)
    write_csv(table, chosen.tables / "variations.csv")
    shown = ["variation", "goal", "b_crit", "b_crit_low", "b_crit_high", "b_simple_avg"]
    print(table[shown].to_string(index=False, float_format=lambda value: f"{value:.3g}"))
    return table
