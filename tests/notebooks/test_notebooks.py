"""The teaching notebooks: strict outputs, the same bytes when run again, thin cells."""

import ast
import statistics
import subprocess
import sys

import nbformat
import pytest
from conftest import ROOT

NOTEBOOKS = sorted(ROOT.glob("notebooks/[0-9]*.ipynb"))
every = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def run(*args):
    done = subprocess.run([sys.executable, *args], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@every
def test_outputs_are_those_that_are_kept(path):
    code = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert any(cell.outputs for cell in code), "without outputs nbval compares nothing"
    run("-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider", path)


@every
def test_running_it_again_leaves_the_same_bytes(path, tmp_path):
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    run("notebooks/execute.py", copy)
    assert copy.read_bytes() == path.read_bytes(), "make notebooks writes them again"


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
    assert set(imports) == {0} and len(code) <= 20
    assert statistics.median(len(source.splitlines()) for source in code) <= 5
    assert sum("parameters" in cell.metadata.get("tags", ()) for cell in cells) == 1
