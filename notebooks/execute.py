"""Run notebooks from top to bottom: `python notebooks/execute.py [from=FOLDER] [into=FOLDER] [name ...]`, from the
reference's tables or those below FOLDER, in place or into a folder; all of them, or those named.

Nothing that changes from run to run is kept: no times, no counters of the kernel's, no versions.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
VARIES = "varies"  # the tag of cells whose numbers depend on the machine: floating-point rounding, then training


def executed(path: Path) -> NotebookNode:
    """The notebook with the outputs of a fresh kernel. Raises nbclient's `CellExecutionError` where a cell fails."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(path, as_version=4)
    where, quiet = {"metadata": {"path": str(FOLDER)}}, ["--log-level=ERROR"]
    client = NotebookClient(notebook, timeout=600, record_timing=False, resources=where, extra_arguments=quiet)
    client.execute()
    notebook.metadata = NotebookNode(METADATA)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
    return notebook


def texts(notebook: NotebookNode) -> Iterator[tuple[str, str]]:
    """(cell id, all that it printed or displayed as text) of every cell that doesn't vary."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and VARIES not in cell.metadata.get("tags", []):
            yield cell.id, "".join(_text(output) for output in cell.outputs)


def _text(output: NotebookNode) -> str:
    if output.output_type == "stream":
        return output.text
    data = output.data
    return data.get("text/markdown", data["text/plain"]) + ("[picture]" if "image/png" in data else "")


def main(arguments: list[str]) -> int:
    """Run those named, or all."""
    given = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    names = [argument for argument in arguments if "=" not in argument]
    if "from" in given:
        os.environ["RESULTS"] = str(Path(given["from"]).resolve())  # the notebooks look there
    into = Path(given.get("into", FOLDER))
    into.mkdir(parents=True, exist_ok=True)
    paths = [FOLDER / f"{name.removesuffix('.ipynb')}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb"))
    for path in paths:
        nbformat.write(executed(path), into / path.name)
        print(into / path.name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
