"""One report against papermill on a notebook with the same imports and as many empty figures.

Both are whole processes that run papermill in themselves; the yardstick writes no HTML.
"""

import json
import sys
import tempfile
from pathlib import Path

import nbformat
from timing import command, compare

ROOT = Path(__file__).resolve().parent.parent.parent
TEMPLATE = ROOT / "notebooks/tuning_report.ipynb"


def yardstick(folder: Path) -> Path:
    """A notebook with the template's import cell and an empty figure for each of its figures."""
    template = nbformat.read(TEMPLATE, as_version=4)
    code = [cell.source for cell in template.cells if cell.cell_type == "code"]
    figures = sum(source.count("figure(") + source.count("subplots(") for source in code)
    imports = next(source for source in code if "import" in source)
    notebook = nbformat.v4.new_notebook(
        metadata=template.metadata,
        cells=[nbformat.v4.new_code_cell(imports)]
        + [
            nbformat.v4.new_code_cell(
                "import matplotlib.pyplot as plt\nfigure = plt.subplots(figsize=(7, 3.4))"
            )
            for _ in range(max(figures, 1))
        ],
    )
    path = folder / "empty.ipynb"
    path.write_text(json.dumps(notebook))
    return path


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        empty = yardstick(folder)
        run_empty = (
            "import papermill; papermill.execute_notebook("
            f"{str(empty)!r}, {str(folder / 'out.ipynb')!r}, progress_bar=False)"
        )
        compare(
            "report",
            command(
                sys.executable,
                "-m",
                "vllm_tuning",
                "report",
                "llama-3-8b-2-layers",
                "--input-len",
                "1024",
                "--output-len",
                "256",
                "-o",
                name,
            ),
            command(sys.executable, "-W", "ignore", "-c", run_empty),
            limit=1.5,
            turns=5,
        )
