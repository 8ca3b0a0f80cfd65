"""Finished offline runs to Weights & Biases: `python -m experiments.wandb_sync task=digits preset=small`.

W&B's own `wandb sync` sends them and marks what has arrived, so this can be repeated and interrupted. A run that was
mirrored in several pieces (its sweep was stopped) is sent once, from the last piece, which holds all of it.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from experiments.config import load
from experiments.errors import UserError

AT_ONCE = 50


def unsent(records: Path) -> list[Path]:
    """Folders of offline runs that are finished and not yet sent, the last one of each run, oldest first."""
    last: dict[str, Path] = {}
    for folder in sorted(records.glob("wandb/offline-run-*-*")):
        run_id = folder.name.split("-", 3)[3]
        mark = records / run_id / "mirrored"
        if mark.exists() and mark.read_text().startswith("done"):
            last[run_id] = folder
    return [folder for folder in last.values() if not is_sent(folder)]


def is_sent(folder: Path) -> bool:
    """By the mark that `wandb sync` leaves."""
    return any(folder.glob("*.wandb.synced"))


def check_reachable() -> None:
    """`UserError` where there is no key, or no server: `wandb sync` would wait for it for hours."""
    import wandb

    settings = wandb.setup().settings
    if not wandb.api.api_key:
        raise UserError("W&B knows no key here; run `.venv/bin/wandb login` or set WANDB_API_KEY, then this again")
    url = urlsplit(settings.base_url)
    try:
        socket.create_connection((url.hostname, url.port or (443 if url.scheme == "https" else 80)), timeout=10).close()
    except OSError as error:
        raise UserError(f"W&B at {url.geturl()}: {error}; nothing was sent and nothing is lost") from None


def sync(records: Path) -> tuple[int, int]:
    """(sent, left); what W&B says goes to `wandb-sync.log` among the records."""
    folders = unsent(records)
    if folders:
        check_reachable()
    with open(records / "wandb-sync.log", "a") if folders else open(os.devnull, "w") as log:
        for start in range(0, len(folders), AT_ONCE):
            part = [str(folder) for folder in folders[start : start + AT_ONCE]]
            command = [sys.executable, "-m", "wandb", "sync", "--yes", *part]
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            sent = sum(is_sent(folder) for folder in folders)
            print(f"{sent} of {len(folders)} runs sent", flush=True)
    sent = sum(is_sent(folder) for folder in folders)
    return sent, len(folders) - sent


def main() -> int:
    """Of the sweep that the overrides name."""
    try:
        suite = load(sys.argv[1:])
        sent, left = sync(suite.records)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(
        f"{suite.name}: {sent} runs sent to W&B, {left} left" + (f" ({suite.records}/wandb-sync.log)" if left else "")
    )
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
