"""The explorer in JupyterLab in a real browser: all cells run, a slider moved by its keys."""

import base64

import pytest
from conftest import ROOT
from lab import jupyterlab, wait

from vllm_tuning import Workload, find_optimum, model_of
from vllm_tuning.explorer import Explorer

NAME, ARROW_LEFT, HOME = "llama-3-8b-2-layers", "\ue012", "\ue011"  # by the WebDriver standard
READ = """
    const area = document.querySelector(".jp-OutputArea-output .widget-vbox");
    if (!area) return null;
    const text = [...area.querySelectorAll(".widget-readout")].map(e => e.textContent);
    return {lengths: text.slice(0, 2).map(t => Number(t.replace(/,/g, ""))),
            flags: area.querySelector("code")?.textContent,
            sources: [...area.querySelectorAll("img")].map(e => e.src)}
"""
BYTES = """
    const done = arguments[1];
    fetch(arguments[0]).then(answer => answer.blob()).then(blob => {
        const reader = new FileReader();
        reader.onload = () => done(reader.result.split(",")[1]);
        reader.readAsDataURL(blob)})
"""


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    """The browser on the explorer, all cells run."""
    folder = tmp_path_factory.mktemp("lab")
    with jupyterlab(browser, folder, ROOT / "notebooks/02_explorer.ipynb") as page:
        wait(lambda: len((page.execute_script(READ) or {"sources": []})["sources"]) == 3)
        yield page


def handle(lab):
    return lab.find_element("css selector", ".jp-OutputArea-output .noUi-handle")


def agrees(lab, seen):
    """The flags are those of the command line, the pictures those of a fresh explorer."""
    work = Workload(*seen["lengths"])
    assert seen["flags"] == find_optimum(model_of([NAME]), work).recommended.flags
    fresh = Explorer(NAME, work.input_len, work.output_len)
    assert [
        base64.b64decode(lab.execute_async_script(BYTES, source)) for source in seen["sources"]
    ] == [image.value for image in fresh.images]


def moved(lab, before):
    """What is shown once flags and all pictures are other ones."""

    def other():
        now = lab.execute_script(READ)
        return (
            now["flags"] != before["flags"]
            and not set(now["sources"]) & set(before["sources"])
            and now
        )

    return wait(other)


def test_it_starts_at_the_parameters(lab):
    seen = lab.execute_script(READ)
    assert seen["lengths"] == [1024, 256]
    agrees(lab, seen)


@pytest.mark.parametrize("key", [ARROW_LEFT, HOME])
def test_a_key_moves_flags_and_pictures(lab, key):
    before = lab.execute_script(READ)
    handle(lab).send_keys(key)
    seen = moved(lab, before)
    assert seen["lengths"][0] < before["lengths"][0] and seen["lengths"][1] == 256
    agrees(lab, seen)


def test_reset_brings_the_start_back(lab):
    before = lab.execute_script(READ)
    lab.find_element("xpath", "//button[contains(., 'Reset')]").click()
    seen = moved(lab, before)
    assert seen["lengths"] == [1024, 256]
    agrees(lab, seen)


def test_the_notebook_shows_no_error(lab):
    assert not lab.find_elements("css selector", ".jp-RenderedText[data-mime-type*='stderr']")
