"""The report's slider moved in a real browser, from a file, with the network cut."""

import json
import re

import pytest

from vllm_tuning import Workload, find_optimum, model_of
from vllm_tuning.law import peak_activation
from vllm_tuning.report.page import write_report

NAME, GIVEN = "llama-3-8b-2-layers", Workload(700, 300)
MODEL = model_of([NAME])
LOGGED = {"performance": "ALL"}
HOME, END, LEFT, RIGHT = "\ue011", "\ue010", "\ue012", "\ue014"  # by the WebDriver standard
READ = """
    const section = document.querySelector(".lengths"), svg = section.querySelector("svg");
    const visible = what => [...section.querySelectorAll(what)].filter(
        e => e.getClientRects().length);
    const stars = [...visible("svg [data-frame] use"), ...visible("#given-length use")];
    const {x, y, height} = svg.querySelector("#patch_2").getBBox();
    return {length: section.querySelector("output").innerText, text: section.innerText,
            flags: visible("pre").map(e => e.textContent),
            stars: stars.map(e => [e.x.baseVal.value - x, y + height - e.y.baseVal.value])}
"""


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """The browser on a fresh report, offline."""
    folder = tmp_path_factory.mktemp("report")
    report = write_report(NAME, GIVEN.input_len, GIVEN.output_len, folder)
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd(
        "Network.emulateNetworkConditions",
        {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0},
    )
    browser.get(report.html.as_uri())
    return browser


@pytest.fixture
def slider(page):
    page.refresh()
    return page.find_element("css selector", ".lengths input[type=range]")


def shown(page):
    """(lengths, flags) as a reader sees them, which agree with Python, as does the picture."""
    seen = page.execute_script(READ)
    work = Workload(
        *(
            int(number.replace(",", ""))
            for number in re.findall(r"([\d,]+) (?:in|out)put", seen["length"])
        )
    )
    best, given = (find_optimum(MODEL, each).recommended for each in (work, GIVEN))
    assert seen["flags"] == [best.flags]
    assert f"{best.kv_cache_tokens:,} ± {best.kv_cache_tokens_stderr:,.0f} tokens" in seen["text"]
    star, hollow = seen["stars"]  # from the origin of the axes, which is 0 requests and 0 GiB
    law = {name: getattr(MODEL, name).n for name in ("k1", "a1", "k2", "a2", "k")}
    peaks = [
        peak_activation(each.max_num_batched_tokens, each.max_num_seqs, **law)
        for each in (best, given)
    ]
    assert star[0] / hollow[0] == pytest.approx(best.max_num_seqs / given.max_num_seqs, rel=1e-4)
    assert star[1] / hollow[1] == pytest.approx(peaks[0] / peaks[1], rel=1e-3)
    return work, best.flags


def picture(page):
    return page.find_element("css selector", ".lengths svg").screenshot_as_png


def test_at_first_the_given_length_is_shown(page, slider):
    assert slider.is_displayed() and "Length of a finished request" in slider.accessible_name
    assert shown(page)[0] == GIVEN


@pytest.mark.parametrize(
    "key, times", [(RIGHT, 2 ** (1 / 8)), (LEFT, 2 ** (-1 / 8)), (HOME, 1 / 4), (END, 4)]
)
def test_the_keyboard_moves_it(page, slider, key, times):
    before, drawn = shown(page), picture(page)
    slider.send_keys(key)
    work, flags = shown(page)
    assert work.length == round(times * GIVEN.length) and flags != before[1]
    assert picture(page) != drawn
    assert slider.get_attribute("aria-valuetext").startswith(f"{work.length:,} tokens (")


def test_an_input_event_moves_it_through_every_length(page, slider):
    seen = []
    for value in range(int(slider.get_attribute("max")) + 1):
        page.execute_script(
            "arguments[0].value = arguments[1];arguments[0].dispatchEvent(new Event('input'))",
            slider,
            value,
        )
        seen.append(shown(page))
    assert len(seen) == len(set(seen)) == 33
    assert seen[16][0] == GIVEN


def test_on_paper_the_given_length_stands_wherever_the_slider_is(page, slider):
    slider.send_keys(END)
    assert shown(page)[0] != GIVEN
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert not slider.is_displayed() and shown(page)[0] == GIVEN
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_without_javascript_the_given_length_stands_alone(page, slider):
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.refresh()
        assert not page.find_element("css selector", ".lengths input").is_displayed()
        assert shown(page)[0] == GIVEN
    finally:
        page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_the_page_asks_for_nothing_but_itself(page, slider):
    page.get_log("performance")
    page.refresh()
    page.find_element("css selector", ".lengths input").send_keys(END)
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert page.current_url in asked
    assert {url.split(":")[0] for url in asked} <= {"file", "data"}
