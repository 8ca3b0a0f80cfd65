"""What goes wrong around a sweep, caused for real: the others go on, a message names the run, a rerun heals it."""

import ast
import ctypes
import errno
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from drive import ENVIRONMENT, ROOT, SMALL, SWEEP, command, same, start, sweep, tables

from experiments.cli.command import told
from experiments.config import SuiteConfig, load
from experiments.data.text import open_corpus
from experiments.errors import UserError
from experiments.launch.job import train_one
from experiments.launch.slurm import only_driver
from experiments.sweep.driver import Sweep, check_writable, train_wanted
from experiments.sweep.search import Point
from experiments.tables.collecting import collect
from experiments.training.loop import Trainer
from experiments.training.record import RunRecord
from experiments.training.time_limit import OverTimeError, time_limit

CPU = torch.device("cpu")


SECRETS = {"WANDB_API_KEY": "5ec2e7" * 6 + "1234", "AWS_SECRET_ACCESS_KEY": "5ec2e7/AWS+1234", "HF_TOKEN": "hf_5ec2e7"}


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("local")
    assert not any(secret in sweep(folder, **SECRETS) for secret in SECRETS.values())
    return folder


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A file system of its own, of 64 KiB; the test may remount it."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"mounting a small disk needs root: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)


def fill(disk: Path, leave: int) -> Path:
    """A file that leaves `leave` bytes (in pages of 4 KiB)."""
    ballast = disk / "ballast"
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    ballast.write_bytes(b"x" * (free - leave))
    return ballast


def suite_in(folder: Path) -> SuiteConfig:
    where = [f"runs={folder}/runs", f"results={folder}/results"]
    return load(["task=quadratic", "preset=smoke", "measure.curvature=false", "checkpoint_seconds=0.0001", *where])


def outcome(suite: SuiteConfig) -> pd.DataFrame:
    """Train one run of `suite` to the end; its curve."""
    run = suite.point(64, 0.5, 0)
    record = RunRecord(suite.records / run.run_id)
    train_one(suite, run, record)
    found = record.read()
    assert found is not None
    return found[2].drop(columns="seconds")


@pytest.mark.parametrize("leave", [0, 4096, 8192, 20480])
def test_a_full_disk_loses_the_run_and_nothing_else(disk, tmp_path, leave):
    """Whichever file it is that doesn't fit: config, curve, checkpoint, summary."""
    truth = outcome(suite_in(tmp_path))
    suite = suite_in(disk)
    run_id = suite.point(64, 0.5, 0).run_id
    fill(disk, leave)
    with pytest.raises(UserError, match="No space left"):
        outcome(suite)
    assert RunRecord(suite.records / run_id).read() is None
    remount(disk, "size=8m")
    pd.testing.assert_frame_equal(outcome(suite), truth, check_exact=True)


def test_a_full_disk_leaves_the_tables_as_they_were(disk, tmp_path):
    suite = replace(suite_in(tmp_path), results=str(disk))
    outcome(suite)
    with pytest.raises(UserError, match=r"parquet: No space left"):
        fill(disk, 0)
        collect(suite)
    (disk / "ballast").unlink()
    assert not list(suite.tables.glob("*.parquet"))
    assert collect(suite) == 1


def test_a_full_disk_ends_a_sweep_with_one_line(disk, tmp_path):
    """Before it begins, and where every run dies of it without a word."""
    sweep = Sweep(replace(suite_in(tmp_path), runs=str(disk)))
    with pytest.raises(UserError, match="No space left"):
        train_wanted(sweep, [max(sweep.wanted())], lambda shares: fill(disk, 0) and None)
    with pytest.raises(UserError, match="No space left"):
        check_writable(disk / "records")


def test_a_full_disk_anywhere_else_is_one_line_too(capsys):
    def write() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/runs/x")

    assert told(write) == 2
    assert capsys.readouterr().err.startswith("/runs/x: No space left on device; finished runs are kept")


@pytest.mark.parametrize("leave", [0, 4096, 16384])
def test_a_full_disk_under_the_cache_of_texts(disk, monkeypatch, leave):
    """Whichever file it is that doesn't fit; what was begun makes room again."""
    pytest.importorskip("tokenizers", reason="make setup TASK=lm installs tokenizers")
    monkeypatch.setenv("NOISESCALE_CACHE", str(disk))
    fill(disk, leave)
    with pytest.raises(UserError, match=r"/text/embedded-512-.*: No space left on device; make room"):
        open_corpus("embedded", 512)
    assert not list(disk.rglob("*.aside"))
    remount(disk, "size=64m")
    assert len(open_corpus("embedded", 512).train) > 10_000


