"""The explorer without a browser: values are set, and flags and pictures follow."""

import base64
import html
import re

import pytest
from conftest import ROOT

from vllm_tuning import GIB, Workload, explorer, find_optimum, model_of
from vllm_tuning.explorer import Explorer, cost_of
from vllm_tuning.explorer.utilization import at_utilization
from vllm_tuning.figures import pictures
from vllm_tuning.reading.tables import DATA
from vllm_tuning.report import answer_summary

NAME, ONE_GROUP = "llama-3-8b-2-layers", "qwen3.5-4b-a30"
MODEL = model_of([NAME])


@pytest.fixture(scope="module")
def one():
    return Explorer(NAME, 1024, 256)


@pytest.fixture
def play(one):
    one.data_set.value = NAME
    one.reset()
    return one


def text(widget):
    return html.unescape(re.sub(r"<[^>]+>", " ", widget.value))


def values(play):
    return [image.value for image in play.images]


def flags(play):
    return re.findall(r"--max-num-seqs (\d+) --max-num-batched-tokens (\d+)", play.answer.value)


def of(optimum):
    """The flags of an answer, and where a launch proves it those of the launches to make next."""
    best, more = optimum.recommended, optimum.model.next_launches
    shown = [best, *(more if best.basis == "bound" else ())]
    return [(str(each.max_num_seqs), str(each.max_num_batched_tokens)) for each in shown]


def hidden(control):
    return control.layout.display == "none"


def test_it_starts_at_values_between_the_steps_too():
    play = Explorer(NAME, 1000, 77, 0.625)
    assert [play.input_len.value, play.output_len.value, play.utilization.value] == [
        1000,
        77,
        0.625,
    ]
    assert flags(play) == of(find_optimum(at_utilization(MODEL, 0.625), Workload(1000, 77)))


@pytest.mark.parametrize(
    "moved, model",
    [
        ({"input_len": 2048}, MODEL),
        ({"output_len": 16}, MODEL),
        ({"input_len": 64, "output_len": 64}, MODEL),
        ({"utilization": 0.7}, at_utilization(MODEL, 0.7)),
    ],
    ids=str,
)
def test_a_slider_moves_flags_and_every_picture(play, moved, model):
    before = values(play)
    for name, value in moved.items():
        getattr(play, name).value = value
    work = Workload(play.input_len.value, play.output_len.value)
    assert flags(play) == of(find_optimum(model, work)) != [("310", "6913")]
    assert not set(before) & set(values(play))
    flag = f"--gpu-memory-utilization {moved.get('utilization')}"
    assert (flag in play.answer.value) == ("utilization" in moved)


def test_leaving_the_recommended_point_is_priced_by_hand(play):
    play.mns.value = 2
    k1, k2, k, best = 147456, 3094568, 8192, play.optimum.recommended
    seqs, tokens = 2 * best.max_num_seqs, best.max_num_batched_tokens
    less = (k2 * seqs + k * tokens - max(k1 * tokens, k2 * best.max_num_seqs + k * tokens)) / GIB
    assert flags(play)[1] == (str(seqs), str(tokens)) and play.chosen == (seqs, tokens)
    assert f"-{less:.2f} GiB" in text(play.answer)
    held = (best.kv_cache - less * GIB) / (1280 * 8192)
    assert f"holds {held:,.1f} full requests: {seqs:,} at once can preempt" in text(play.answer)


def test_fewer_requests_at_once_never_preempt(play):
    play.mns.value = 0.5
    assert "155 at once never preempt" in text(play.answer)


def test_flags_that_cannot_serve_say_why(play):
    assert "vLLM refuses" in cost_of(play.optimum, 500, 400)
    assert "would not start" in cost_of(play.optimum, 1000, 400_000)


def test_reset_brings_back_the_start(play):
    start, answer = values(play), play.answer.value
    play.input_len.value, play.utilization.value = 8192, 0.9
    play.mns.value, play.mnbt.value = 4, 0.25
    play.path.value = ONE_GROUP
    play.reset_button.click()
    assert play.path.value == "" and play.data_set.value == NAME
    assert values(play) == start and play.answer.value == answer


@pytest.mark.parametrize("name", sorted(path.parent.name for path in DATA.glob("*/launches.csv")))
def test_every_data_set_shows_an_answer_or_a_sentence(play, name):
    before = values(play)
    play.data_set.value = name
    if play.optimum and play.optimum.recommended:
        assert flags(play) == of(find_optimum(model_of([name]), Workload(1024, 256)))
    else:
        assert re.search("No (recommendation yet|answer)[.] .{30}", text(play.answer))
        assert not set(before) & set(values(play))
        assert hidden(play.mns) and "mns and mnbt" in play.notes.value
    play.data_set.value = NAME
    play.reset()
    assert values(play) == before and not hidden(play.mns)


def test_one_group_alone_says_what_is_missing(play):
    play.data_set.value = ONE_GROUP
    assert "K2 is not known" in text(play.answer) and "Launch next" in text(play.answer)
    assert hidden(play.utilization) and "No slider for utilization" in play.notes.value
    assert not any(map(hidden, (play.input_len, play.output_len, play.data_set, play.path)))
    assert "no launch gives total_memory" in play.notes.value


