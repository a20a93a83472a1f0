"""The report: the run of the template notebook for one model or many, and its page.

``write_report`` runs ``tuning_report.ipynb`` by papermill in this process, on a kernel of this very
interpreter, and makes an HTML page of it that needs no network. The same data give the same bytes:
of a page that is there, a picture stays where only the processor's rounding would change it.
"""

import itertools
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from ..answer import Answer, find_optimum, model_of
from ..load import check
from ..reading import (
    ScrapeSeries,
    locate,
    read_load_runs,
    read_scrapes,
    read_source,
    write_whole,
)
from ..scheduler import throughput_of
from ..units import InputError
from ..workload import Workload

HERE = Path(__file__).parent.parent
NOTEBOOKS = (HERE if (HERE / "notebooks").is_dir() else HERE.parent) / "notebooks"
TEMPLATE = NOTEBOOKS / "tuning_report.ipynb"
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: vLLM tuning report</title>
<style>{css}</style></head><body><main>
{body}</main></body></html>
"""


@dataclass(frozen=True)
class Report:
    """One written report: the executed notebook, its page, and the answer that they show."""

    notebook: Path
    html: Path
    optimum: Answer = field(repr=False)


def write_report(
    launches, input_len, output_len, out_dir, config=None, name=None, metrics=(), load_runs=()
) -> Report:
    """Write OUT/NAME.ipynb and OUT/NAME.html for the launches of one model.

    launches: a launches.csv, a folder of one, a carried set, a log, or a list of those that are one
    fit. Lengths in tokens. metrics, load_runs: files of the section under load. NAME:
    ``name``, else a launches.csv's folder, the model of several logs,
    or the file's stem. Raises InputError for bad input, before a kernel starts, and where the
    notebook fails: it stays alone.
    """
    return next(
        write_reports([launches], input_len, output_len, out_dir, config, name, metrics, load_runs)
    )


def write_reports(
    models, input_len, output_len, out_dir, config=None, name=None, metrics=(), load_runs=()
) -> Iterator[Report]:
    """``write_report`` for many, all read and fitted before one is run; an equal name gets -2.

    Each is yielded once it is written: both of its files, or none.
    """
    import nbformat

    from ..figures import keep_pictures

    try:
        workload = Workload(input_len, output_len)
    except ValueError as error:
        raise InputError(str(error)) from None
    models = [[one] if isinstance(one, (str, os.PathLike)) else list(one) for one in models]
    optima = [find_optimum(model_of(sources, config), workload) for sources in models]
    if metrics or load_runs:
        _check_load(models, optima, metrics, load_runs)
    try:
        Path(out_dir).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out_dir).close()
    except OSError as error:
        raise InputError(f"{out_dir}: no folder to write to: {error.strerror}") from None
    reports = set()
    for sources, optimum in zip(models, optima, strict=True):
        paths = [Path(os.path.abspath(locate(source))) for source in sources]
        base = paths[0].parent.parent  # the kernel's folder: nothing shown depends on where it lies
        shown = [path.parent if path.name == "launches.csv" else path for path in paths]
        own = name or _own_name(sources, shown)
        stem = next(
            stem
            for i in range(1, len(optima) + 1)
            if (stem := own.replace(os.sep, "-") + f"-{i}" * (i > 1)).casefold() not in reports
        )
        done = Report(Path(out_dir, f"{stem}.ipynb"), Path(out_dir, f"{stem}.html"), optimum)
        if folders := [path for path in (done.notebook, done.html) if path.is_dir()]:
            raise InputError(f"{folders[0]}: is a folder; the report needs this name")
        names = [os.path.relpath(path, base) for path in shown]
        notebook = run_template(
            done.notebook,
            base,
            {
                "launches": names if len(names) > 1 else names[0],
                "name": name or stem,
                "input_len": input_len,
                "output_len": output_len,
                "config": os.path.relpath(config, base) if config else "",
                **{
                    kind: [os.path.relpath(file, base) for file in files]
                    for kind, files in (("metrics", metrics), ("load_runs", load_runs))
                    if files
                },
            },
        )
        text = nbformat.writes(notebook) + "\n"
        page = to_page(notebook, stem)
        for path, new in ((done.notebook, text), (done.html, page)):
            write_whole(path, keep_pictures(new, _lies_at(path)))
        reports.add(stem.casefold())
        yield done


def _lies_at(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return ""  # none, or another's


def _check_load(models, optima, metrics, load_runs) -> None:
    """What is wrong with the files of the load, before a kernel starts. Raises InputError."""
    if len(models) > 1:
        raise InputError("metrics and load runs are of one server; report its launches alone")
    if load_runs:
        throughput_of(optima[0], read_load_runs(load_runs), above=False)
    if metrics:
        check(ScrapeSeries(tuple(read_scrapes(metrics))))


def _own_name(sources, shown: list[Path]) -> str:
    if len(shown) > 1:
        models = {launch.model for source in sources for launch in read_source(source)}
        if len(models) == 1 and (model := models.pop()):
            return model.rstrip("/").rpartition("/")[2]
    first = shown[0]
    return first.name if first.is_dir() else Path(first.name.removesuffix(".gz")).stem or "launches"


def run_template(out: Path, folder: Path, parameters: dict):
    """The template run in ``folder``; where it fails, ``out`` is what papermill wrote of it."""
    import papermill
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    with tempfile.TemporaryDirectory() as scratch:
        executed = Path(scratch, "executed.ipynb")
        env = {
            "IPYTHONDIR": scratch,
            "TMPDIR": scratch,
            "PYTHONSTARTUP": "",
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        }

        class OwnKernel(AsyncKernelManager):
            kernel_spec = KernelSpec(**get_kernel_dict(["--log-level=CRITICAL"]), env=env)
            transport_encryption = "auto"  # a kernel in the clear warns

        try:
            notebook = papermill.execute_notebook(
                str(TEMPLATE),
                str(executed),
                parameters,
                cwd=str(folder),
                progress_bar=False,
                record_timing=False,
                kernel_manager_class=OwnKernel,
                shutdown_kernel="immediate",
            )
        except Exception as error:
            if executed.exists():
                write_whole(out, executed.read_text("utf-8"))
            out.with_suffix(".html").unlink(missing_ok=True)  # it would belong to another run
            kind = getattr(error, "ename", type(error).__name__)
            failure = " ".join(f"{kind}: {getattr(error, 'evalue', error)}".split())
            raise InputError(f"{out}: the notebook failed: {failure}") from None
    notebook.cells = [
        cell
        for cell in notebook.cells
        if cell.get("outputs") or "if-any" not in cell.metadata.get("tags", [])
    ]
    notebook.metadata = {
        "kernelspec": notebook.metadata.kernelspec,
        "language_info": {"name": "python"},
        "papermill": {"parameters": parameters},
    }
    count = itertools.count(1)
    for i, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{i}", {"tags": cell.metadata.get("tags", [])}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            cell.execution_count = next(count)
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = cell.execution_count
    return notebook


def to_page(notebook, title: str) -> str:
    """One HTML page of an executed notebook: no code, formulas as MathML, nothing to fetch."""
    from latex2mathml.converter import convert
    from nbconvert import HTMLExporter

    def typeset(match):
        formula = convert((match[1] or match[2]).strip(), display="block" if match[1] else "inline")
        return re.sub(' xmlns="[^"]*"', "", formula).replace("*", "&#42;")  # no markdown inside

    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"\$\$(.+?)\$\$|\$(.+?)\$", typeset, cell.source, flags=re.DOTALL)
    body, _ = HTMLExporter(
        template_name="basic", exclude_input=True, exclude_output_prompt=True, anchor_link_text=""
    ).from_notebook_node(notebook)
    return PAGE.format(
        title=escape(title), css=Path(__file__).with_name("page.css").read_text("utf-8"), body=body
    )
