"""A run by itself: what is in the committed tables is not trained again."""

import re
import shlex
import subprocess
import sys

from drive import ENVIRONMENT, ROOT


def test_the_documented_pong_run_is_found_in_the_tables_and_not_trained(tmp_path):
    documented = (ROOT / "docs" / "reinforcement.md").read_text(encoding="utf-8")
    (arguments,) = re.findall(
        r"^\.venv/bin/python -m experiments\.cli\.train (hydra\.mode=RUN task=pong .*)$", documented, re.M
    )
    command = [
        sys.executable,
        "-m",
        "experiments.cli.train",
        *shlex.split(arguments),
        "results=results/reference",
        f"runs={tmp_path}/runs",
    ]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"done before: pong-\w+ is in results/reference/pong-small/runs\.parquet; .*results=.*\n", done.stdout
    )
    assert not list((tmp_path / "runs").glob("pong-small/*"))
