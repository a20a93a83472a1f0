"""The seed's closed form: both of its shapes, the balances it solves, and the refined one."""

import random

import numpy as np
import pytest
import sympy

from vllm_tuning.answer import find_optimum, fit_memory_model
from vllm_tuning.law import four_launch_point, four_launch_point_expanded, refined_point
from vllm_tuning.reading.tables import parse_launches
from vllm_tuning.report.contract import recommend_json
from vllm_tuning.units import GIB
from vllm_tuning.workload import Workload

DRAW = np.random.default_rng(2024)


def random_parameters(n=10_000):
    return {
        "a": DRAW.uniform(1e9, 1e11, n),
        "kappa": DRAW.uniform(1e3, 1e6, n),
        "k1": DRAW.uniform(1e4, 1e6, n),
        "k2": DRAW.uniform(1e5, 1e7, n),
        "length": DRAW.uniform(16, 131072, n),
    }


def test_refined_without_intercepts_is_the_seed_and_both_solve_the_balances():
    p = random_parameters()
    seqs, tokens = four_launch_point(p["a"], p["kappa"], p["k1"], p["k2"], p["length"])
    refined = refined_point(p["a"], p["a"], p["kappa"] * p["length"], p["k1"], p["k2"], 0.0)
    np.testing.assert_allclose(refined, (seqs, tokens), rtol=1e-12)
    np.testing.assert_allclose(p["k1"] * tokens, p["k2"] * seqs, rtol=1e-9)
    np.testing.assert_allclose(
        p["a"] - p["k1"] * tokens, p["length"] * p["kappa"] * seqs, rtol=1e-9
    )


def test_refined_solves_its_balances_with_intercepts_and_hidden_states():
    p = random_parameters()
    a1, a2 = DRAW.uniform(-1e8, 1e8, (2, 10_000))
    k = p["k1"] * DRAW.uniform(0, 0.9, 10_000)
    seqs, tokens = refined_point(
        p["a"] - a1, p["a"] - a2, p["kappa"] * p["length"], p["k1"], p["k2"], k
    )
    scale = p["a"]
    left = (p["k1"] * tokens + a1 - (p["k2"] * seqs + k * tokens + a2)) / scale
    pool = (p["a"] - a1 - p["k1"] * tokens - p["length"] * p["kappa"] * seqs) / scale
    assert abs(left).max() < 1e-9 and abs(pool).max() < 1e-9


def test_symbolically():
    names = "a a1 a2 kappa above_k k2 k length"
    a, a1, a2, kappa, above_k, k2, k, length = sympy.symbols(names, positive=True)
    k1 = k + above_k
    seqs, tokens = (
        sympy.nsimplify(value, rational=True)
        for value in refined_point(a - a1, a - a2, kappa * length, k1, k2, k)
    )
    assert sympy.simplify(k1 * tokens + a1 - k2 * seqs - k * tokens - a2) == 0
    assert sympy.simplify(a - a1 - k1 * tokens - length * kappa * seqs) == 0
    plain, k1 = {a1: 0, a2: 0, k: 0}, above_k
    for refined, seed in zip(
        (seqs, tokens), four_launch_point(a, kappa, k1, k2, length), strict=True
    ):
        assert sympy.simplify(sympy.sympify(refined).subs(plain) - seed) == 0
    seed_seqs, seed_tokens = four_launch_point(a, kappa, k1, k2, length)
    assert sympy.simplify(seed_seqs - a / (length * kappa + k2)) == 0
    assert sympy.simplify(seed_tokens - seed_seqs * k2 / k1) == 0


def test_the_expanded_expression_equals_the_steps():
    draw = random.Random(5)
    for _ in range(1000):
        u = draw.uniform
        p1, p3 = u(1e8, 1e9), u(1e8, 1e9)
        figures = {
            "total_memory": u(2e10, 2e11),
            "utilization": u(0.5, 0.95),
            "m1": u(1e9, 1e10),
            "n1": u(1e7, 1e9),
            "kv1": u(1e9, 1e11),
            "kvs1": u(1e4, 1e6),
            "p1": p1,
            "p2": p1 + u(1e8, 5e9),
            "p3": p3,
            "p4": p3 + u(1e8, 5e9),
            "mns1": 128,
            "mns2": u(200, 1024),
            "mnbt1": 2048,
            "mnbt2": u(4096, 16384),
            "length": u(64, 8192),
        }
        f = figures
        k1 = (f["p4"] - f["p3"]) / (f["mnbt2"] - f["mnbt1"])
        k2 = (f["p2"] - f["p1"]) / (f["mns2"] - f["mns1"])
        a = f["total_memory"] * f["utilization"] - f["m1"] - f["n1"]
        steps = four_launch_point(a, f["kv1"] / f["kvs1"], k1, k2, f["length"])
        assert four_launch_point_expanded(**figures) == pytest.approx(steps, rel=1e-12)


