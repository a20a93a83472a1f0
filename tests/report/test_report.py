"""The report as a reader meets it: notebook and page, from good input and from bad."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT
from test_load_check import DATA as LOADS
from test_verify import checked, optimum

from vllm_tuning.answer.models import by_model
from vllm_tuning.report import page as report
from vllm_tuning.report.page import write_report, write_reports
from vllm_tuning.units import InputError

SETS = ["llama-3-8b-2-layers", "qwen3.5-4b-a30"]
LOADED = re.compile(r"""(?:src|href)\s*=\s*(?!["'](?:data:|\#))|@import|url\((?!\#)""", re.I)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    return list(write_reports(SETS, 1024, 256, folder))


def test_each_model_has_a_notebook_and_a_page(written):
    assert [(done.notebook.name, done.html.name) for done in written] == [
        (f"{name}.ipynb", f"{name}.html") for name in SETS
    ]


def test_the_page_loads_nothing_and_typesets_its_formulas(written):
    for done in written:
        page = done.html.read_text()
        assert not LOADED.search(page), LOADED.search(page)
        assert page.count("<math") >= 10 and "$" not in re.sub(r"<[^>]*>", "", page)
        assert 'class="input' not in page and "model_of(" not in page
        assert str(ROOT) not in page and str(ROOT) not in done.notebook.read_text()
        assert len(page) < 1.5e6


def test_the_page_shows_the_answer_first(written):
    answer, open_question = (re.sub(r"<[^>]+>", " ", done.html.read_text()) for done in written)
    best = written[0].optimum.recommended
    flags = (
        f"--max-num-seqs {best.max_num_seqs} --max-num-batched-tokens {best.max_num_batched_tokens}"
    )
    assert answer.index(flags) < answer.index("Figure 1")
    assert f"max-num-seqs: {best.max_num_seqs}" in answer and f"{best.kv_cache_tokens:,}" in answer
    assert "No recommendation yet" in open_question and "111,280" in open_question
    for launch in written[1].optimum.model.next_launches:
        assert f"--max-num-seqs {launch.max_num_seqs} " in open_question
    assert len(written[1].optimum.model.next_launches) == 2


def test_the_page_gives_the_digest_of_its_data(written):
    for name, done in zip(SETS, written, strict=True):
        digest = hashlib.sha256((ROOT / "data" / name / "launches.csv").read_bytes()).hexdigest()
        assert digest in done.html.read_text()


def test_every_figure_is_drawn_and_described(written):
    page = written[0].html.read_text()
    images = re.findall(r'<img alt="([^"]+)" src="data:image/svg\+xml', page)
    assert len(images) == 6 and all(len(alt) > 20 for alt in images)


def test_the_same_data_give_the_same_bytes_with_or_without_the_cell_of_the_check_launch(
    written, tmp_path, monkeypatch
):
    """There is no check launch: as if the template had no such cell."""
    template = nbformat.read(report.TEMPLATE, as_version=4)
    template.cells = [cell for cell in template.cells if "check_launch" not in cell.source]
    assert len(template.cells) == len(nbformat.read(report.TEMPLATE, as_version=4).cells) - 1
    nbformat.write(template, tmp_path / "tuning_report.ipynb")
    monkeypatch.setattr(report, "TEMPLATE", tmp_path / "tuning_report.ipynb")
    again = write_report(SETS[0], 1024, 256, tmp_path / "again")
    assert again.notebook.read_bytes() == written[0].notebook.read_bytes()
    assert again.html.read_bytes() == written[0].html.read_bytes()


def test_the_report_gets_a_section_only_where_asked(written, tmp_path):
    """One for the load, and one for the check launch that lies beside the others."""
    plain = written[0]
    folder = checked(Path(shutil.copytree(ROOT / "data" / SETS[0], tmp_path / SETS[0])))
    best = optimum().recommended
    assert best.max_num_seqs == plain.optimum.recommended.max_num_seqs
    assert "Under load" not in plain.html.read_text()
    assert not any(
        "optional" in cell.metadata.get("tags", ())
        for cell in nbformat.read(plain.notebook, 4).cells
    )
    runs = tmp_path / "runs.csv"
    runs.write_text("running,output_tokens_per_s\n38,2400\n155,6000\n309,8000\n")
    asked = write_report(
        folder, 1024, 256, tmp_path / "asked", metrics=[LOADS / "mns24.prom"], load_runs=[runs]
    )
    page = asked.html.read_text()
    assert "Not healthy." in page and 'id="What-the-point-costs"' in page
    assert "the method&#x27;s point, mns 310, gives 8,0" in page or "s point, mns 310" in page
    assert page.count("<img") == plain.html.read_text().count("<img") + 5
    text = re.sub("<[^>]*>", " ", page)
    assert "holds 16 requests of the observed p95 length (256 tokens)" in " ".join(text.split())
    assert 'id="Check-launch"' not in plain.html.read_text()
    section = page[page.index('id="Check-launch"') : page.index('id="Launches')]
    assert "As predicted" in section and section.count(">yes<") == 3
    assert f"{best.kv_cache_tokens:,}" in re.sub("<[^>]*>", " ", section)


def test_logs_of_one_model_are_one_report_and_a_table_is_one_by_itself(tmp_path):
    logs = sorted((ROOT / "data" / SETS[0] / "logs").glob("*.log"))
    other = tmp_path / "other.log"
    other.write_text(logs[0].read_text().replace("llama-3-8b-2-layers", "another"))
    assert by_model([*logs[:2], SETS[1], other, *logs[2:]]) == [logs, [SETS[1]], [other]]
    (done,) = write_reports([logs], 1024, 256, tmp_path)
    assert done.html.name == f"{SETS[0]}.html" and len(done.optimum.model.launches) == 4
    page = done.html.read_text()
    assert "mns512-mnbt512.log:1" in page and str(ROOT) not in page


def test_a_failing_run_leaves_the_notebook_with_its_error_and_no_page(tmp_path, monkeypatch):
    template = nbformat.read(report.TEMPLATE, as_version=4)
    template.cells = [
        cell for cell in template.cells if "parameters" in cell.metadata.get("tags", [])
    ]
    template.cells.append(nbformat.v4.new_code_cell("1 / 0"))
    broken = tmp_path / "tuning_report.ipynb"
    nbformat.write(template, broken)
    monkeypatch.setattr(report, "TEMPLATE", broken)
    (tmp_path / f"{SETS[0]}.html").write_text("an older page")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        write_report(SETS[0], 1024, 256, tmp_path)
    left = json.loads((tmp_path / f"{SETS[0]}.ipynb").read_text())
    assert any(
        output["output_type"] == "error"
        for cell in left["cells"]
        for output in cell.get("outputs", [])
    )
    assert not (tmp_path / f"{SETS[0]}.html").exists()


def test_bad_input_starts_no_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "run_template", lambda *_: pytest.fail("a kernel was started"))
    (tmp_path / "bad.csv").write_text("max_num_seqs\nnan\n")
    for sources in ([tmp_path / "bad.csv"], ["qwen3-14b-h100-releases"], [SETS[0], "no-such-set"]):
        with pytest.raises(InputError):
            list(write_reports(sources, 1024, 256, tmp_path / "out"))


def test_an_interrupted_report_leaves_the_old_pair(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    old = [tmp_path / f"{SETS[0]}{suffix}" for suffix in (".html", ".ipynb")]
    for path in old:
        path.write_text("old")
    monkeypatch.setattr(report, "run_template", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_report(SETS[0], 1024, 256, tmp_path)
    assert [path.read_text() for path in old] == ["old", "old"] and len(
        list(tmp_path.iterdir())
    ) == 2


def test_a_folder_in_the_place_of_the_page_is_an_error_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "run_template", lambda *_: pytest.fail("a kernel was started"))
    (tmp_path / f"{SETS[0]}.html").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        write_report(SETS[0], 1024, 256, tmp_path)


def test_an_output_folder_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match="out"):
        write_report(SETS[0], 1024, 256, tmp_path / "out")


@pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium on the PATH")
def test_a_browser_without_network_shows_the_formulas(written, tmp_path):
    done = subprocess.run(
        [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={tmp_path}",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--dump-dom",
            written[0].html.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "<mfrac>" in done.stdout and "--max-num-seqs" in done.stdout
