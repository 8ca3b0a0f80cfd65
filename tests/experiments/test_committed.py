"""The committed results are what the code makes of the committed tables, and their sweeps are complete."""

import shutil

import pandas as pd
import pytest

from experiments.analyse import analyse
from experiments.config import CONFIGS, load
from experiments.sweep import Sweep
from experiments.tables import sweep_folders

RESULTS = CONFIGS.parent / "results"
FOLDERS = sweep_folders(RESULTS)
UNFINISHED = {"pong-small"}  # takes days


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_fits_come_out_of_the_tables(folder, tmp_path):
    for path in folder.iterdir():
        shutil.copy(path, tmp_path)
    goals = pd.read_csv(folder / "fits.csv")["goal"].to_list()
    analyse(tmp_path, goals)
    for name in ("fits.csv", "crossings.csv"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize(
    "folder", [folder for folder in FOLDERS if folder.name not in UNFINISHED], ids=lambda folder: folder.name
)
def test_the_same_command_trains_nothing(folder):
    task, preset = folder.name.rsplit("-", 1)
    assert Sweep(load([f"task={task}", f"preset={preset}", f"results={RESULTS}"])).wanted() == []
