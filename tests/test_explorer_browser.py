"""The explorer in JupyterLab in a real browser: all cells run, a slider moved by its keys."""

import base64
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from vllm_tuning import Workload, find_optimum, model_of
from vllm_tuning.explorer import Explorer

from conftest import ROOT

NAME, ARROW_LEFT, HOME = "llama-3-8b-2-layers", "\ue012", "\ue011"  # by the WebDriver standard
QUIET = '{"fetchNews": "false", "checkForUpdates": false}'
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


def wait(call, seconds=60):
    """What ``call`` returns once that is true."""
    end = time.monotonic() + seconds
    while not (value := call()):
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.1)
    return value


@pytest.fixture(scope="module")
def lab(browser, tmp_path_factory):
    """The browser on a copy of the notebook in JupyterLab, all cells run."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copy(ROOT / "notebooks/02_explorer.ipynb", folder)
    settings = folder / "config/lab/user-settings/@jupyterlab/apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(QUIET)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    own = {f"JUPYTER_{name}_DIR": str(folder / name.lower())
           for name in ("CONFIG", "DATA", "RUNTIME")}
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}",
         "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}",
         f"--ServerApp.root_dir={folder}", "--LabApp.expose_app_in_browser=True"],
        env=os.environ | own | {"IPYTHONDIR": str(folder / "ipython")}, cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers():
        assert server.poll() is None, "JupyterLab ended"
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token={token}", timeout=5)
        except OSError:
            return None

    try:
        wait(answers)
        browser.get(f"http://127.0.0.1:{port}/lab/tree/02_explorer.ipynb?token={token}")
        wait(lambda: browser.execute_script(
            "return window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status"
        ) == "idle")
        browser.execute_script("jupyterapp.commands.execute('notebook:run-all-cells')")
        wait(lambda: len((browser.execute_script(READ) or {"sources": []})["sources"]) == 3)
        yield browser
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def handle(lab):
    return lab.find_element("css selector", ".jp-OutputArea-output .noUi-handle")


def agrees(lab, seen):
    """The flags are those of the command line, the pictures those of a fresh explorer."""
    work = Workload(*seen["lengths"])
    assert seen["flags"] == find_optimum(model_of([NAME]), work).recommended.flags
    fresh = Explorer(NAME, work.input_len, work.output_len)
    assert [base64.b64decode(lab.execute_async_script(BYTES, source)) for source in seen["sources"]
            ] == [image.value for image in fresh.images]


def moved(lab, before):
    """What is shown once flags and all pictures are other ones."""
    def other():
        now = lab.execute_script(READ)
        return now["flags"] != before["flags"] and not set(now["sources"]) & set(
            before["sources"]) and now
    return wait(other, 20)


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
