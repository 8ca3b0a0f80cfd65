"""What W&B's offline mode writes, read back with W&B's own message format."""

import gzip
import json
import math
import os
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from finished_runs import copy, make
from wandb.proto import wandb_internal_pb2

from experiments.config import load
from experiments.training.record import RunRecord
from experiments.wandb.mirror import PATIENCE, _plotted, mirrored
from experiments.wandb.sync import unsent

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> RunRecord:
    return make(tmp_path_factory.mktemp("made"))


def mirror(runs: Path, *goals: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "experiments.wandb.mirror", str(runs), *goals],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "WANDB_MODE"} | {"WANDB_SILENT": "true"},
        stdin=subprocess.DEVNULL,
        check=True,
        timeout=120,
    )


def records(content: bytes) -> Iterator[bytes]:
    """The records of a `.wandb` file, a LevelDB log: 32 KiB blocks of pieces with a header of checksum, length and
    type.
    """
    place, block, whole = 7, 32768, b""
    while place + 7 <= len(content):
        if block - place % block < 7:
            place += block - place % block
            continue
        checksum, length, kind = struct.unpack("<IHB", content[place : place + 7])
        piece = content[place + 7 : place + 7 + length]
        assert zlib.crc32(bytes([kind]) + piece) == checksum
        whole += piece
        place += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


def read_back(file: Path) -> tuple[dict, pd.DataFrame, dict]:
    """(run, history, summary) in a `.wandb` file."""
    run, rows, summary = {}, [], {}
    for data in records(file.read_bytes()):
        entry = wandb_internal_pb2.Record()
        entry.ParseFromString(data)
        if entry.HasField("run"):
            run = {"id": entry.run.run_id, "group": entry.run.run_group, "name": entry.run.display_name}
            run["config"] = {item.key: json.loads(item.value_json) for item in entry.run.config.update}
        if entry.HasField("history"):
            rows.append({(item.key or item.nested_key[0]): json.loads(item.value_json) for item in entry.history.item})
        if entry.HasField("summary"):
            summary |= {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in entry.summary.update}
    return run, pd.DataFrame(rows), summary


@pytest.mark.slow
def test_finished_runs_are_mirrored_once_and_whole(made, tmp_path):
    runs = tmp_path / "digits-smoke"
    record = copy(made, runs)
    mirror(runs, "0.5", "0.000001")
    files = list(runs.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 1
    run, history, summary = read_back(files[0])
    found = record.read()
    assert found is not None
    config, made, curve = found
    assert (run["id"], run["group"]) == (record.run_id, "digits-smoke")
    assert run["config"]["batch_size"] == config["batch_size"] and run["config"]["run_id"] == record.run_id
    assert list(history["_step"]) == list(curve["step"])
    assert list(history["metric"]) == pytest.approx(list(curve["metric"]))
    assert summary["status"] == made["status"]
    assert summary["trace_cov"] == pytest.approx(curve["trace_cov"].dropna().iloc[-1])
    assert not np.isfinite(curve["b_simple_high"]).any(), "so short a run determines no B_simple"
    assert not {"b_simple", "b_simple_low", "b_simple_high"} & set(history)
    assert 0 < summary["steps_to_0.5"] < made["step"] and "steps_to_1e-06" not in summary
    assert summary["examples_to_0.5"] == 32 * summary["steps_to_0.5"]

    mirror(runs)
    assert list(runs.glob("wandb/offline-run-*/*.wandb")) == files, "a mirrored run was written again"
    assert unsent(runs) == [files[0].parent]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "said"), [("", "wandb login"), ("0" * 40, "nothing was sent")])