def test_a_cache_that_cannot_be_written_is_one_message(disk, monkeypatch):
    pytest.importorskip("tokenizers", reason="make setup TASK=lm installs tokenizers")
    monkeypatch.setenv("NOISESCALE_CACHE", str(disk / "cache"))
    remount(disk, "ro")
    with pytest.raises(UserError, match=r"/cache/text.*: Read-only file system; .*NOISESCALE_CACHE"):
        open_corpus("embedded", 512)


@pytest.mark.slow
def test_a_folder_that_is_read_only_is_one_message(local, disk, tmp_path):
    remount(disk, "size=8m")
    remount(disk, "ro")
    process = start(disk)
    out, _ = process.communicate(timeout=280)
    assert process.returncode == 2 and "Read-only file system" in out and "Traceback" not in out
    remount(disk, "rw")
    sweep(disk)
    same(local, disk)


def test_a_run_that_must_leave_saves_itself_first(tmp_path, monkeypatch):
    """As submitit asks it to: by a signal whose handler ends the process."""
    truth = outcome(suite_in(tmp_path / "truth"))
    suite = replace(suite_in(tmp_path), checkpoint_seconds=3600.0)
    run = suite.point(64, 0.5, 0)
    record = RunRecord(suite.records / run.run_id)
    train_step = Trainer.train_step

    def asked_at_step_40(self):
        if self.step == 40:
            os.kill(os.getpid(), signal.SIGUSR2)
        train_step(self)

    monkeypatch.setattr(Trainer, "train_step", asked_at_step_40)
    before = signal.signal(signal.SIGUSR2, lambda number, frame: sys.exit(number))
    try:
        with pytest.raises(SystemExit, match=str(int(signal.SIGUSR2))):
            train_one(suite, run, record)
    finally:
        signal.signal(signal.SIGUSR2, before)
    state = record.load_checkpoint(CPU)
    assert record.read() is None and state is not None and state["step"] == 41
    pd.testing.assert_frame_equal(outcome(suite), truth, check_exact=True)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # time may be up between `open` and its `with`
def test_a_run_over_its_time_ends_and_goes_on_later(tmp_path):
    truth = outcome(suite_in(tmp_path / "truth"))
    suite = suite_in(tmp_path)
    short = replace(suite, cluster=replace(suite.cluster, run_seconds=0.02))
    with pytest.raises(OverTimeError, match=r"0\.02 seconds \(cluster.run_seconds\)"):
        outcome(short)
    pd.testing.assert_frame_equal(outcome(suite), truth, check_exact=True)


def _stuck(folder: str) -> None:
    """Where no exception gets: a C mutex that is locked twice."""
    import experiments.training.time_limit

    experiments.training.time_limit.GRACE = 0.2
    with time_limit(0.2, RunRecord(Path(folder)).fail):
        libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)


@pytest.mark.slow
def test_a_run_that_hangs_outside_python_ends_with_its_process(tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=_stuck, args=(str(tmp_path),))
    process.start()
    process.join(60)
    assert process.exitcode == 1
    assert "over its 0.2 seconds" in (tmp_path / "error.txt").read_text()


@pytest.mark.slow
def test_a_sweep_of_runs_over_their_time_names_them_and_heals(local, tmp_path):
    process = start(tmp_path, "cluster.run_seconds=0.001")
    out, _ = process.communicate(timeout=280)
    assert process.returncode == 2 and "Traceback" not in out
    assert out.count("over its 0.001 seconds") >= 6 and "batch_size=64" in out
    sweep(tmp_path)
    same(local, tmp_path)


@pytest.mark.slow
def test_a_run_without_memory_fails_alone(tmp_path):
    """2³⁰ examples of 128 numbers are half a terabyte."""
    huge = 1 << 30
    out = sweep(tmp_path, f"sweep.batch_sizes=[16,64,{huge}]", "sweep.steps_budget=40")
    assert f"batch_size={huge}" in out and "memory" in out
    assert set(tables(tmp_path)[0]["batch_size"]) == {16, 64}


