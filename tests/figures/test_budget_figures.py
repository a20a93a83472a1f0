"""The budget's figures and tables show what is counted by hand, and notebook 03 says it."""

import json
import re

import nbformat
import numpy as np
import pytest
from conftest import ROOT
from matplotlib.patches import Rectangle

from vllm_tuning.budget.capacity import capacity
from vllm_tuning.figures import budget as figures
from vllm_tuning.figures.budget_bars import estimated_bars
from vllm_tuning.figures.style import rendered
from vllm_tuning.kv_cache.layout import cache_layout
from vllm_tuning.kv_cache.model_config import config_of
from vllm_tuning.reading.lengths import read_lengths
from vllm_tuning.reading.tables import DATA
from vllm_tuning.units import GIB
from vllm_tuning.workload import Workload

LLAMA = DATA / "llama-3.1-8b-rtx3090"
NOTEBOOK = nbformat.read(ROOT / "notebooks/03_memory_budget.ipynb", as_version=4)
SHAPES = {
    name: cache_layout(config_of(shape))
    for name, shape in json.loads((DATA / "shapes.json").read_text()).items()
}


@pytest.fixture(scope="module")
def chat():
    return capacity(
        LLAMA, gpu="H100", utilization=0.92, max_model_len=131072, lengths=(Workload(1000, 800),)
    )


@pytest.fixture(scope="module")
def real():
    return capacity(LLAMA, gpu="H100", lengths=tuple(read_lengths(DATA / "chat-lengths.csv")))


def line(ax, label):
    return next(line for line in ax.lines if str(line.get_label()).startswith(label)).get_xydata()


def test_the_bar_is_the_card(chat):
    ax = estimated_bars({"one": chat.budget})
    widths = [patch.get_width() for patch in ax.patches if isinstance(patch, Rectangle)]
    assert sum(widths) == pytest.approx(79.19)
    assert widths[0] == pytest.approx(15, abs=0.05) and widths[-1] == pytest.approx(0.08 * 79.19)


def test_requests_against_length(chat):
    printed, served = (
        line(figures.requests_by_length(chat), label)[0]
        for label in ("max_model_len", "the requests")
    )
    assert printed[0] == 131072 and printed[1] == pytest.approx(3.43, abs=0.06)
    assert served[0] == 1800 and served[1] == pytest.approx(250, abs=2)


def test_the_pool_fills_at_the_last_token(chat):
    fit = chat.max_num_seqs(chat.pool.value)
    ax = figures.filling(chat, [1024, fit])
    use = line(ax, f"mns {fit:,}: fits")
    assert 99 < use[-1, 1] <= 100 and use[0, 1] == pytest.approx(100 * 1000 / 1800, rel=0.02)
    over = line(ax, "mns 1,024: too much after 0")
    assert over[-1, 1] == pytest.approx(100 * 1024 / fit, rel=0.01)


def test_the_risk_by_drawing(real):
    """Half the requests at the mean overflow the pool; at the marked count 1 in 100 do."""
    ax = figures.overflow_risk(real)
    rng, inputs, outputs = (
        np.random.default_rng(3),
        *np.array([(each.input_len, each.output_len) for each in real.lengths]).T,
    )
    for count, risk in ((real.risk.max_num_seqs, 0.01), (line(ax, "pool / mean")[0, 0], 0.5)):
        met = rng.choice(len(outputs), (4000, int(count)), p=outputs / outputs.sum())
        held = np.ceil((inputs[met] + np.ceil(rng.random(met.shape) * outputs[met])) / 16).sum(1)
        near = 0.1 if risk > 0.1 else 0.01
        assert (held > real.blocks - 1).mean() == pytest.approx(risk, abs=near)


def table(name):
    """Rows of the table that a cell of notebook 03 shows, by model."""
    (cell,) = (cell for cell in NOTEBOOK.cells if cell.id == name)
    rows = re.findall(r"<tr><th[^>]*>(.*?)</th>(.*)</tr>", cell.outputs[0].data["text/html"])
    return {model: re.findall("<td>(.*?)</td>", cells) for model, cells in rows}


def test_what_families_cost():
    rows = table("costs")
    assert rows["Llama 2 7B"][0] == "524,288" and rows["Llama 3.1 8B"][0] == "131,072"
    assert rows["DeepSeek V2 Lite"][0] == f"{27 * 576 * 2:,}"
    assert rows["Falcon 7B"][0] == f"{2 * 32 * 64 * 2:,}"
    assert rows["gpt-oss 20B"][0] == f"{2 * 12 * 8 * 64 * 2:,}"
    assert rows["Llama 3.1 8B"][3] == "16.00" and rows["Llama 3.1 8B"][5] == "2.5"


def test_ten_times_the_tokens_of_the_same_pool():
    """Gemma 4 has 6 groups: before, a sixth of the blocks x 16 tokens, after, all / 9,158."""
    layout = SHAPES["Gemma 4 26B A4B"]
    blocks = 131072 // 32 + 5 * (-(-(1023 + 2048) // 16) + 1)
    pool = int(40 * GIB // layout.block_bytes)
    old, new = pool // 6 * 16, int(pool / blocks * 131072)
    assert table("releases")["Gemma 4 26B A4B"][:3] == [f"{old:,}", f"{new:,}", "9.7"]


@pytest.mark.parametrize(
    "draw, args",
    [
        (figures.filling, ([1024, 1],)),
        (figures.requests_by_length, ()),
    ],
)
def test_the_same_bytes_and_no_pool(draw, args, chat):
    assert rendered(draw, chat, *args, height=3) == rendered(draw, chat, *args, height=3)
    small = capacity(LLAMA, gpu="T4", lengths=(Workload(10, 10),))
    assert rendered(draw, small, *args, height=3)  # nothing is left for the pool


def test_notebook_03_says_what_is_drawn(chat, real):
    text = (ROOT / "notebooks/03_memory_budget.ipynb").read_text()
    assert f"concurrency {chat.max_concurrency:.2f}x" in text and "9.7" in text
    assert f"{real.risk.max_num_seqs}" in text and f"{len(real.lengths)} of a real chat" in text
