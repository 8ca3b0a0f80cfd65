"""The tree is the map: folders import in one direction, modules in no circle, each says what belongs there, and what
texts name is there."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Each imports what stands before it in its package, and of `noisescale` all that is wanted; never what comes after.
ORDER = {
    "noisescale": [
        "side_effects",
        "gradient_norms",
        "estimators",
        "long_run_covariance",
        "averaging",
        "preconditioning",
        "pareto",
        "formatting",
        "planning",
        "per_example",
        "curvature",
        "tracking",
        "integrations",
        "cli",
    ],
    "experiments": [
        "errors",
        "files",
        "data",
        "tasks",
        "config",
        "training",
        "tables",
        "analysis",
        "figures",
        "report",
        "wandb",
        "launch",
        "sweep",
        "single_run",
        "cli",
    ],
}


def modules(package: str) -> dict[str, Path]:
    """Dotted name → file."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: set[str]) -> Iterator[str]:
    """The modules among `known` that this one imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            assert node.level == 0, f"{path}: relative imports hide the folder"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from {name if name in known else node.module for name in whole}


@pytest.mark.parametrize("package", ORDER)
def test_folders_import_in_one_direction(package):
    order, known = ORDER[package], modules(package)
    places = {name.split(".")[1] for name in known if "." in name} - {"__main__"}
    assert places == set(order), "a new folder or top module has its place in ORDER"
    against = [
        f"{name} imports {other}"
        for name, path in known.items()
        if "." in name and name != f"{package}.__main__"
        for other in imported(path, set(known) - {package})
        if order.index(other.split(".")[1]) > order.index(name.split(".")[1])
    ]
    assert not against


def test_the_library_knows_nothing_of_the_experiments():
    known = set(modules("experiments"))
    assert not [name for name, path in modules("noisescale").items() if list(imported(path, known))]


def test_no_module_imports_in_a_circle():
    known = modules("noisescale") | modules("experiments")
    graph = {name: set(imported(path, set(known))) - {name, "noisescale"} for name, path in known.items()}
    TopologicalSorter({name: uses for name, uses in graph.items() if name != "noisescale"}).prepare()


@pytest.mark.parametrize("package", ORDER)
def test_every_module_says_what_it_is_and_every_folder_what_belongs_there(package):
    silent = [name for name, path in modules(package).items() if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not silent


def test_modules_that_texts_name_are_there():
    known = modules("noisescale") | modules("experiments")
    history = {"CHANGELOG.md", "log.md"}  # of when it was written
    patterns = ("*.md", "docs/*.md", "Makefile", "scripts/*", "configs/**/*.yaml", "benchmarks/*.py")
    named = {
        (path.name, name)
        for pattern in patterns
        for path in ROOT.glob(pattern)
        if path.name not in history
        for name in re.findall(r"\b(?:experiments|noisescale)(?:\.(?!md\b)[a-z]\w*)+", path.read_text(encoding="utf-8"))
    }

    def there(name: str) -> bool:
        module, _, attribute = name.rpartition(".")
        return name in known or (module in known and attribute in known[module].read_text(encoding="utf-8"))

    assert len(named) > 10 and not {(text, name) for text, name in named if not there(name)}
