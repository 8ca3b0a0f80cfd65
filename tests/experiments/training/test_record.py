"""Nothing lost, nothing half: what is torn, flipped or unfinished never reads as a finished run."""

import math
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from finished_runs import CPU, copy, make

from experiments.config import load
from experiments.errors import UserError
from experiments.files import read_parquet, write_atomically, write_parquet
from experiments.sweep.driver import Sweep
from experiments.tables.collecting import NOT_SCIENCE, collect
from experiments.tables.reading import read_tables
from experiments.tasks.digits import DigitsTask
from experiments.training.loop import Trainer
from experiments.training.record import HASH, SPOILT, RunRecord


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> RunRecord:
    return make(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("name", ["summary.json", "config.json", "curve.parquet"])
def test_torn_or_missing_files_do_not_read_as_finished(finished, name, tmp_path):
    content = (finished.folder / name).read_bytes()
    assert finished.read() is not None
    for i, length in enumerate([0, 1, len(content) // 2, len(content) - 3]):
        record = copy(finished, tmp_path / str(i))
        (record.folder / name).write_bytes(content[:length])
        assert record.read() is None
        (record.folder / name).unlink()
        assert record.read() is None


def test_flipped_bits_are_seen_or_harmless(finished, tmp_path):
    """A flipped bit anywhere in a record must not change what is read from it unseen."""
    truth = finished.read()
    assert truth is not None
    draw = random.Random(0)
    for i in range(150):
        record = copy(finished, tmp_path / str(i))
        path = record.folder / draw.choice(["summary.json", "config.json", "curve.parquet"])
        content = bytearray(path.read_bytes())
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        found = record.read()
        if found is not None:
            assert found[0] == truth[0] and found[1] == truth[1]
            pd.testing.assert_frame_equal(found[2], truth[2], check_exact=True)


def test_a_spoilt_checkpoint_means_starting_over(tmp_path):
    record = RunRecord(tmp_path / "run")
    record.save_checkpoint({"step": 3, "vector": torch.arange(4.0)})
    state = record.load_checkpoint(CPU)
    assert state is not None and torch.equal(state["vector"], torch.arange(4.0))
    path = record.folder / "checkpoint.pt"
    cut = path.read_bytes()[:-20]
    path.write_bytes(cut)
    assert record.load_checkpoint(CPU) is None and not path.exists()
    assert (record.folder / SPOILT).read_bytes() == cut


def test_flipped_bits_of_a_checkpoint_mean_starting_over(tmp_path):
    """Everywhere but in the mark before the hash, where one leaves the content as it was."""
    record, path = RunRecord(tmp_path / "run"), tmp_path / "run" / "checkpoint.pt"
    record.save_checkpoint({"step": 3, "vector": torch.arange(100.0)})
    truth, draw = path.read_bytes(), random.Random(0)
    for _ in range(200):
        content = bytearray(truth)
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        state = record.load_checkpoint(CPU)
        assert state is None or content.startswith(truth.rpartition(HASH)[0])
        assert (state is None) != path.exists()


def test_a_checkpoint_of_an_older_version_has_no_hash_and_is_taken(tmp_path):
    torch.save({"step": 3}, tmp_path / "checkpoint.pt")
    assert RunRecord(tmp_path).load_checkpoint(CPU) == {"step": 3}


def test_a_checkpoint_that_cannot_be_read_now_stays(tmp_path, monkeypatch):
    record = RunRecord(tmp_path / "run")
    record.save_checkpoint({"step": 3})

    def fails(error):
        def read(self):
            raise error

        return read

    monkeypatch.setattr(Path, "read_bytes", fails(OSError(116, "Stale file handle")))
    with pytest.raises(UserError, match="Stale file handle"):
        record.load_checkpoint(CPU)
    monkeypatch.undo()
    monkeypatch.setattr(torch, "load", lambda *_, **__: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(MemoryError):
        record.load_checkpoint(CPU)
    monkeypatch.undo()
    assert record.load_checkpoint(CPU) == {"step": 3}


def test_a_checkpoint_cannot_execute_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path(tmp_path / "executed").touch, ())

    record = RunRecord(tmp_path / "run")
    record.folder.mkdir()
    torch.save({"step": Evil()}, record.folder / "checkpoint.pt")
    assert record.load_checkpoint(CPU) is None
    assert not (tmp_path / "executed").exists()


def _rewrite(path: str) -> None:
    for i in range(10_000):
        write_atomically(Path(path), bytes([i % 256]) * 200_000)


def test_a_kill_during_a_write_leaves_the_old_or_the_new(tmp_path):
    path = tmp_path / "file"
    for _ in range(5):
        writer = multiprocessing.get_context("spawn").Process(target=_rewrite, args=(str(path),))
        writer.start()
        while not path.exists():
            time.sleep(0.005)
        time.sleep(random.Random(0).random() * 0.05)
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        content = path.read_bytes()
        assert len(content) == 200_000 and len(set(content)) == 1


def _replace(path: str) -> None:
    for i in range(100_000):
        write_parquet(Path(path), pd.DataFrame({name: [0.5] * (60 + i % 400 * 3) for name in "abcdefgh"}))


def test_a_table_can_be_read_while_it_is_replaced(tmp_path):
    """`pd.read_parquet` of a path opens it more than once."""
    path = tmp_path / "table.parquet"
    writer = multiprocessing.get_context("spawn").Process(target=_replace, args=(str(path),))
    writer.start()
    while not path.exists():
        time.sleep(0.005)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        assert len(read_parquet(path)) >= 60
    writer.kill()
    writer.join()


def test_collecting_is_additive_sorted_and_repeatable(finished, tmp_path):
    suite = load(["task=digits", "preset=smoke", f"runs={tmp_path}/runs", f"results={tmp_path}/results"])
    runs, tables = suite.records, suite.tables
    copy(finished, runs)
    second = make(runs, seed=1)
    half = copy(second, tmp_path / "half")
    (half.folder / "summary.json").unlink()
    half.folder.rename(runs / "digits-0000000000000000")

    assert collect(suite) == 2
    first = pd.read_parquet(tables / "runs.parquet")
    assert list(first["seed"]) == [0, 1] and set(NOT_SCIENCE) <= set(first.columns)
    assert collect(suite) == 0
    third = make(runs, seed=2)
    for record in (finished, second):
        for file in (runs / record.run_id).iterdir():
            file.unlink()
    (tables / ".curves.parquet.4711").write_bytes(b"a killed process's")
    assert collect(suite) == 1
    assert {path.name for path in tables.iterdir()} == {"runs.parquet", "curves.parquet", ".lock"}
    table = pd.read_parquet(tables / "runs.parquet")
    curves = pd.read_parquet(tables / "curves.parquet")
    assert list(table["seed"]) == [0, 1, 2]
    read = third.read()
    assert read is not None
    ours = curves[curves["run_id"] == third.run_id].drop(columns="run_id").reset_index(drop=True)
    pd.testing.assert_frame_equal(ours, read[2], check_exact=True)


def test_a_table_holds_one_experiment(finished, tmp_path, capsys):
    """Another config, another record version and a renamed record are named and left out; another experiment's table
    is not added to."""
    where = [f"runs={tmp_path}/runs", f"results={tmp_path}/results"]
    suite = load(["task=digits", "preset=smoke", *where])
    other = load(["task=digits", "preset=smoke", "optimizer.clip=1", *where])
    copy(finished, suite.records)
    run = other.point(32, 0.2, 0)
    foreign = RunRecord(other.records / run.run_id)
    foreign.start(run)
    Trainer(run, DigitsTask(run.task, run.seed, CPU), CPU).run(foreign, math.inf)
    renamed = copy(finished, tmp_path / "aside")
    renamed.folder.rename(suite.records / "digits-0000000000000000")
    assert RunRecord(suite.records / finished.run_id).is_done(suite.point(32, 0.2, 0))
    assert not RunRecord(suite.records / finished.run_id).is_done(suite.point(32, 0.2, 1))

    assert collect(suite) == 1
    said = capsys.readouterr().out
    assert "1 records, spoilt, unreadable, renamed or of another record version (digits-0000000000000000)" in said
    assert f"1 records, of another experiment: optimizer.clip is null and 1.0 ({foreign.run_id})" in said
    with pytest.raises(
        UserError, match=r"runs\.parquet: optimizer\.clip is 1\.0 and null in one folder; choose another"
    ):
        collect(other)

    runs = pd.read_parquet(suite.tables / "runs.parquet")
    runs.assign(record_version=1).to_parquet(suite.tables / "runs.parquet")
    for add in (collect, Sweep):
        with pytest.raises(UserError, match=r"runs of record version 1, and what is made now is version 2"):
            add(suite)
    runs = pd.concat([runs, runs.assign(record_version=1, run_id="digits-1", seed=1)])
    runs.to_parquet(suite.tables / "runs.parquet")
    curves = pd.read_parquet(suite.tables / "curves.parquet")
    pd.concat([curves, curves.assign(run_id="digits-1")]).to_parquet(suite.tables / "curves.parquet")
    with pytest.raises(UserError, match=r"record_version is 1 and 2"):
        read_tables(suite.tables)
