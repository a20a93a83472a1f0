"""Pictures of the scheduler: the worked examples cell by cell, and what the notebook says."""

import re
import sys
from dataclasses import replace

import nbformat
import numpy as np
import pytest
from conftest import ROOT
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from test_scheduler import SHARED

from vllm_tuning.budget.gpus import GPUS
from vllm_tuning.figures import scheduler as draw
from vllm_tuning.figures import throughput as curves
from vllm_tuning.law import kv_bytes_per_token
from vllm_tuning.reading import read_load_runs
from vllm_tuning.scheduler import full_requests
from vllm_tuning.scheduler.config import Request, SchedulerConfig
from vllm_tuning.scheduler.simulation import block_tables, fixed_requests, simulate
from vllm_tuning.scheduler.step_time import Roofline
from vllm_tuning.workload import Workload

NOTEBOOK = nbformat.read(ROOT / "notebooks/04_scheduler.ipynb", as_version=4)
CELLS = {cell.id: cell.source for cell in NOTEBOOK.cells}
SMALL = SchedulerConfig(2, 16, 7, block_size=4)
POOL = [3, 7, 9, 12, 15, 21]
LLAMA = Roofline(GPUS["H100"], 15e9, 6.98e9, 131072)
SERVER = SchedulerConfig(1024, 8192, 28101)
FIVE = [Request(f"R{i}", 1, n) for i, n in enumerate((4, 2, 1, 4, 3), 1)]


def axes():
    return Figure(figsize=(7, 3.4)).add_subplot()


def lines(ax):
    return {line.get_label(): np.array(line.get_data()) for line in ax.get_lines()}


def words(ax):
    """Text by (step, row)."""
    return {
        (int(text.get_position()[0]), int(text.get_position()[1])): text.get_text()
        for text in ax.texts
    }


def kinds(ax):
    """What the box of (step, row) shows, by its colour."""
    names = {to_hex(colour): name for name, (colour, _) in draw.WORK.items()}
    return {
        (round(bar.get_x() + 0.46), round(bar.get_y() + 0.4)): names[to_hex(bar.get_facecolor())]
        for bar in ax.patches
    }


# ---------------------------------------------------------------- requests by step


def test_five_requests_cell_by_cell():
    """Step 1 runs R1 R2 R3, step 2 R1 R2 R4, step 3 R1 R4 R5, step 4 the same, step 5 R4 R5."""
    ax = draw.request_steps(simulate(SchedulerConfig(3, 100, 100), FIVE, trace=True).trace, axes())
    batches = {1: "012", 2: "013", 3: "034", 4: "034", 5: "34"}
    assert words(ax) == {(step, int(row)): "1" for step, rows in batches.items() for row in rows}
    assert {place for place, kind in kinds(ax).items() if kind == "waits"} == {
        (1, 3),
        (1, 4),
        (2, 4),
    }
    assert {place for place, kind in kinds(ax).items() if kind == "prompt"} == {
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 3),
        (3, 4),
    }


def test_a_prompt_of_50_in_steps_of_40_cell_by_cell():
    requests = [Request("A", 1, 5), Request("B", 1, 5), Request("C", 50, 3, at=1)]
    trace = simulate(SchedulerConfig(3, 40, 100), requests, trace=True).trace
    ax = draw.request_steps(trace, axes())
    assert [words(ax).get((step, 2)) for step in range(1, 6)] == [None, "38", "12", "1", "1"]
    assert [words(ax)[step, 0] for step in range(1, 6)] == 5 * ["1"]
    assert kinds(ax)[3, 2] == "prompt" and kinds(ax)[4, 2] == "decode, one token"


def test_a_preempted_request_waits_and_is_computed_again():
    """Two requests of 4 + 8 in 4 blocks of 4: worked by hand in test_scheduler."""
    requests = [Request("A", 4, 8), Request("B", 4, 8)]
    trace = simulate(SchedulerConfig(2, 100, 5, 4), requests, trace=True).trace
    ax = draw.request_steps(trace, axes())
    assert [kinds(ax)[step, 1] for step in (6, 7, 8, 9, 10)] == [
        "waits",
        "waits",
        "waits",
        "computed again",
        "decode, one token",
    ]
    assert words(ax)[9, 1] == "9" and lines(ax)["preempted"].ravel().tolist() == [5.5, 1]


# ---------------------------------------------------------------- block tables


def test_the_block_table_of_the_single_request_is_that_of_the_text():
    steps = block_tables(SMALL, [Request("A", 4, 3)], [7, 12])
    assert [table["A"] for _, table in steps] == [[(7, 4)], [(7, 4), (12, 1)], [(7, 4), (12, 2)]]
    assert [tokens for tokens, _ in steps] == [{"A": 4}, {"A": 1}, {"A": 1}]


