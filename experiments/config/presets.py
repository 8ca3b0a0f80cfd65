"""Where the YAML lies, and which presets a task has."""

from pathlib import Path

from experiments.tasks import TASKS

CONFIGS = Path(__file__).parents[2] / "configs"


def task_and_preset(name: str) -> tuple[str, str]:
    """The two of a file in `configs/task_preset/`."""
    task = max((task for task in TASKS if name.startswith(f"{task}_")), key=len)
    return task, name.removeprefix(f"{task}_")
