"""The complaints of Hydra and pydantic as a user's own: key, value, and what would be allowed."""

import difflib
import re
from collections.abc import Sequence
from typing import Any

from hydra import compose
from omegaconf import DictConfig, OmegaConf

from experiments.config.presets import CONFIGS, presets


def explain_field(detail: Any) -> str:
    """One line for one of pydantic's errors: key, value, what would be allowed."""
    place = [str(part) for part in detail["loc"]]
    key = ".".join(place[1:] if place[:1] == ["run"] else place)
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "unexpected_keyword_argument":
        return f"{key}: no such key"
    if detail["type"] in ("missing", "missing_argument"):
        return f"{key}: missing"
    value = detail["input"]
    if detail["type"] == "tuple_type":
        return f"{key}={value!r}: allowed: a list, such as {key}=[{value}]"
    if detail["type"] in ("dataclass_type", "dataclass_exact_type"):
        return f"{key}={value!r}: {key} has keys of its own; set {key}.name=… or another of them"
    shown = "" if isinstance(value, dict) or not isinstance(value, int | float | str | bool | None) else f"={value!r}"
    return f"{key}{shown}: {message[:1].lower()}{message[1:]}"


def explain(error: Exception, overrides: Sequence[str]) -> str:
    """Hydra's complaint in one or two lines, with the nearest names that would be allowed."""
    text = " ".join(str(error).split())
    missing = re.search(r"In '[^']*': Could not find '([^']+)'", text) or re.search(r"Could not find '([^']+)'", text)
    if missing:
        group, _, option = missing.group(1).rpartition("/")
        if group.startswith("task/"):
            task = group.removeprefix("task/")
            return f"preset={option}: {task} has no such preset; allowed: {', '.join(presets(task))}"
        allowed = sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))
        return f"{group}={option}: no such choice; allowed: {', '.join(allowed)}"
    key = re.search(r"Could not override '([^']+)'|Key '([^']+)' is not in struct", text)
    if key:
        name = key.group(1) or key.group(2)
        chosen = [o for o in overrides if o.split("=")[0] in ("task", "preset", "cluster", "sweep")]
        base = compose("config", chosen, return_hydra_config=True)
        parent = OmegaConf.select(base, name.rpartition(".")[0]) if "." in name else base
        if not isinstance(parent, DictConfig):
            name, parent = name.partition(".")[0], base
        known = [str(k) for k in parent if k not in ("hydra", "_target_")]
        near = difflib.get_close_matches(name.rpartition(".")[2], known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        return f"{name}: no such key; {hint}allowed: {', '.join(known)}"
    return f"{text}: {str(error.__cause__).splitlines()[0]}" if str(error.__cause__ or "") else text