def test_sync_without_key_or_network_says_so_and_can_be_repeated(made, tmp_path, key, said):
    suite = ["task=digits", "preset=smoke", f"runs={tmp_path}"]
    copy(made, tmp_path / "digits-smoke")
    mirror(tmp_path / "digits-smoke")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    environment |= {"WANDB_BASE_URL": "http://127.0.0.1:9", "HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "experiments.cli.wandb_sync", *suite],
            cwd=ROOT,
            env=environment | ({"WANDB_API_KEY": key} if key else {}),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1
        assert "0" * 40 not in done.stdout + done.stderr
    assert len(unsent(tmp_path / "digits-smoke")) == 1


class Server(ThreadingHTTPServer):
    """As much of a W&B as its client needs, or (`works=False`) one that answers everything with an error; what it is
    told."""

    def __init__(self, works: bool):
        super().__init__(("127.0.0.1", 0), Answer)
        self.works = works
        self.paths: list[str] = []
        self.runs: list[dict[str, Any]] = []  # as they are announced
        self.history: list[dict[str, Any]] = []

    def __enter__(self) -> "Server":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def environment(self) -> dict[str, str]:
        return {"WANDB_BASE_URL": f"http://127.0.0.1:{self.server_port}", "WANDB_API_KEY": "0" * 40}

    def reply(self, path: str, told: dict[str, Any]) -> dict[str, Any]:
        given = told.get("variables") or {}
        if "upsertBucket" in told.get("query", ""):
            self.runs.append(given)
            project = {"id": "p", "name": "noisescale", "entity": {"id": "e", "name": "me"}}
            bucket = {"id": "b", "name": given["name"], "displayName": "d", "config": "{}", "project": project}
            return {"upsertBucket": {"bucket": {**bucket, "historyLineCount": 0}, "inserted": True}}
        if "createRunFiles" in told.get("query", ""):
            files = [
                {"name": name, "uploadUrl": f"{self.environment['WANDB_BASE_URL']}/file"} for name in given["files"]
            ]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        if path.endswith("/file_stream"):
            lines = told.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
            self.history += map(json.loads, lines)
        return {"model": None, "viewer": {"entity": "me", "username": "me", "flags": "{}"}}


class Answer(BaseHTTPRequestHandler):
    server: Server

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.paths.append(self.path)
        told = json.loads(body) if body.startswith(b"{") else {}
        content = json.dumps({"data": self.server.reply(self.path, told)}).encode()
        self.send_response(200 if self.server.works else 500)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = answer

    def log_message(self, *_: object) -> None:
        pass


def sync(runs: Path, environment: dict[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "experiments.cli.wandb_sync", "task=digits", "preset=smoke", f"runs={runs}"],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


GOES_ON = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the mirror, left to itself


def wait_for_mark(record: RunRecord) -> str:
    """What `mirrored` says once it is there: the mirror works on in the background."""
    end = time.monotonic() + 200
    while not (record.folder / "mirrored").exists() and time.monotonic() < end:
        time.sleep(0.1)
    return (record.folder / "mirrored").read_text()


@pytest.mark.slow
def test_sync_sends_each_finished_run_once(made, tmp_path):
    record = copy(made, tmp_path / "digits-smoke")
    mirror(tmp_path / "digits-smoke")
    with Server(works=True) as server:
        for said in ("1 runs sent to W&B, 0 left", "0 runs sent to W&B, 0 left"):
            done = sync(tmp_path, server.environment, 200)
            assert done.returncode == 0 and said in done.stdout, done.stdout + done.stderr
            assert {run["name"] for run in server.runs} == {record.run_id}
            assert len(server.history) == len(pd.read_parquet(record.folder / "curve.parquet"))


@pytest.mark.slow
def test_sync_does_not_wait_for_a_server_that_fails(made, tmp_path):
    copy(made, tmp_path / "digits-smoke")
    mirror(tmp_path / "digits-smoke")
    with Server(works=False) as server:
        done = sync(tmp_path, server.environment, 60)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "500" in done.stderr and "nothing was sent" in done.stderr


def test_sync_tells_of_runs_that_were_not_mirrored(made, tmp_path):
    copy(made, tmp_path / "digits-smoke")
    done = sync(tmp_path, {}, 120)
    assert done.returncode == 1 and "1 finished runs aren't written for W&B yet" in done.stdout


def test_a_folder_that_is_read_only_costs_the_mirror_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "offline")
    suite = load(["task=digits", "preset=smoke", f"runs={tmp_path}/runs"])
    (tmp_path / "runs").write_text("")  # as good as a folder nobody may write to, root included
    with mirrored(suite):
        pass
    assert "nothing goes to W&B" in capsys.readouterr().out


@pytest.mark.slow
@GOES_ON
def test_online_a_finished_run_is_there_at_once(made, tmp_path, monkeypatch):
    suite = load(["task=digits", "preset=smoke", f"runs={tmp_path}"])
    record = copy(made, suite.records)
    with Server(works=True) as server:
        for key, value in {**server.environment, "WANDB_MODE": "online"}.items():
            monkeypatch.setenv(key, value)
        with mirrored(suite):
            assert wait_for_mark(record) == "done\n"
    told = server.runs[0]
    assert (told["name"], told["groupName"], told["displayName"]) == (record.run_id, suite.name, "B32 lr0.2 seed0")
    assert len(server.history) == len(pd.read_parquet(record.folder / "curve.parquet"))
    assert unsent(suite.records) == []


@pytest.mark.slow
@GOES_ON
def test_a_server_that_fails_holds_nothing_up_and_loses_nothing(made, tmp_path, monkeypatch, capsys):
    """The sweep ends in time, and its run waits offline for the sync."""
    suite = load(["task=digits", "preset=smoke", f"runs={tmp_path}"])
    record = copy(made, suite.records)
    with Server(works=False) as server:
        for key, value in {**server.environment, "WANDB_MODE": "online"}.items():
            monkeypatch.setenv(key, value)
        started = time.monotonic()
        with mirrored(suite):
            time.sleep(4)
        assert time.monotonic() - started < 4 * (1 + PATIENCE) + 0.5
        assert "W&B is behind" in capsys.readouterr().out
        assert wait_for_mark(record) == "done\n"
    assert "/graphql" in server.paths
    assert "from here on offline" in (suite.records / "wandb.log").read_text()
    assert len(unsent(suite.records)) == 1


@pytest.mark.slow
def test_a_record_that_cannot_be_mirrored_stops_nothing(made, tmp_path):
    runs = tmp_path / "digits-smoke"
    copy(made, runs)
    broken = RunRecord(runs / "digits-0000000000000000")
    broken.folder.mkdir()
    (broken.folder / "curve.parquet").write_bytes(b"no parquet")
    mirror(runs)
    assert (broken.folder / "mirrored").read_text().startswith("failed")
    assert len(list(runs.glob("wandb/offline-run-*/*.wandb"))) == 1


def test_what_is_not_determined_is_a_gap():
    row = {"step": 8, "metric": 0.3, "trace_cov": 40.0, "grad_sq_norm": -0.01, "b_simple": -4000.0}
    bounded = _plotted(row | {"b_simple_low": 541.0, "b_simple_high": math.inf})
    assert bounded == {"metric": 0.3, "trace_cov": 40.0, "grad_sq_norm": -0.01, "b_simple_low": 541.0}
    assert "b_simple_low" not in _plotted(row | {"b_simple_low": -math.inf, "b_simple_high": math.inf})
    known = row | {"b_simple": 20.0, "b_simple_low": 15.0, "b_simple_high": 30.0}
    assert _plotted(known) == {key: value for key, value in known.items() if key != "step"}