def test_the_block_tables_of_the_two_requests_are_those_of_the_text():
    steps = block_tables(SMALL, [Request("A", 3, 2), Request("B", 3, 6)], POOL)
    assert [table for _, table in steps[:2]] == [
        {"A": [(3, 3)], "B": [(7, 3)]},
        {"A": [(3, 4)], "B": [(7, 4)]},
    ]
    assert steps[2][1] == {"B": [(7, 4), (3, 1)]}  # A's block is used again
    ax = draw.blocks(steps, POOL, axes())
    assert [words(ax)[step, 0] for step in range(1, 7)] == [
        "A0 3/4",
        "A0 4/4",
        "B1 1/4",
        "B1 2/4",
        "B1 3/4",
        "B1 4/4",
    ]
    assert [words(ax)[step, 1] for step in range(1, 7)] == ["B0 3/4"] + 5 * ["B0 4/4"]
    filled = [bar for bar in ax.patches if bar.get_facecolor()[:3] != (1, 1, 1)]
    assert len(filled) == 3 + 3 + 4 + 4 + (4 + 1) + (4 + 2) + (4 + 3) + (4 + 4)


def test_a_shared_prefix_is_one_block_with_two_names():
    shared = tuple(range(8))
    steps = block_tables(
        replace(SMALL, enable_prefix_caching=True),
        [
            Request("A", 10, 3, prompt=(*shared, 50, 51)),
            Request("B", 10, 3, at=1, prompt=(*shared, 60, 61)),
        ],
        POOL,
    )
    assert [tokens for tokens, _ in steps] == [
        {"A": 10},
        {"A": 1, "B": 2},
        {"A": 1, "B": 1},
        {"B": 1},
    ]
    assert steps[1][1]["B"][:2] == [(3, 4), (7, 4)] == steps[1][1]["A"][:2]
    ax = draw.blocks(steps, POOL, axes())
    assert (
        words(ax)[2, 0] == "A0 B0" and words(ax)[2, 3] == "B2 2/4" and words(ax)[4, 0] == "B0 4/4"
    )


# ---------------------------------------------------------------- limits, preemptions, totals


def test_the_limit_that_binds_by_hand():
    """Tokens of the first step are used up, then both places are taken until one is free."""
    config = SchedulerConfig(2, 10, 100)
    ax = draw.limits(
        simulate(config, [Request("A", 8, 4), Request("B", 4, 4), Request("C", 1, 1)], trace=True),
        axes(),
    )
    drawn = lines(ax)
    assert drawn["tokens, of mnbt (10)"][1].tolist() == [100, 30, 20, 20, 20]
    assert drawn["requests, of mns (2)"][1].tolist() == [100] * 5
    assert drawn["KV blocks, of the pool (99)"][1][0] == pytest.approx(200 / 99)
    assert [text.get_text() for text in ax.texts] == ["mns"]


@pytest.mark.parametrize(
    "config, name", [(SchedulerConfig(9, 10, 100), "mnbt"), (SchedulerConfig(9, 50, 4), "pool")]
)
def test_tokens_and_blocks_bind_too(config, name):
    requests = [Request(name, 20, 5) for name in "ABC"]
    ax = draw.limits(simulate(config, requests, trace=True), axes())
    assert name in [text.get_text() for text in ax.texts]


def test_preemptions_add_up():
    server = SchedulerConfig(64, 512, 321)
    runs = [
        simulate(replace(server, max_num_seqs=seqs), fixed_requests(100, 32, 96), trace=True)
        for seqs in (64, 40)
    ]
    drawn = lines(draw.preemptions(runs, axes()))
    often = runs[0].summary.n_preempt
    assert often > 0 and drawn[f"mns 64: preemptions so far ({often})"][1][-1] == often
    assert drawn["mns 40: requests running"][1].max() == 40


# ---------------------------------------------------------------- time


def test_the_curves_of_a_decoding_step_by_hand():
    drawn = lines(draw.decode_step(LLAMA, 1536, axes()))
    seqs, least = drawn["the step at least"]
    assert least == pytest.approx(1e3 * (15e9 + 131072 * 1536 * seqs) / 3.35e12)  # reading leads
    assert drawn["multiply"][1] == pytest.approx(1e3 * 2 * 6.98e9 * seqs / 989.4e12)
    assert any("mns 75" in label for label in drawn) and any("mns 317" in label for label in drawn)