@pytest.mark.parametrize(
    "source", ["no-such-set", "/", "-", "", "bad.csv", "a\0b", "\udc80", "a" * 5000], ids=range(8)
)
def test_a_source_that_cannot_be_read_is_a_sentence(play, tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.csv").write_text("max_num_seqs\nnan\n")
    before = values(play)
    play.data_set.value = None
    play.path.value = source
    if source:
        assert "No answer" in text(play.answer) and not set(before) & set(values(play))
        assert play.optimum is None and play.text.startswith("No answer")
    play.data_set.value = NAME
    play.reset()
    assert values(play) == before and play.path.value == ""


@pytest.mark.parametrize("path", [DATA / ONE_GROUP, ONE_GROUP], ids=str)
def test_a_path_takes_the_place_of_the_data_set(play, path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    play.path.value = str(path)
    assert play.data_set.value is None and "K2 is not known" in text(play.answer)
    play.path.value = ""
    assert play.data_set.value == NAME and flags(play) == [("310", "6913")]


LOGS = sorted((DATA / NAME / "logs").iterdir())


@pytest.mark.parametrize("logs", [LOGS, LOGS * 2, str(DATA / NAME / "logs")], ids=range(3))
def test_several_logs_are_one_model(logs):
    play = Explorer(logs, 1024, 256)
    assert len(play.optimum.model.launches) == len(LOGS)
    assert flags(play) == of(find_optimum(model_of(LOGS), Workload(1024, 256)))


@pytest.mark.parametrize("nothing", ["", "  ", None, []])
def test_launches_that_are_not_named_are_a_sentence(nothing):
    play = Explorer(nothing, 1024, 256)
    assert play.optimum is None and re.match("No answer[.] .{30}", play.text)


def test_a_utilization_that_cannot_be_moved_is_not_passed_over():
    play = Explorer(ONE_GROUP, 1024, 256, 0.8)
    assert "utilization is 0.8, but cannot be moved" in text(play.answer)
    play.input_len.value = 2048
    assert "K2 is not known" in text(play.answer)


@pytest.fixture(scope="module")
def canvases():
    return pictures()


@pytest.mark.parametrize("bad", [0, 2**40, 1.5, "abc", "1024", None, float("nan"), [1]])
def test_values_out_of_range_get_no_answer_until_a_slider_is_moved(bad, canvases, monkeypatch):
    monkeypatch.setattr(explorer, "pictures", lambda: canvases)  # of the same model each time
    play = Explorer(NAME, bad, 256, 1.7)
    assert play.optimum is None
    assert f"input_len is {bad!r}; it must be a whole number from 1 to" in text(play.answer)
    assert "utilization is 1.7; it must be a number from 0.05 to 1" in play.text
    play.utilization.value = 0.6
    play.input_len.value = 1024
    assert play.optimum.recommended.max_num_seqs == 310


def test_another_utilization_stands_above_the_text_as_a_flag():
    play = Explorer(NAME, 1024, 256, 0.7)
    assert play.text.startswith("With --gpu-memory-utilization 0.7\nRequests of")
    assert Explorer(NAME, 1024, 256, 0.0).text == Explorer(NAME, 1024, 256).text


@pytest.mark.parametrize("lengths", [(1, 1), (1, 2**20), (2**20, 1), (2**20, 2**20)])
@pytest.mark.parametrize("utilization, factors", [(0.05, (0.25, 4)), (1.0, (4, 0.25))])
def test_the_ends_of_the_sliders_are_an_answer_or_a_sentence(play, lengths, utilization, factors):
    play.input_len.value, play.output_len.value = lengths
    play.utilization.value = utilization
    before = values(play)
    play.mns.value, play.mnbt.value = factors
    if "not one request" in text(play.answer).lower():
        assert hidden(play.mns) and (utilization == 0.05 or max(lengths) == 2**20)
    else:
        assert len(flags(play)) == 2 and not set(before) & set(values(play))


def test_without_a_front_end_the_same_pictures_and_flags_are_shown(play):
    bundle = play._repr_mimebundle_()
    assert (
        bundle["text/plain"]
        == play.text
        == answer_summary(find_optimum(MODEL, Workload(1024, 256))).as_text()
    )
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    still = bundle["image/png"]
    play.input_len.value = 2048
    assert play._repr_mimebundle_()["image/png"] != still


def test_papermill_starts_it_at_the_parameters_and_keeps_the_pictures(tmp_path):
    import papermill

    done = papermill.execute_notebook(
        ROOT / "notebooks/02_explorer.ipynb",
        None,
        {"input_len": 2000, "utilization": 0.65},
        cwd=tmp_path,
        progress_bar=False,
        kernel_name="python3",
    )
    outputs = [output for cell in done.cells for output in cell.get("outputs", ())]
    (shown,) = [output.data for output in outputs if output.output_type == "execute_result"]
    fresh = Explorer(NAME, 2000, 256, 0.65)
    assert shown["image/png"].strip() == fresh._repr_mimebundle_()["image/png"]
    (printed,) = [
        output.text
        for output in outputs
        if output.output_type == "stream" and output.name == "stdout"
    ]
    assert printed == fresh.text + "\n"
    best = find_optimum(at_utilization(MODEL, 0.65), Workload(2000, 256)).recommended
    assert best.flags in printed
