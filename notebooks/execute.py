"""Run notebooks in place, leaving the same bytes each time they run.

python notebooks/execute.py notebooks/01_*.ipynb
"""

import sys
from pathlib import Path

import nbformat
from nbconvert.preprocessors import ExecutePreprocessor
from traitlets.config import Config

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

# A kernel in the clear warns on each start.
ENCRYPTED = Config(KernelManager={"transport_encryption": "auto"})


def execute(path):
    notebook = nbformat.read(path, as_version=4)
    ExecutePreprocessor(
        kernel_name="python3",
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        config=ENCRYPTED,
    ).preprocess(notebook, {"metadata": {"path": str(path.parent)}})

    # Drop the kernel's patch release, and the widgets, whose ids are new in each run.
    # (store_widget_state=False would break output widgets in the run itself.)
    notebook.metadata.language_info = {"name": "python"}
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET_VIEW, None)

    nbformat.write(notebook, path)


def main(names):
    if not names:
        print("There are no teaching notebooks yet.")
    for name in names:
        print(name, flush=True)
        execute(Path(name))


if __name__ == "__main__":
    main(sys.argv[1:])
