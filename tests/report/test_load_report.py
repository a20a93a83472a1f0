"""Sweep file, benchmark results, the figures and the report's section under load."""

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT
from test_load_check import lengths, scrape, verdict

from vllm_tuning import Workload, find_optimum, model_of
from vllm_tuning.cli import main
from vllm_tuning.figures import load as figures
from vllm_tuning.load.sweep_file import sweep_points
from vllm_tuning.report.load_lesson import burst_runs, lengths_table, verdict_of_run
from vllm_tuning.report.load_summary import check_summary
from vllm_tuning.report.page import write_report
from vllm_tuning.units import InputError


def optimum(input_len=1024, output_len=256):
    return find_optimum(model_of(["llama-3-8b-2-layers"]), Workload(input_len, output_len))


# ---------------------------------------------------------------- the sweep


@pytest.mark.parametrize("shape", [(1024, 256), (128, 128), (8192, 64), (1, 16384)])
def test_points_obey_vllm_and_fit(shape):
    """Pool at each point >= its requests at input + output / 2, by the exact bytes' law."""
    answer = optimum(*shape)
    points = sweep_points(answer)
    best = answer.recommended
    assert points["recommended"] == (best.max_num_seqs, best.max_num_batched_tokens)
    assert next(iter(points)) == "recommended" and 1 <= len(points) <= 3
    assert len(set(points.values())) == len(points)
    model = model_of(["llama-3-8b-2-layers"])
    for seqs, budget in points.values():
        assert budget >= seqs >= 1
        mean = shape[0] + shape[1] / 2
        assert seqs * mean * model.kv_per_token.n <= model.pool(seqs, budget).n


def test_the_file(tmp_path):
    file = tmp_path / "sweep.json"
    args = ["recommend", "llama-3-8b-2-layers", "--input-len", "1024", "--output-len", "256"]
    done = CliRunner().invoke(main, [*args, "--json", "--sweep", str(file)])
    best = json.loads(done.stdout)["recommended"]
    assert json.loads(file.read_text())["recommended"] == {
        "max_num_seqs": best["max_num_seqs"],
        "max_num_batched_tokens": best["max_num_batched_tokens"],
    }
    assert list(tmp_path.iterdir()) == [file]


def test_no_answer_no_sweep(tmp_path):
    file = tmp_path / "sweep.json"
    done = CliRunner().invoke(
        main,
        [
            "recommend",
            "qwen3.5-4b-a30",
            "--input-len",
            "1024",
            "--output-len",
            "256",
            "--sweep",
            str(file),
        ],
    )
    assert done.exit_code == 1 and "no recommendation to sweep around" in done.stderr
    assert not file.exists()


# ---------------------------------------------------------------- figures


def test_lines_are_the_scrapes_and_the_predictions():
    found = verdict_of_run("mns24")
    ax = figures.kv_cache_usage({"a": found})
    measured, full, limit = ax.lines
    assert max(measured.get_ydata()) == 100 and limit.get_ydata()[0] == 90
    assert full.get_ydata()[0] == pytest.approx(24 / 16 * 100)
    assert figures.preemptions({"a": found}).lines[0].get_ydata()[-1] == 60
    running, waiting, admitted, fit = figures.requests(found).lines
    assert (admitted.get_ydata()[0], fit.get_ydata()[0]) == (24, 16)
    assert max(running.get_ydata()) == 24 and max(waiting.get_ydata()) == 112
    star = figures.preemptions_by_mns(burst_runs(), found).lines[-1]
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (16, 0)


def test_figures_without_the_metric_say_so():
    found = verdict(lengths(100, 10), lengths(100, 10))
    for ax in (figures.preemptions({"a": found}), figures.requests(found)):
        assert "do not hold" in ax.get_title(loc="left")


def test_preemptions_are_drawn_over_a_restart():
    found = verdict(*(scrape(0.5, 2, preempted=count) for count in (10, 14, 3, 5)))
    assert figures.preemptions({"a": found}).lines[0].get_ydata() == pytest.approx([0, 4, 7, 9])


# ---------------------------------------------------------------- report and lesson


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"metrics": ["nope.prom"]}, "cannot be read"),
        ({"metrics": ["http://user:s3cret@host/metrics"]}, "^scrapes are files here[^@]*$"),
        ({"load_runs": ["nope.json"]}, "cannot be read"),
    ],
)
def test_a_report_of_files_that_are_not_there(options, problem, tmp_path):
    with pytest.raises(InputError, match=problem):
        write_report("llama-3-8b-2-layers", 1024, 256, tmp_path, **options)


def test_a_report_of_load_runs_that_tell_nothing(tmp_path):
    (tmp_path / "runs.csv").write_text("running,output_tokens_per_s\n38,2400\n")
    with pytest.raises(InputError, match="expected two or more"):
        write_report("llama-3-8b-2-layers", 1024, 256, tmp_path, load_runs=[tmp_path / "runs.csv"])


def test_lengths_of_the_lesson():
    table = lengths_table(verdict_of_run("mns24")).as_text()
    assert re.search(r"95th percentile \(estimated\) +256 +16 ", table)
    with pytest.raises(InputError, match="mns16, mns24, mns8"):
        verdict_of_run("nope")


@pytest.mark.parametrize("text", [scrape(0.5, 3), lengths(100, 10), scrape(0.5, 3, preempted=1)])
def test_scrapes_that_lack_much_are_drawn_and_told(text, tmp_path):
    (tmp_path / "1.prom").write_text(text)
    found = verdict_of_run(str(tmp_path))
    assert check_summary(found).as_text() and lengths_table(found).as_text()
    for draw, given in (
        (figures.kv_cache_usage, {"a": found}),
        (figures.requests, found),
        (figures.preemptions, {"a": found}),
    ):
        assert draw(given).get_xlabel()
    assert json.dumps(found.to_dict(), allow_nan=False)


def test_the_lesson_says_what_is_wrong_in_one_sentence(tmp_path):
    import papermill

    with pytest.raises(papermill.PapermillExecutionError) as failed:
        papermill.execute_notebook(
            str(ROOT / "notebooks/05_under_load.ipynb"),
            None,
            {"metrics": "nope"},
            progress_bar=False,
            cwd=str(ROOT),
        )
    assert (
        str(failed.value)
        .strip()
        .endswith("nope: no such file or folder; carried runs: mns16, mns24, mns8")
    )


def test_runs_are_sorted():
    assert np.array_equal(burst_runs()["max_num_seqs"], [4, 8, 16, 24, 32, 64])