FOUR = """max_num_seqs,max_num_batched_tokens,total_memory_gib,gpu_memory_utilization,\
model_weights_gib,non_torch_gib,peak_activation_gib,kv_cache_gib,kv_cache_tokens,block_size
128,512,80,0.9,15,1,0.5,55.5,454656,16
512,512,80,0.9,15,1,2.0,54.0,442368,16
16,2048,80,0.9,15,1,0.3,55.7,456288,16
16,16384,80,0.9,15,1,2.4,53.6,439088,16
"""


def test_four_launches_by_hand():
    """K1 = 2.1 GiB/14336, K2 = 1.5 GiB/384, A = 56 GiB, kappa = 55.5 GiB/454656, L = 2048."""
    optimum = find_optimum(fit_memory_model(parse_launches(FOUR)), Workload(1024, 1024))
    k1, k2 = 2.1 * GIB / 14336, 1.5 * GIB / 384
    kappa = 55.5 * GIB / 454656
    seed = recommend_json(optimum)["method"]
    assert seed["k1"] == pytest.approx(k1) and seed["k2"] == pytest.approx(k2)
    assert seed["a"] == pytest.approx(56 * GIB)
    assert seed["kv_bytes_per_token"] == pytest.approx(kappa)
    assert seed["max_num_seqs"] == pytest.approx(56 * GIB / (2048 * kappa + k2))
    assert seed["max_num_batched_tokens"] == pytest.approx(seed["max_num_seqs"] * k2 / k1)
    expanded = four_launch_point_expanded(
        80 * GIB,
        0.9,
        15 * GIB,
        1 * GIB,
        55.5 * GIB,
        454656,
        0.5 * GIB,
        2.0 * GIB,
        0.3 * GIB,
        2.4 * GIB,
        128,
        512,
        2048,
        16384,
        2048,
    )
    assert (seed["max_num_seqs"], seed["max_num_batched_tokens"]) == pytest.approx(expanded)


def test_standard_error_of_a_slope_by_hand():
    """Two peaks rounded to 0.01 GiB, each +- 0.005/sqrt(3): its slope is sqrt(2) of that off."""
    optimum = find_optimum(
        fit_memory_model(parse_launches(FOUR.replace("2.4", "2.41"))), Workload(1024, 1024)
    )
    assert optimum.method.k1.s == pytest.approx(2**0.5 * 0.005 * GIB / 3**0.5 / 14336)
    assert optimum.method.k1.n == pytest.approx(2.11 * GIB / 14336)


def test_the_order_of_the_rows_does_not_matter():
    header, *rows = FOUR.splitlines()
    answers = [
        recommend_json(
            find_optimum(
                fit_memory_model(parse_launches("\n".join([header, *order]))), Workload(512, 512)
            )
        )["method"]
        for order in (rows, rows[::-1])
    ]
    for name in ("max_num_seqs", "max_num_batched_tokens", "k1", "k2", "a"):
        assert answers[0][name] == pytest.approx(answers[1][name], rel=1e-12)


def test_a_derived_by_equation_1_where_total_memory_is_not_printed():
    text = "\n".join(",".join(row.split(",")[:2] + row.split(",")[6:]) for row in FOUR.splitlines())
    seed = find_optimum(fit_memory_model(parse_launches(text)), Workload(1024, 1024)).method
    assert seed.a.n == pytest.approx(56 * GIB)


@pytest.mark.parametrize(
    "drop, reason",
    [("kv_cache_tokens", "KV/KVS"), ("peak_activation_gib,total_memory_gib", "A = TM")],
)
def test_no_answer_has_its_reason(drop, reason):
    rows = [row.split(",") for row in FOUR.splitlines()]
    keep = [i for i, name in enumerate(rows[0]) if name not in drop.split(",")]
    text = "\n".join(",".join(row[i] for i in keep) for row in rows)
    answer = recommend_json(
        find_optimum(fit_memory_model(parse_launches(text)), Workload(1024, 1024))
    )
    assert answer["method"] is None and reason in answer["method_reason"]
