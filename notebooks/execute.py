"""Run notebooks in place, leaving the same bytes each time they run.

A picture stays the stored one where only the processor's rounding would change it.

    python notebooks/execute.py notebooks/01_*.ipynb
"""

import sys
from pathlib import Path

import nbformat
from nbconvert.preprocessors import ExecutePreprocessor
from traitlets.config import Config

from vllm_tuning.figures import keep_pictures
from vllm_tuning.reading import write_whole

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

# A kernel in the clear warns on each start.
ENCRYPTED = Config(KernelManager={"transport_encryption": "auto"})


def execute(path):
    stored = path.read_text("utf-8")
    notebook = nbformat.reads(stored, as_version=4)
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

    write_whole(path, keep_pictures(nbformat.writes(notebook) + "\n", stored))


def main(names):
    if not names:
        print("There are no teaching notebooks yet.")
    for name in names:
        print(name, flush=True)
        execute(Path(name))


if __name__ == "__main__":
    main(sys.argv[1:])
