"""What several tests share: the real measurements, read without the code under test."""

import csv
import gc
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
BROWSER = ("chromium", "chromedriver")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what the tests start can be stopped
gc.set_threshold(100_000, 50, 100)  # figures are many small objects; a sixth of the time is saved


def rows_of(path):
    lines = [line for line in path.read_text().splitlines() if line and line[0] != "#"]
    return list(csv.DictReader(lines))


@pytest.fixture(scope="session")
def grid():
    """The measured peaks of vLLM's profile run: tokens, requests, bytes."""
    rows = rows_of(ROOT / "data/vllm-0.32-profile-grid/launches.csv")
    return {
        "tokens": np.array([float(row["max_num_batched_tokens"]) for row in rows]),
        "seqs": np.array([float(row["max_num_seqs"]) for row in rows]),
        "peak": np.array([float(row["peak_activation_gib"]) * 2**30 for row in rows]),
    }


@pytest.fixture(scope="session")
def exact_launches():
    """Exact bytes of the two-layer model's launches, from vLLM's own accounting."""
    return [
        {name: int(value) for name, value in row.items()}
        for row in rows_of(ROOT / "tests/data/llama-3-8b-2-layers-bytes.csv")
    ]


@pytest.fixture(scope="module")
def browser(request, tmp_path_factory):
    """A browser for the tests of a module, which says in LOGGED what it reads of its log."""
    if missing := [name for name in BROWSER if shutil.which(name) is None]:
        pytest.skip(f"no browser to drive: {' and '.join(missing)} not on the PATH")
    logged = getattr(request.module, "LOGGED", {})
    with chromium(tmp_path_factory.mktemp("chromium"), logged) as driver:
        yield driver


@contextmanager
def chromium(profile, logged):
    """Headless Chromium, driven by selenium, for which there is no host but this machine.

    logged: of ``goog:loggingPrefs``.
    """
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", logged)
    for argument in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "window-size=1366,768",
        f"user-data-dir={profile}",
        "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
    ):
        options.add_argument(f"--{argument}")
    # The path is given, so that selenium does not look for a driver on the network.
    driver = Chrome(options, ChromeService(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()
