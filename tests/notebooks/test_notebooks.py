"""The teaching notebooks: run once, text as it is stored and pictures the same; thin cells."""

import ast
import shutil
import statistics
import subprocess
import sys

import nbformat
import pytest
from conftest import ROOT

NOTEBOOKS = sorted(ROOT.glob("notebooks/[0-9]*.ipynb"))
QUICKEST = ROOT / "notebooks/02_explorer.ipynb"
every = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def run(*args):
    done = subprocess.run([sys.executable, *args], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="module")
def again(tmp_path_factory):
    """A folder of the notebooks as ``make notebooks`` writes them; an error in a cell ends it."""
    folder = tmp_path_factory.mktemp("notebooks")
    run("notebooks/execute.py", *(shutil.copy(path, folder) for path in NOTEBOOKS))
    return folder


@every
def test_running_it_again_leaves_the_same_bytes(path, again):
    """Of text, outputs and all else; but a picture is compared as in test_kept_pictures."""
    code = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert any(cell.outputs for cell in code), "without outputs nothing is compared"
    assert (again / path.name).read_bytes() == path.read_bytes(), "make notebooks writes them again"


def test_nbval_agrees():
    """All that nbval compares, the test above does too; one notebook shows that it still runs."""
    run("-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider", QUICKEST)


@every
def test_cells_are_thin(path):
    cells = nbformat.read(path, 4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    imports = [
        i
        for i, source in enumerate(code)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    assert set(imports) == {0} and len(code) <= 24
    assert statistics.median(len(source.splitlines()) for source in code) <= 5
    assert sum("parameters" in cell.metadata.get("tags", ()) for cell in cells) == 1
