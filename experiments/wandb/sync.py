"""Finished offline runs to Weights & Biases: `python -m experiments.cli.wandb_sync task=digits preset=small`.

W&B's own `wandb sync` sends them and marks what has arrived, so this can be repeated and interrupted. A run that was
mirrored in several pieces (its sweep was stopped) is sent once, from the last piece, which holds all of it.
"""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from experiments.errors import UserError

AT_ONCE = 50
ANSWER = 10.0
SECONDS_A_RUN = 60.0


def unsent(records: Path) -> list[Path]:
    """Folders of offline runs that are finished and not yet sent, the last one of each run, oldest first."""
    last: dict[str, Path] = {}
    for folder in sorted(records.glob("wandb/offline-run-*-*")):
        run_id = folder.name.split("-", 3)[3]
        if is_mirrored(records / run_id):
            last[run_id] = folder
    return [folder for folder in last.values() if not is_sent(folder)]


def unmirrored(records: Path) -> int:
    """How many finished runs W&B's client hasn't been given whole: its process is behind, was stopped, or failed."""
    return sum(not is_mirrored(summary.parent) for summary in records.glob("*-*/summary.json"))


def is_mirrored(record: Path) -> bool:
    """By the mark that the mirror leaves."""
    mark = record / "mirrored"
    return mark.exists() and mark.read_bytes().startswith(b"done")


def is_sent(folder: Path) -> bool:
    """By the mark that `wandb sync` leaves."""
    return any(folder.glob("*.wandb.synced"))


def check_reachable() -> None:
    """`UserError` where there is no key, or no server that works: `wandb sync` would wait for it for hours."""
    import wandb

    settings = wandb.setup(wandb.Settings(mode="online", silent=True)).settings
    if not wandb.login(prompt=False, verify=False):
        raise UserError("W&B knows no key here; run `.venv/bin/wandb login` or set WANDB_API_KEY, then this again")
    _ask(settings.base_url)


def _ask(server: str) -> None:
    import requests

    try:
        answer = requests.post(f"{server}/graphql", json={"query": "{ __typename }"}, timeout=ANSWER)
        if answer.status_code >= 500:  # below, it is there, whatever it says to a question without a key
            answer.raise_for_status()
    except requests.RequestException as error:
        raise UserError(f"W&B at {server}: {error}; nothing was sent and nothing is lost") from None


def sync(records: Path) -> tuple[int, int]:
    """(sent, left); what W&B says goes to `wandb-sync.log` among the records."""
    folders = unsent(records)
    if folders:
        check_reachable()
    with open(records / "wandb-sync.log", "a") if folders else open(os.devnull, "w") as log:
        for start in range(0, len(folders), AT_ONCE):
            part = [str(folder) for folder in folders[start : start + AT_ONCE]]
            command = [sys.executable, "-m", "wandb", "sync", "--yes", *part]
            with suppress(subprocess.TimeoutExpired):  # it tries again for hours; so do we, when asked
                limit = SECONDS_A_RUN * (1 + len(part))
                subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=limit)
            sent = sum(is_sent(folder) for folder in folders)
            print(f"{sent} of {len(folders)} runs sent", flush=True)
    sent = sum(is_sent(folder) for folder in folders)
    return sent, len(folders) - sent
