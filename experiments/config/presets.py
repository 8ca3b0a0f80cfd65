"""Where the YAML lies, and which presets a task has."""

from pathlib import Path

CONFIGS = Path(__file__).parents[2] / "configs"


def presets(task: str) -> list[str]:
    """The files in the task's folder `configs/task/<task>/`, without their ending, in alphabetical order."""
    return sorted(path.stem for path in (CONFIGS / "task" / task).glob("*.yaml"))