def test_a_run_that_ends_its_process_costs_the_others_of_its_share_nothing(tmp_path):
    """The longest run goes first, so the one without memory is in front of all others."""
    tiny = ["sweep.batch_sizes=[16,64]", "sweep.points=1", "sweep.widen=0", "sweep.seeds=1", "task.dim=100"]
    suite = load([*SMALL, *tiny, f"runs={tmp_path}/runs", f"results={tmp_path}/results", "cluster.job_seconds=1e6"])
    sweep = Sweep(suite)
    points = sweep.wanted()
    culprit = max(points)

    def launch(shares: list[list[Point]]) -> None:
        for share in shares:
            for point in sorted(share, key=lambda point: point != culprit):
                if point == culprit:
                    break
                run = suite.point(*point)
                train_one(suite, run, RunRecord(suite.records / run.run_id))

    train_wanted(sweep, points, launch)
    assert set(sweep.failed) == {culprit}
    assert set(points) - {culprit} <= set(sweep.finished)


def _train(folder: str, log: str) -> None:
    whole = Trainer.run

    def noted(self, *rest):
        with open(log, "a") as file:
            file.write(f"{os.getpid()}\n")
        return whole(self, *rest)

    Trainer.run = noted
    outcome(suite_in(Path(folder)))


@pytest.mark.slow
def test_two_processes_train_a_run_once(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    pair = [spawn.Process(target=_train, args=(str(tmp_path), str(tmp_path / "log"))) for _ in range(2)]
    for process in pair:
        process.start()
    for process in pair:
        process.join(120)
        assert process.exitcode == 0
    assert len((tmp_path / "log").read_text().splitlines()) == 1


@pytest.mark.slow
def test_two_sweeps_on_one_folder_share_the_work(local, tmp_path):
    pair = [start(tmp_path), start(tmp_path)]
    for process in pair:
        out, _ = process.communicate(timeout=280)
        assert process.returncode == 0, out
    same(local, tmp_path)


def test_a_second_driver_on_slurm_is_told_of_the_first(tmp_path):
    with only_driver(tmp_path):
        first = f"process {os.getpid()} on .* drives this sweep"
        with pytest.raises(UserError, match=first), only_driver(tmp_path):
            pass
    with only_driver(tmp_path):
        pass


@pytest.mark.slow
def test_a_clock_that_is_set_back_changes_nothing(local, tmp_path):
    if shutil.which("faketime") is None:
        pytest.skip("faketime isn't installed")
    process = start(tmp_path)
    while not list((tmp_path / "runs" / SWEEP).glob("*/summary.json")):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    back = ["faketime", "-f", "-1d", *command(tmp_path)]
    done = subprocess.run(back, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    same(local, tmp_path)


@pytest.mark.slow
def test_the_death_of_wandb_costs_no_run_and_heals(local, tmp_path):
    process = start(tmp_path, WANDB_MODE="offline")
    killed = 0
    while process.poll() is None:
        either = f"wandb-core|experiments.wandb.mirror {tmp_path}"
        found = subprocess.run(["pgrep", "-f", either], capture_output=True, text=True)
        ours = [int(pid) for pid in found.stdout.split() if str(tmp_path) in _command_line(int(pid))]
        for pid in ours:
            os.kill(pid, signal.SIGKILL)
            killed += 1
        time.sleep(0.2)
    out, _ = process.communicate(timeout=280)
    assert killed and process.returncode == 0, out
    same(local, tmp_path)
    sweep(tmp_path, WANDB_MODE="offline")
    runs = len(tables(tmp_path)[0])
    end = time.monotonic() + 200  # it works on in the background, at the lowest priority
    while len(list((tmp_path / "runs" / SWEEP).glob("*/mirrored"))) < runs and time.monotonic() < end:
        time.sleep(1)
    assert {path.read_text() for path in (tmp_path / "runs" / SWEEP).glob("*/mirrored")} == {"done\n"}


def _command_line(pid: int) -> str:
    """Of a process and its parents."""
    lines = []
    while pid > 1:
        try:
            lines.append(Path(f"/proc/{pid}/cmdline").read_text())
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return " ".join(lines)


def test_a_strangers_records_are_safe_to_collect(tmp_path, capsys):
    """Nothing in them is executed; what isn't one of our runs is named and left out."""

    class Evil:
        def __reduce__(self):
            return (Path(tmp_path / "executed").touch, ())

    suite = suite_in(tmp_path)
    outcome(suite)
    (mine,) = suite.records.glob("*-*")
    for name in ("checkpoint.pt", "mirrored", "lock", "error.txt"):
        torch.save({"step": Evil()}, mine / name)
    renamed = suite.records / "quadratic-0123456789abcdef"
    shutil.copytree(mine, renamed)
    foreign = suite.records / "else-0123456789abcdef"
    shutil.copytree(mine, foreign)
    config = (foreign / "config.json").read_text().replace('"quadratic"', '"else"')
    (foreign / "config.json").write_text(config)
    record = RunRecord(foreign)
    record.finish([], [], {"status": "reached"})
    assert collect(suite) == 1
    said = capsys.readouterr().out
    assert renamed.name in said and foreign.name in said
    assert not (tmp_path / "executed").exists()


@pytest.mark.slow
def test_secrets_reach_no_record_table_or_log(local):
    files = [path for path in local.rglob("*") if path.is_file()]
    assert len(files) > 30
    for path in files:
        assert not any(secret.encode() in path.read_bytes() for secret in SECRETS.values()), path


def test_nothing_that_is_read_back_can_execute_code():
    """`torch.load` takes `weights_only`, NumPy and YAML no objects; what is pickled goes through pipes alone."""
    calls = {"torch.load": "weights_only=True", "np.load": "allow_pickle=False"}
    refused = {
        "eval",
        "exec",
        "pickle.load",
        "pickle.loads",
        "joblib.load",
        "yaml.load",
        "yaml.unsafe_load",
        "__import__",
    }
    pipes = {("local_pool.py", "cloudpickle.loads")}
    seen = set()
    for path in [*ROOT.glob("experiments/**/*.py"), *ROOT.glob("noisescale/**/*.py"), *ROOT.glob("hydra_plugins/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name, arguments = ast.unparse(node.func), {ast.unparse(keyword) for keyword in node.keywords}
                assert name not in refused, f"{path}:{node.lineno}"
                assert name not in calls or calls[name] in arguments, f"{path}:{node.lineno}"
                assert not name.endswith("pickle.loads") or (path.name, name) in pipes, f"{path}:{node.lineno}"
                seen.add(name)
    assert set(calls) <= seen


KILLS = int(os.environ.get("NOISESCALE_KILLS", "6"))


def reaches(process: subprocess.Popen[str], folder: Path, changes: int, delay: float) -> bool:
    """Wait until `changes` files below `folder` are new, and `delay` seconds more; False if the process ends first."""

    def state() -> set[tuple[str, int]]:
        return {(entry.path, entry.inode()) for place in folder.rglob("*/") for entry in os.scandir(place)}

    before = state()
    while process.poll() is None and len(state() - before) < changes:
        time.sleep(0.01)
    end = time.monotonic() + delay
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    return process.poll() is None


@pytest.mark.slow
@pytest.mark.timeout(120 + 60 * KILLS)
def test_kills_anywhere_lose_no_run_and_change_no_row(local, tmp_path):
    """NOISESCALE_KILLS (6) times the driver, a worker or all of a sweep is killed, in as many sweeps as that takes."""
    draw, kills, sweeps = random.Random(KILLS), 0, 0
    while kills < KILLS:
        folder = tmp_path / str(sweeps)
        folder.mkdir()
        for _ in range(100):
            process = start(folder)
            while kills < KILLS and reaches(process, folder, draw.randrange(12), draw.uniform(0, 0.5)):
                group = subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True, text=True).stdout
                victim = draw.choice(["driver", "one", "one", "all"])
                with suppress(ProcessLookupError):
                    if victim == "all":
                        os.killpg(process.pid, signal.SIGKILL)
                    else:
                        os.kill(process.pid if victim == "driver" else int(draw.choice(group.split())), signal.SIGKILL)
                kills += 1
            out = process.communicate(timeout=600)[0]
            if process.returncode == 0 and "failed:" not in out:
                break
        same(local, folder)
        shutil.rmtree(folder)
        sweeps += 1
        print(f"{kills} kills, {sweeps} sweeps", flush=True)
