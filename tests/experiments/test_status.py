"""`make status`: what it says of a sweep in every state, and that ten thousand records are seconds."""

import fcntl
import resource
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from drive import ENVIRONMENT, ROOT
from many import make_records

from experiments.collect import collect
from experiments.config import SuiteConfig, load
from experiments.record import RunRecord
from experiments.status import look, report


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


@pytest.mark.slow
def test_ten_thousand_records_take_seconds(tmp_path):
    """Of processor time, since a test machine has other things to do."""
    suite = suite_in(tmp_path)
    make_records(suite, 10_000)
    for module, expected in (("status", "10000 done"), ("collect", "10000 new runs"), ("status", "10000 done")):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        where = [f"runs={suite.runs}", f"results={suite.results}"]
        done = subprocess.run(
            [sys.executable, "-m", f"experiments.{module}", "task=quadratic", "preset=smoke", *where],
            cwd=ROOT,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=280,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert expected in done.stdout, done.stderr
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10
    assert len(pd.read_parquet(suite.tables / "runs.parquet")) == 10_000
