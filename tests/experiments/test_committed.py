"""The committed results are what the code makes of the committed tables, and their sweeps are complete."""

import shutil

import pandas as pd
import pytest

from experiments.analysis.sweep_fit import analyse
from experiments.config import CONFIGS, load
from experiments.report.pages import report
from experiments.sweep.driver import Sweep
from experiments.tables.reading import read_tables, sweep_folders

RESULTS = CONFIGS.parent / "results" / "reference"
FOLDERS = sweep_folders(RESULTS)
UNFINISHED = {"pong-small"}  # takes days


def test_report_and_readme_come_out_of_the_tables(tmp_path):
    shutil.copytree(RESULTS, tmp_path / "results" / "reference")
    shutil.copy(CONFIGS.parent / "README.md", tmp_path)
    report(tmp_path / "results" / "reference", readme=tmp_path / "README.md")
    for name in ("results/reference/report.md", "README.md"):
        assert (tmp_path / name).read_text() == (CONFIGS.parent / name).read_text(), f"{name}: make figures report"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_tables_say_on_which_network_they_were_measured(folder):
    tables = read_tables(folder)
    assert bool(tables.network) is (folder.name != "quadratic-small")
    assert tables.frames_per_example == (4 if folder.name == "pong-small" else None)


def _read(path):
    """Remarks without their numbers, which are rounded."""
    frame = pd.read_csv(path)
    return frame.replace({"design": r"[\d.]+ (times|steps)"}, {"design": r"# \1"}, regex=True)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_fits_come_out_of_the_tables(folder, tmp_path):
    for path in folder.iterdir():
        shutil.copy(path, tmp_path)
    goals = pd.read_csv(folder / "fits.csv")["goal"].to_list()
    analyse(tmp_path, goals)
    for name in ("fits.csv", "crossings.csv"):
        ours, committed = (_read(where / name) for where in (tmp_path, folder))
        pd.testing.assert_frame_equal(ours, committed, rtol=1e-4)  # another processor rounds otherwise


@pytest.mark.parametrize(
    "folder", [folder for folder in FOLDERS if folder.name not in UNFINISHED], ids=lambda folder: folder.name
)
def test_the_same_command_trains_nothing(folder):
    task, preset = folder.name.rsplit("-", 1)
    assert Sweep(load([f"task={task}", f"preset={preset}", f"results={RESULTS}"])).wanted() == []
