"""`make status`: what it says of a sweep in every state, and that ten thousand records are seconds."""

import cProfile
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from drive import ENVIRONMENT, ROOT
from many import SUMMARY, make_records

from experiments.config import SuiteConfig, load, run_id_of
from experiments.errors import UserError
from experiments.sweep.driver import Sweep, last_line, run_sweep
from experiments.sweep.search import Point
from experiments.sweep.status import look, report
from experiments.tables.collecting import collect
from experiments.tables.reading import read_tables
from experiments.training.curve import CURVE_COLUMNS
from experiments.training.record import SEALED, RunRecord, _bytes, _seal, records_in


def suite_in(folder: Path) -> SuiteConfig:
    return load(["task=quadratic", "preset=smoke", f"runs={folder}/runs", f"results={folder}/results"])


def test_every_state_is_told_apart(tmp_path):
    suite = suite_in(tmp_path)
    make_records(suite, 3)
    assert collect(suite) == 3
    running, failed, stopped, torn = (RunRecord(suite.records / suite.point(64, lr, 0).run_id) for lr in (1, 2, 3, 4))
    for record, lr in ((running, 1), (failed, 2), (stopped, 3), (torn, 4)):
        record.start(suite.point(64, lr, 0))
    failed.fail("Traceback ...\n\nValueError: not what it should be\n")
    (torn.folder / "summary.json").write_text("{")
    with open(running.folder / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        counts, errors = look(suite)
        text = report(suite)
    assert counts == {"reached": 3, "running": 1, "failed": 1, "foreign": 1, "stopped": 1}
    assert errors == {failed.run_id: "ValueError: not what it should be"}
    assert "3 done (3 reached" in text and "1 running, 1 stopped, 1 failed" in text
    assert "1 records count for nothing" in text
    assert f"failed: batch_size=64 lr=2 seed=0 ({failed.run_id}): ValueError: not what it should be" in text
    assert "12 missing" in text
    assert look(suite)[0]["running"] == 0


def seal(record: RunRecord, config: object, summary: dict[str, object], rows: list[dict[str, Any]]) -> None:
    """A finished record of whatever is given, as a stranger may make it."""
    record.folder.mkdir(parents=True)
    (record.folder / "config.json").write_text(json.dumps(config))
    record.finish(rows, [], summary)


CURVE = pd.DataFrame([[0.0] * len(CURVE_COLUMNS), [1.0] * len(CURVE_COLUMNS)], columns=list(CURVE_COLUMNS))
STRANGE = {
    "config of a task's name": ({"task": {"name": "quadratic"}}, {}, CURVE),
    "config is a list": ([], {}, CURVE),
    "batch size in words": ({"batch_size": "16"}, {}, CURVE),
    "batch size of 0": ({"batch_size": 0}, {}, CURVE),
    "batch size of 2^70": ({"batch_size": 1 << 70}, {}, CURVE),
    "status is unknown": ({}, {"status": "hello"}, CURVE),
    "status is a list": ({}, {"status": ["reached"]}, CURVE),
    "no status": ({}, {"status": None}, CURVE),
    "metric is a table": ({}, {"best_metric": {"a": 1}}, CURVE),
    "empty curve": ({}, {}, CURVE.iloc[:0]),
    "steps that fall": ({}, {}, CURVE.iloc[::-1]),
}


@pytest.mark.parametrize("config, summary, curve", STRANGE.values(), ids=STRANGE)
def test_a_sealed_record_that_no_run_can_have_made_counts_for_nothing(config, summary, curve, tmp_path, capsys):
    suite = suite_in(tmp_path)
    make_records(suite, 3)
    run = suite.point(*Sweep(suite).wanted()[0])
    if config != [] and "task" not in config:
        config = asdict(run) | config
    record = RunRecord(suite.records / (run_id_of(config) if config else run.run_id))
    shutil.rmtree(record.folder, ignore_errors=True)
    seal(record, config, SUMMARY | summary, curve.to_dict("records"))
    others = len(list(suite.records.iterdir())) - 1
    assert record.read() is None
    if curve is CURVE:  # the bytes of tables are all that `status` checks
        assert look(suite)[0] == {"reached": others, "foreign": 1}
    assert collect(suite) == others
    assert f"left out 1 records, spoilt, unreadable, renamed or of another record version ({record.run_id})" in (
        capsys.readouterr().out
    )
    assert Sweep(suite).wanted()


def test_files_that_nobody_could_have_written_count_for_nothing(tmp_path):
    """JSON deeper than Python can go, a folder or a link to itself in a file's place, groups that are none."""
    suite = suite_in(tmp_path)
    make_records(suite, 6)
    deep, deep_config, folder, loop, groups, _ = records_in(suite.records)
    (deep.folder / "summary.json").write_text("[" * 200_000)
    (deep_config.folder / "config.json").write_text("[" * 200_000)
    for record in (folder, loop):
        (record.folder / "summary.json").unlink()
    (folder.folder / "summary.json").mkdir()
    (loop.folder / "summary.json").symlink_to("summary.json")
    (groups.folder / "groups.parquet").write_bytes(b"none")
    summary = json.loads((groups.folder / "summary.json").read_text())
    del summary["sha256"]
    files = {name: _bytes(f"{groups.folder}/{name}") for name in SEALED}
    (groups.folder / "summary.json").write_text(json.dumps(summary | {"sha256": _seal(summary, files)}))
    (suite.records / "wandb-sync.log").write_text("")
    assert look(suite)[0] == {"foreign": 4, "reached": 2}
    assert collect(suite) == 1
    assert Sweep(suite).wanted()


def test_a_folder_without_permission_is_named_and_the_others_are_read(tmp_path):
    """As root without the right to pass over permissions."""
    suite = suite_in(tmp_path)
    make_records(suite, 3)
    closed = records_in(suite.records)[0]
    where = [f"runs={suite.runs}", f"results={suite.results}"]

    def say(module: str) -> str:
        command = [sys.executable, "-m", f"experiments.cli.{module}", "task=quadratic", "preset=smoke", *where]
        unprivileged = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
        if os.geteuid() or shutil.which("setpriv") is None:
            unprivileged = command
        done = subprocess.run(unprivileged, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=280)
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    try:
        closed.folder.chmod(0)
        assert "2 done" in (said := say("status")) and "1 records count for nothing" in said
        assert closed.run_id in (said := say("collect")) and "2 new runs" in said
        suite.records.chmod(0)
        for module in ("status", "collect"):
            assert f"{suite.records}: Permission denied" in say(module)
    finally:
        suite.records.chmod(0o755)
        closed.folder.chmod(0o755)


@pytest.mark.parametrize("damage", ["runs cut", "curves empty", "curves gone", "curves lack a run", "runs a folder"])
def test_damaged_tables_are_one_message(damage, tmp_path):
    suite = suite_in(tmp_path)
    make_records(suite, 3)
    assert collect(suite) == 3
    runs, curves = (suite.tables / f"{name}.parquet" for name in ("runs", "curves"))
    match damage:
        case "runs cut":
            runs.write_bytes(runs.read_bytes()[:-50])
        case "curves empty":
            curves.write_bytes(b"")
        case "curves gone":
            curves.unlink()
        case "curves lack a run":
            table = pd.read_parquet(curves)
            table[table["run_id"] != table["run_id"].iloc[0]].to_parquet(curves)
        case "runs a folder":
            runs.unlink()
            runs.mkdir()
    for read in (report, collect, Sweep, lambda suite: read_tables(suite.tables)):
        with pytest.raises(UserError, match=r"s\.parquet (can't be read|lacks 1 runs).*restore it"):
            read(suite)


def test_what_a_failed_run_left_is_told_whatever_it_is(tmp_path):
    suite = suite_in(tmp_path)
    for lr, content in ((1, "5"), (2, '{"batch_size": null, "lr": "a"}'), (3, "")):
        record = RunRecord(suite.records / suite.point(64, lr, 0).run_id)
        record.start(suite.point(64, lr, 0))
        (record.folder / "config.json").write_text(content)
        (record.folder / "error.txt").write_bytes(b"Traceback\n\xff\xfe bad\n")
    assert report(suite).count(" bad") == 3


def test_a_run_that_is_killed_twice_is_failed_until_it_is_begun_again(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    suite = suite_in(tmp_path)
    suite = replace(suite, sweep=replace(suite.sweep, batch_sizes=(16,)))
    sweep = Sweep(suite)

    def killed(shares: list[list[Point]]) -> None:
        for point in [point for share in shares for point in share]:
            sweep.record(point).start(suite.point(*point))
            (sweep.record(point).folder / ".curve.parquet.4711").write_bytes(b"half")

    with pytest.raises(UserError, match="no run has finished"):
        run_sweep(suite, killed)
    counts, errors = look(suite)
    assert counts == {"failed": len(errors)} and set(errors.values()) == {last_line(Path("none"))}
    for point in sweep.wanted():
        record = sweep.record(point)
        record.start(suite.point(*point))
        assert {path.name for path in record.folder.iterdir()} == {"config.json"}
    assert look(suite)[0] == {"stopped": len(errors)}


def calls(work: Callable[[], object]) -> int:
    """How often functions, Python's or C's, are called."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.slow
def test_what_a_record_costs_among_ten_thousand(tmp_path):
    """In calls, the same on any machine however busy; `benchmarks/records.py` says it in seconds."""
    few, many = suite_in(tmp_path / "few"), suite_in(tmp_path / "many")
    make_records(few, 100)
    make_records(many, 10_000)
    report(few)  # whatever is imported or made once

    def each(command: Callable[[SuiteConfig], object]) -> float:
        return (calls(lambda: command(many)) - calls(lambda: command(few))) / 9_900

    assert each(report) < 275
    assert each(collect) < 375
    assert each(report) < 245
    assert len(pd.read_parquet(many.tables / "runs.parquet")) == 10_000
