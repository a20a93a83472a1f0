"""The slider's frames: their lengths, what each says against find_optimum and by hand, and none."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from conftest import ROOT
from matplotlib.figure import Figure

from vllm_tuning import GIB, Workload, find_optimum, fit_memory_model, model_of, read_launches
from vllm_tuning.figures.law import figure_1_by_length
from vllm_tuning.kv_cache.layout import Shape
from vllm_tuning.report.length_slider import ladder, length_slider

K1, K2, K, KAPPA, BLOCK = 147456, 3094568, 8192, 8192, 32  # exact bytes of the two-layer model
WORK = Workload(1024, 256)
MODEL = model_of(["llama-3-8b-2-layers"])
HIDDEN = "display:none"


@pytest.mark.parametrize("given", [(1024, 256), (1, 1), (3, 1), (1, 1023), (1023, 1), (10**6, 7)])
def test_the_ladder_holds_the_given_length_and_its_share_of_output(given):
    given, rungs = Workload(*given), ladder(Workload(*given))
    lengths = [rung.length for rung in rungs]
    assert given in rungs and lengths == sorted(set(lengths))
    assert lengths[0] == max(2, round(given.length / 4)) and lengths[-1] == 4 * given.length
    for rung in rungs:
        exact = rung.length * given.output_len / given.length
        assert rung.output_len - exact < 1 and rung.output_len >= min(exact, rung.length - 1)


def test_the_ladder_of_the_example_by_hand():
    assert [rung.length for rung in ladder(WORK)][::8] == [320, 640, 1280, 2560, 5120]
    assert len(ladder(WORK)) == 33


def frames(html):
    """{frame: its elements}, in the order of the page, which must be well-formed."""
    found = {}
    for element in ElementTree.fromstring(html).iter():
        if (frame := element.get("data-frame")) is not None:
            found.setdefault(int(frame), []).append(element)
    return found


def text(elements):
    return " ".join(" ".join("".join(element.itertext()).split()) for element in elements)


def test_each_frame_says_what_find_optimum_says_at_its_length():
    shown = frames(length_slider(find_optimum(MODEL, WORK)))
    assert list(shown) == list(range(33))
    for frame in shown.values():
        total, *shares = (
            int(number.replace(",", ""))
            for number in re.match(
                r"([\d,]+) tokens \(([\d,]+) input \+ ([\d,]+) output", text(frame)
            ).groups()
        )
        optimum = find_optimum(MODEL, Workload(*shares))
        best = optimum.recommended
        assert total == sum(shares)
        assert f"{best.flags}Copy" in text(frame)
        assert f"{best.kv_cache_tokens:,} ± {best.kv_cache_tokens_stderr:,.0f} tokens" in text(
            frame
        )
        assert len(re.findall("beyond_max_model_len", text(frame))) == (total > 2048)
        for notice in optimum.notices:
            assert notice.text in text(frame)


def test_without_the_script_only_the_given_length_is_shown():
    html = length_slider(find_optimum(MODEL, WORK))
    shown = [
        (frame, element)
        for frame, elements in frames(html).items()
        for element in elements
        if element.get("style") != HIDDEN
    ]
    assert {frame for frame, _ in shown} == {16} and "1,280 tokens" in text([shown[0][1]])
    assert len(shown) == len(frames(html)[0])
    assert ElementTree.fromstring(html).find("label").get("style") == HIDDEN


def test_a_request_of_twice_the_length_by_hand(exact_launches):
    first = exact_launches[0]
    left_over = first["kv_cache_bytes"] + first["peak_activation_bytes"]

    def budget(seqs):  # the two runs meet
        return K2 * seqs // (K1 - K)

    def holds(seqs):  # 2,560 tokens are 80 blocks; one block is reserved
        return (left_over - K1 * budget(seqs)) // (BLOCK * KAPPA) - 1 >= 80 * seqs

    most = max(filter(holds, range(1000)))
    shown = text(frames(length_slider(find_optimum(MODEL, WORK)))[24])
    assert "2,560 tokens (2,048 input + 512 output)" in shown
    seqs, tokens = map(int, re.search(r"seqs (\d+) --max-num-batched-tokens (\d+)", shown).groups())
    assert most - 1 <= seqs <= most
    assert budget(seqs) <= tokens < 1.01 * budget(seqs)  # what rounding mns down left
    assert (left_over - K1 * tokens) // (BLOCK * KAPPA) - 1 >= 80 * seqs


@pytest.mark.parametrize("pool", [False, True])
def test_the_point_of_each_frame_lies_on_the_peak_by_hand(pool, exact_launches):
    first, model = exact_launches[0], MODEL
    left_over = first["kv_cache_bytes"] + first["peak_activation_bytes"]
    if pool:
        model = fit_memory_model(
            [
                replace(launch, peak_activation=None, total_memory=None)
                for launch in read_launches(ROOT / "data/llama-3-8b-2-layers")
            ],
            Shape(KAPPA, K),
        )
    optima = [find_optimum(model, rung) for rung in ladder(WORK)]
    ax = figure_1_by_length(model, optima, 16, Figure().add_subplot())
    assert ("pool" if pool else "peak") in ax.get_ylabel()
    stars = {
        line.get_gid(): line.get_xydata() for line in ax.get_lines() if line.get_marker() == "*"
    }
    assert stars.pop("given-length") == pytest.approx(stars["frame-16"])
    for i, optimum in enumerate(optima):
        best, ((seqs, height),) = optimum.recommended, stars.pop(f"frame-{i}")
        tokens = best.max_num_batched_tokens
        peak = max(K1 * tokens, K2 * seqs + K * tokens)
        assert seqs == best.max_num_seqs
        assert height == pytest.approx((left_over - peak if pool else peak) / GIB, abs=0.005)
    assert not stars and ax.get_xlim()[1] > optima[0].recommended.max_num_seqs


def test_where_the_given_length_does_not_fit_the_shorter_ones_do():
    given = Workload(500_000, 100_000)  # the largest pool holds 512,064 tokens
    shown = frames(length_slider(find_optimum(MODEL, given)))
    assert "not one request of 600,000 tokens fits" in text(shown[16])
    assert not [element for element in shown[16] if element.tag.endswith("}g")]
    assert "150,000 tokens" in text(shown[0]) and "--max-num-seqs 3 " in text(shown[0])


@pytest.mark.parametrize(
    "name, work, why",
    [
        ("qwen3.5-4b-a30", WORK, "K2 is not known: no launch is in the sampler"),
        ("llama-3-8b-2-layers", Workload(10**7, 1), "not one request of 2,500,000 tokens fits"),
    ],
)
def test_without_any_answer_a_sentence_says_why(name, work, why):
    html = length_slider(find_optimum(model_of([name]), work))
    assert html.startswith(f"<p>No slider for the length of a request: {why}")
    assert "<input" not in html and "<script" not in html


def test_layers_of_several_kinds_have_no_slider():
    hybrid = [
        replace(launch, hybrid=True, kv_cache_tokens=None, max_concurrency=None)
        for launch in read_launches(ROOT / "data/llama-3-8b-2-layers")
    ]
    html = length_slider(find_optimum(fit_memory_model(hybrid), WORK))
    assert "No slider" in html and "layers of several kinds" in html and "<input" not in html
