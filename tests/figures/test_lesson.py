"""What the derivation draws and says: against measured rows and hand calculation."""

import re

import nbformat
import numpy as np
import pytest
from conftest import ROOT, rows_of
from matplotlib.figure import Figure

from vllm_tuning.answer import find_optimum
from vllm_tuning.answer.models import model_of
from vllm_tuning.explorer.utilization import at_utilization
from vllm_tuning.figures import lesson
from vllm_tuning.law import peak_activation
from vllm_tuning.pool import Pool
from vllm_tuning.reading.tables import DATA, read_launches
from vllm_tuning.units import GIB, InputError
from vllm_tuning.workload import Workload

K1, K2, K, KAPPA, A = 147456, 3094568, 8192, 8192, 4270388675  # exact bytes of the two-layer model
WORK, MIB = Workload(1024, 256), 2**20
MODEL = model_of(["llama-3-8b-2-layers"])
OPTIMUM = find_optimum(MODEL, WORK)
GRID = model_of(["vllm-0.32-profile-grid"])
EXACT = DATA / "llama-3-8b-2-layers/exact.csv"


def axes():
    return Figure(figsize=(7, 3.4)).add_subplot()


def lines(ax):
    return {line.get_label(): np.array(line.get_data()) for line in ax.get_lines()}


def test_off_the_point_the_pool_holds_what_exact_bytes_say():
    drawn = lines(lesson.off_the_point(OPTIMUM, axes()))
    x, holds = drawn["the pool holds"]
    budget = OPTIMUM.recommended.max_num_batched_tokens  # from point C on, 6,888, to 6,913
    assert 6888 <= budget <= 6913 and A - K1 * budget >= (310 * 40 + 1) * 32 * KAPPA
    expected = (A - np.maximum(K1 * budget, K2 * x + K * budget)) / (1280 * KAPPA)
    assert np.all(holds <= expected + 0.01) and np.all(holds > expected - 0.04)  # whole blocks
    best = drawn["run at once, never preempted: the smaller"][1]
    assert best == pytest.approx(np.minimum(holds, x))
    assert best[x == 310] == 310 and best.max() <= 311 and x.min() >= 1


def test_no_flags_are_drawn_that_vllm_refuses():
    tiny = find_optimum(MODEL, Workload(1, 400000 - 1))
    x, _ = lines(lesson.off_the_point(tiny, axes()))["the pool holds"]
    assert x.max() <= tiny.recommended.max_num_batched_tokens


def test_the_exact_file_holds_the_bytes(exact_launches):
    assert [
        (
            launch.max_num_seqs,
            launch.max_num_batched_tokens,
            launch.peak_activation,
            launch.kv_cache,
        )
        for launch in read_launches(EXACT)
    ] == [
        (
            row["max_num_seqs"],
            row["max_num_batched_tokens"],
            row["peak_activation_bytes"],
            row["kv_cache_bytes"],
        )
        for row in exact_launches
    ]


