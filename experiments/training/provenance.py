"""Where a run was made: written into its record, left out of its id."""

import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "numpy", "scipy")


@cache
def versions() -> str:
    """Of the packages that do the arithmetic."""
    return ", ".join(f"{name} {version(name)}" for name in PACKAGES)


@cache
def git_sha() -> str:
    """The commit of this code, with `+` where files have changed since; `unknown` outside a checkout."""
    where = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=where, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
