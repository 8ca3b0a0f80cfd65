"""The notebooks run, what they print is what is committed, and they stay small."""

import runpy
import warnings
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
EXECUTE = runpy.run_path(str(FOLDER / "execute.py"))
LARGEST = 600_000


def test_there_are_four():
    assert [path.stem[0] for path in NOTEBOOKS] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_open_with_their_outputs_and_nothing_that_changes(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < LARGEST
    assert notebook.metadata == EXECUTE["METADATA"]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)
    for cell in code:
        assert "execution" not in cell.metadata
        assert all(output.output_type != "error" and output.get("name") != "stderr" for output in cell.outputs)


@pytest.mark.slow
@pytest.mark.timeout(900)  # ten seconds of work, and a kernel to start on a machine that may be busy
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_executing_gives_the_committed_text(path):
    """Where it fails after a sweep or an analysis was renewed: `make notebooks`, and look at what changed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Jupyter's own
        fresh = EXECUTE["executed"](path)
    committed = nbformat.read(path, as_version=4)
    assert dict(EXECUTE["texts"](fresh)) == dict(EXECUTE["texts"](committed))