@pytest.mark.parametrize("length", [24, 1280, 100_000])
def test_the_propagated_error_is_that_of_drawn_logs(length):
    """And the exact bytes lie within two of it, as the notebook says."""
    work = Workload(length // 2, length // 2)
    printed, exact = (
        find_optimum(model_of([source]), work) for source in ("llama-3-8b-2-layers", EXACT)
    )
    draws = lesson._formula_over_equal_logs(printed)
    seed = printed.method.max_num_seqs
    assert draws.std() == pytest.approx(seed.s, rel=0.12) and len(draws) == lesson.DRAWS
    assert draws.mean() == pytest.approx(seed.n, abs=4 * seed.s / np.sqrt(len(draws)))
    assert abs(exact.method.max_num_seqs.n - seed.n) < 2 * seed.s
    by_hand = A / (length * exact.method.kv_bytes_per_token.n + K2)
    assert exact.method.max_num_seqs.n == pytest.approx(by_hand, rel=1e-6)
    drawn = lines(lesson.rounding_spread(printed, exact, axes()))
    assert drawn[f"four-launch formula, exact bytes: {by_hand:,.2f}"][0][0] == pytest.approx(
        by_hand
    )


def test_by_hand_is_the_calculation_on_the_printed_figures():
    """A = 3.98 GiB, K2 = 1.11 GiB / 384, KV / KVS = 3.60 GiB / 472,416; the balances close."""
    table = lesson.by_hand(OPTIMUM).data
    k2, kappa = 1.11 * GIB / 384, 3.6 * GIB / 472416
    tokens = [512, 2048, 8192]
    k1 = np.polyfit(tokens, [0.07 * GIB, 0.28 * GIB, 1.12 * GIB], 1)[0]
    seqs = 3.98 * GIB / (1280 * kappa + k2)
    peak, pool = f"{seqs * k2 / GIB:.4f}", f"{3.98 - seqs * k2 / GIB:.4f}"
    for figure in (
        f"{k1:,.0f}",
        f"{k2:,.0f}",
        f"{kappa:,.1f}",
        f"{seqs:.2f}",
        f"{seqs * k2 / k1:,.0f}",
        "3.9800",
    ):
        assert figure in table
    assert table.count(peak) == table.count(pool) == 2


@pytest.mark.parametrize("name", sorted(path.parent.name for path in DATA.glob("*/launches.csv")))
def test_a_set_without_an_answer_says_why(name):
    try:
        optimum = find_optimum(model_of([name]), WORK)
    except InputError:
        return  # four releases, refused
    drawn = [
        lesson.off_the_point(optimum, axes()),
        lesson.rounding_spread(optimum, optimum, axes()),
    ]
    assert all(ax.has_data() or len(ax.get_title(loc="left")) > 20 for ax in drawn)
    assert drawn[0].has_data() == (optimum.max_num_seqs is not None)
    assert optimum.method.reason is None or optimum.method.reason in lesson.by_hand(optimum).data


def test_a_picture_is_the_same_bytes_twice_whatever_the_reader_has_set():
    import matplotlib

    first = lesson.picture(lesson.off_the_point, OPTIMUM, alt="x")
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red"}):
        assert lesson.picture(lesson.off_the_point, OPTIMUM, alt="x").data == first.data
    assert first.data.startswith(b"\x89PNG") and first.alt == "x"


def test_bad_input_is_one_sentence_in_a_notebook():
    with pytest.raises(InputError) as refused:
        Workload(0, 256)
    assert refused.value._render_traceback_() == ["input_len is 0; it must be at least 1 token"]


# ---------------------------------------------------------------- the exercises

NOTEBOOK = nbformat.read(ROOT / "notebooks/01_derivation.ipynb", as_version=4)
CELLS = {cell.id: cell.source for cell in NOTEBOOK.cells}


def bold(number):
    """The results in the worked answer of an exercise, as it prints them."""
    answer = CELLS[f"exercise-{number}"].split("<summary>Worked answer</summary>")[1]
    return re.findall(r"\*\*(.+?)\*\*", answer)


def test_exercise_1_is_the_four_launch_formula_at_another_utilization():
    optimum = find_optimum(at_utilization(MODEL, 0.9), Workload(512, 512))
    seqs, tokens = optimum.method.max_num_seqs, optimum.method.max_num_batched_tokens
    assert bold(1) == [f"{seqs.n:.1f}", f"{tokens.n:,.0f}"]
    assert f"{optimum.method.a.n:,.0f}" in CELLS["exercise-1"]
    printed = {
        tuple(row[name] for name in ("max_num_seqs", "max_num_batched_tokens")): row
        for row in rows_of(ROOT / "data/llama-3-8b-2-layers/launches.csv")
    }
    table = re.findall(
        r"^\| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \| ([\d,]+) \|$",
        CELLS["exercise-1"],
        re.M,
    )
    assert len(table) == 4
    others = [
        optimum.method.a.n
        / (1024 * float(pool) * GIB / int(size.replace(",", "")) + (1.11 * GIB / 384))
        for *_, pool, size in table
    ]
    assert max(abs(other - seqs.n) for other in others) < 1.05  # the answer says: at most 1
    for seqs, tokens, peak, pool, size in ([x.replace(",", "") for x in row] for row in table):
        row = printed[seqs, tokens]
        assert [float(peak), float(pool), int(size)] == [
            float(row["peak_activation_gib"]),
            float(row["kv_cache_gib"]),
            int(row["kv_cache_tokens"]),
        ]


def test_exercise_2_is_the_law_of_the_grid():
    terms = [value.n for value in (GRID.k1, GRID.a1, GRID.k2, GRID.a2, GRID.k)]
    peaks = [peak_activation(3000, seqs, *terms) for seqs in (20, 100)]
    budget = GRID.k2.n * 100 / (GRID.k1.n - GRID.k.n)
    assert bold(2) == [*(f"{peak:,.0f}" for peak in peaks), f"{int(budget):,}"]


def test_exercise_3_agrees_with_the_least_squares():
    a30 = model_of(["qwen3.5-4b-a30"])
    slope, pool = (float(text.replace(",", "")) for text in bold(3))
    assert slope == pytest.approx((11.32 - 4.53) * GIB / (81920 - 16384), abs=0.5)
    assert slope == pytest.approx(a30.k1.n, abs=a30.k1.s)
    assert pool == pytest.approx(a30.pool(128, 49152).n / GIB, abs=0.01)
    assert f"{a30.k1.n:,.0f} ± {a30.k1.s:.0f}" in CELLS["exercise-3"]
    assert [
        (launch.max_num_seqs, launch.max_num_batched_tokens) for launch in a30.next_launches
    ] == [(128, 512), (512, 512)]


def test_exercise_4_is_what_the_pool_holds(exact_launches):
    first = exact_launches[0]
    assert first["kv_cache_bytes"] + first["peak_activation_bytes"] == A
    pool = Pool(model_of([EXACT]), WORK, 1)
    assert bold(4) == [
        str(int(pool.concurrency(seqs, tokens))) for seqs, tokens in ((310, 16384), (512, 6888))
    ]
    seqs = OPTIMUM.recommended.max_num_seqs
    assert f"mns {seqs}, mnbt {seqs * K2 // (K1 - K):,}" in CELLS["exercise-4"]


def test_exercise_5_is_the_slope_and_its_error():
    two = [launch for launch in read_launches("qwen1.5-4b-a100") if launch.max_num_seqs in (32, 64)]
    peaks = [launch.peak_activation for launch in two]
    assert [peak / GIB for peak in peaks] == pytest.approx([0.25, 0.48])
    error = 0.005 * np.sqrt(2 / 3)
    assert bold(5) == [
        f"{(peaks[1] - peaks[0]) / 32 / MIB:.2f} ± {error * 1024 / 32:.2f}",
        f"{error / 0.01:.2f}",
    ]