def test_the_memories_of_the_notebook_hand_out_what_the_data_sheet_says():
    """Of an H100 SXM: 132 SMs, each 256 KiB and 128 bytes a clock (Hopper architecture paper)."""
    clock = 989.4e12 / (132 * 4 * 1024)  # operations of a tensor core in a clock
    rates = {"Host memory": 64, "HBM": 3350, "SRAM": 132 * 128 * clock / 1e9}
    for name, rate in rates.items():
        row = re.search(rf"^\| {name}.*$", CELLS["memory"], re.M)[0]
        given, milliseconds = (float(cell.replace(",", "")) for cell in row.split("|")[3:5])
        assert given == pytest.approx(rate, rel=0.005)
        assert milliseconds == pytest.approx(1e3 * 15e9 / (rate * 1e9), rel=0.02)


def test_the_weights_of_the_notebook_are_those_of_the_model():
    """32 layers of 4,096: q and o, k and v of 8 heads, three matrices of 14,336; 128,256 words."""
    layer = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    given = dict(re.findall(r"(weight_bytes|parameters)=([\d.e]+)", CELLS["derived"]))
    assert float(given["parameters"]) == pytest.approx(32 * layer, rel=1e-3)
    assert float(given["weight_bytes"]) == pytest.approx(2 * (32 * layer + 128256 * 4096), rel=1e-3)
    assert float(given["weight_bytes"]) <= 2 * (32 * layer + 128256 * 4096)  # a lower bound
    assert kv_bytes_per_token(32, 8, 128, 2) == LLAMA.kv_bytes_per_token


def test_the_table_of_totals_is_what_the_requests_ask_for():
    """8 * 248 requests of 400 + 1,400: the last token is put out, and never computed."""
    (cell,) = (cell for cell in NOTEBOOK.cells if cell.id == "spiral-times")
    found = re.findall(r"<tr><th[^>]*>(.*?)</th>(.*)</tr>", cell.outputs[0].data["text/html"])
    rows = {mns: re.findall("<td>(.*?)</td>", cells) for mns, cells in found}
    asked, again = 8 * 248, int(rows["1,024"][2].replace(",", ""))
    assert again > 0 and rows["1,024"][1] == f"{asked * 1799 + again:,}"
    assert rows["248"][:4] == [f"{asked * 1400:,}", f"{asked * 1799:,}", "0", "0"]
    assert rows["1,024"][0] == rows["248"][0]


# ---------------------------------------------------------------- what the notebook says


def test_the_notebook_says_the_number_of_traces():
    if not (SHARED / "oracle/sched").is_dir():
        pytest.skip("no traces of the real scheduler here")
    count = len(list((SHARED / "oracle/sched").glob("*.json.gz")))
    assert f"on {count} traces of the real one" in CELLS["title"]


def test_what_the_spiral_costs():
    """1,024 requests of 400 fit while small, 248 when full; 55 % more work, 5 % more throughput."""
    assert full_requests(SERVER, Workload(400, 1400)) == 248 and 1024 * 25 <= 28100
    many, few = (
        simulate(
            replace(SERVER, max_num_seqs=seqs), fixed_requests(8 * 248, 400, 1400), step_time=LLAMA
        )
        for seqs in (1024, 248)
    )
    assert many.summary.max_run == 1024 and few.summary.n_preempt == 0
    assert many.summary.output_tokens == few.summary.output_tokens
    assert f"{many.summary.sched_tokens / few.summary.sched_tokens - 1:.0%}" == "55%"
    fast, slow = many.times, few.times
    assert f"{fast.throughput / slow.throughput - 1:.0%}" == "5%"
    assert 2 < np.median(fast.tpot) / np.median(slow.tpot) < 3
    assert 4 < fast.tpot.max() / slow.tpot.max() < 5
    assert "only 5 % more throughput, for 55 % more work" in CELLS["totals-box"]


def test_what_the_lesson_says_of_real_sweeps():
    """2 % in the median, nine in ten within 8 %; 20 and 33.3 ms, 26.7 between."""
    sys.path.append(str(ROOT / "tests/benchmarks"))
    from bench_throughput import score

    errors, _ = score(ROOT / "data/throughput/h100.csv")
    assert round(100 * np.median(abs(errors))) == 2 and np.percentile(abs(errors), 90) < 0.08
    assert (
        "2 % from the prediction in the median, nine in ten within 8 %" in CELLS["real-sweep-text"]
    )
    real = [run for run in read_load_runs([ROOT / "data/throughput/h100.csv"])
            if run.model == "Qwen3-Coder-30B-A3B-Instruct fim TP1 bfloat16 EP2"]  # fmt: skip
    drawn = lines(curves.held_out(real, axes()))
    assert len(real) == 11 and drawn["load run given"].shape == (2, 3)
    assert drawn["held out"].shape == (2, 8)


def test_the_notebook_has_pictures_with_words_for_them():
    for cell in NOTEBOOK.cells:
        if cell.cell_type == "code" and "picture(" in cell.source:
            (output,) = cell.outputs
            assert len(output.metadata["image/png"]["alt"]) > 40 and "image/png" in output.data
