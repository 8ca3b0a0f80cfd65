"""What W&B's offline mode writes, read back with W&B's own message format."""

import json
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

import pandas as pd
import pytest
from test_record import make
from wandb.proto import wandb_internal_pb2

from experiments.config import load
from experiments.record import RunRecord
from experiments.tracking import PATIENCE, mirrored
from experiments.wandb_sync import unsent

ROOT = Path(__file__).parents[2]


def mirror(runs: Path, *goals: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "experiments.tracking", str(runs), *goals],
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
def test_finished_runs_are_mirrored_once_and_whole(tmp_path):
    runs = tmp_path / "digits-smoke"
    record = make(runs)
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
    assert summary["status"] == made["status"] and summary["b_simple"] == pytest.approx(curve["b_simple"].iloc[-1])
    assert 0 < summary["steps_to_0.5"] < made["step"] and "steps_to_1e-06" not in summary
    assert summary["examples_to_0.5"] == 32 * summary["steps_to_0.5"]

    mirror(runs)
    assert list(runs.glob("wandb/offline-run-*/*.wandb")) == files, "a mirrored run was written again"
    assert unsent(runs) == [files[0].parent]


@pytest.mark.slow
@pytest.mark.parametrize(("key", "said"), [("", "wandb login"), ("0" * 40, "nothing was sent")])
def test_sync_without_key_or_network_says_so_and_can_be_repeated(tmp_path, key, said):
    suite = ["task=digits", "preset=smoke", f"runs={tmp_path}"]
    make(tmp_path / "digits-smoke")
    mirror(tmp_path / "digits-smoke")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    environment |= {"WANDB_BASE_URL": "http://127.0.0.1:9", "HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "experiments.wandb_sync", *suite],
            cwd=ROOT,
            env=environment | ({"WANDB_API_KEY": key} if key else {}),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
        assert "0" * 40 not in done.stdout + done.stderr
    assert len(unsent(tmp_path / "digits-smoke")) == 1


class Failing(BaseHTTPRequestHandler):
    """A W&B that answers every request with an error."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.send_response(500)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_POST = do_PUT = answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow
def test_a_server_that_fails_holds_nothing_up_and_loses_nothing(tmp_path, monkeypatch, capsys):
    """`WANDB_MODE=online` against a server of errors: the sweep ends in time, its run waits offline for the sync."""
    suite = load(["task=digits", "preset=smoke", f"runs={tmp_path}"])
    record = make(suite.records)
    with ThreadingHTTPServer(("127.0.0.1", 0), Failing) as server:
        server.asked = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("WANDB_MODE", "online")
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        started = time.monotonic()
        with mirrored(suite):
            time.sleep(4)
        assert time.monotonic() - started < 4 * (1 + PATIENCE) + 0.5
        assert "W&B is behind" in capsys.readouterr().out
        end = time.monotonic() + 200
        while not (record.folder / "mirrored").exists() and time.monotonic() < end:
            time.sleep(0.2)
        server.shutdown()
    assert (record.folder / "mirrored").read_text() == "done\n"
    assert "/graphql" in server.asked  # type: ignore[attr-defined]
    assert "from here on offline" in (suite.records / "wandb.log").read_text()
    assert [folder.name.rpartition("-")[2] for folder in unsent(suite.records)] == [record.run_id.rpartition("-")[2]]
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with mirrored(suite):
        pass
    assert "W&B" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_record_that_cannot_be_mirrored_stops_nothing(tmp_path):
    runs = tmp_path / "digits-smoke"
    make(runs)
    broken = RunRecord(runs / "digits-0000000000000000")
    broken.folder.mkdir()
    (broken.folder / "curve.parquet").write_bytes(b"no parquet")
    mirror(runs)
    assert (broken.folder / "mirrored").read_text().startswith("failed")
    assert len(list(runs.glob("wandb/offline-run-*/*.wandb"))) == 1
