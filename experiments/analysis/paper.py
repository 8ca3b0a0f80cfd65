"""The paper's own numbers, from `results/paper/`, and which of its tasks ours are."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from noisescale.pareto.fit import Estimate


@dataclass(frozen=True)
class PaperTask:
    """A row of Table 1: `points` are its names in the digitised figures, `ours` our tasks that measure the same
    thing."""

    name: str
    points: tuple[str, ...]
    ours: tuple[str, ...]


ATARI = ("Alien", "BeamRider", "Breakout", "Pong", "Qbert", "Seaquest", "SpaceInvaders")
PAPER_TASKS = (
    PaperTask("MNIST", ("MNIST_SGD",), ("mnist",)),
    PaperTask("SVHN", ("SVHN_SGD",), ("svhn",)),
    PaperTask("CIFAR10", ("CIFAR10_momentum",), ("cifar10",)),
    PaperTask("ImageNet", (), ("imagenet",)),
    PaperTask("Autoencoder (SVHN)", ("AE_SVHN",), ("svhn_autoencoder",)),
    PaperTask("VAE (SVHN)", ("VAE_SVHN",), ("svhn_vae",)),
    PaperTask("Billion Word", ("BillionWord",), ("lm_lm1b", "lm")),
    PaperTask(
        "Atari, 7 games", ATARI, ("pong", "breakout", "space_invaders", "beam_rider", "alien", "qbert", "seaquest")
    ),
    PaperTask("Dota 1v1", ("Dota1v1",), ()),
    PaperTask("Dota 5v5", (), ()),
)
# Our task → the digitised figure that shows the same one.
POINTS_OF = {
    "mnist": "MNIST_SGD",
    "svhn": "SVHN_SGD",
    "svhn_adam": "SVHN_Adam",
    "cifar10": "CIFAR10_momentum",
    "svhn_autoencoder": "AE_SVHN",
    "svhn_vae": "VAE_SVHN",
    "lm": "BillionWord",
    "lm_lm1b": "BillionWord",
    "pong": "Pong",
    "breakout": "Breakout",
    "space_invaders": "SpaceInvaders",
    "beam_rider": "BeamRider",
    "alien": "Alien",
    "qbert": "Qbert",
    "seaquest": "Seaquest",
}
# What B counts in the digitised figures, where it isn't the image.
UNITS = {"BillionWord": "token", "Dota1v1": "frame"} | dict.fromkeys(ATARI, "frame")


COMMITTED = Path(__file__).parents[2] / "results"


def _read(results: Path, name: str) -> pd.DataFrame:
    """A table of the paper's, from this checkout where `results` is a folder without them."""
    own = results / "paper" / name
    return pd.read_csv(own if own.exists() else COMMITTED / "paper" / name)


@cache
def points(results: Path) -> pd.DataFrame:
    """Columns task, goal, batch_size, steps, examples."""
    return _read(results, "pareto_points_digitised.csv")


@cache
def refits(results: Path) -> pd.DataFrame:
    """Columns task, goal, n, S_min, E_min, B_crit, rel_se_Bcrit."""
    return _read(results, "pareto_refits.csv")


@cache
def table1(results: Path) -> dict[str, dict[str, Estimate]]:
    """Task → `b_crit_start`, `b_crit`, `b_simple_start`, `b_simple_avg`.

    Where the paper gives a range of games, the value is its geometric middle and the ends are its ends. The paper gives
    no errors: low and high equal the value elsewhere, and NaN stands for what it doesn't give.
    """
    rows = _read(results, "table1.csv").set_index("task")
    found: dict[str, dict[str, Estimate]] = {}
    for task, row in rows.iterrows():
        found[str(task)] = {}
        for name in ("b_crit_start", "b_crit", "b_simple_start", "b_simple_avg"):
            low, high = float(row[f"{name}_low"]), float(row[f"{name}_high"])
            middle = (low * high) ** 0.5 if high == high else low
            found[str(task)][name] = Estimate(middle, low, high if high == high or low != low else float("inf"))
    return found


def unit(results: Path, task: str) -> str:
    """What B counts in a row of Table 1."""
    rows = _read(results, "table1.csv").set_index("task")
    return str(rows.loc[task, "unit"])
