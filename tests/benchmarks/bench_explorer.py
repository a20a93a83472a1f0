"""The explorer against ``interact`` with the same three figures: key to new pixels, in turns.

Both stand in one notebook in JupyterLab, in headless Chromium. Before that the callback alone.
"""

import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import nbformat
from timing import seconds

from vllm_tuning.explorer import Explorer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from conftest import BROWSER, chromium
from lab import jupyterlab, wait

NAME, TURNS, LIMIT, CALLBACK = "llama-3-8b-2-layers", 15, 0.6, 0.120
CELLS = [
    f"""
from vllm_tuning.explorer import Explorer
Explorer("{NAME}", 1024, 256)
""",
    f"""
import matplotlib.pyplot as plt
from ipywidgets import interact, SelectionSlider
from vllm_tuning import Workload, figures, find_optimum, model_of
model, lengths = model_of(["{NAME}"]), Explorer("{NAME}", 1024, 256).input_len.options

@interact(input_len=SelectionSlider(options=lengths, value=1024))
def draw(input_len):
    optimum = find_optimum(model, Workload(input_len, 256))
    figures.figure_1(model, optimum)
    figures.figure_2(model, optimum)
    figures.budget_bars(model, optimum)
    plt.show()
""",
]
MOVE = """
    const [place, key, done] = arguments;
    const areas = [...document.querySelectorAll(".jp-CodeCell")].map(
        cell => cell.querySelector(".jp-Cell-outputWrapper"));
    const images = () => [...areas[place].querySelectorAll("img")];
    const before = new Set(images().map(image => image.src)), start = performance.now();
    areas[place].querySelector(".noUi-handle").dispatchEvent(
        new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
    const look = () => {
        const now = images();
        if (now.length === 3 && now.every(image => !before.has(image.src) && image.complete
                                          && image.naturalWidth))
            requestAnimationFrame(() => done(performance.now() - start));
        else requestAnimationFrame(look)};
    look();
"""
READY = """return [...document.querySelectorAll(".jp-CodeCell")].map(
    cell => cell.querySelectorAll(".jp-Cell-outputWrapper img").length).join() === "3,3" """


def callback() -> float:
    """Median seconds of a slider's change, without a front end."""
    play = Explorer(NAME, 1024, 256)
    lengths = [value for _, value in play.input_len.options if 256 <= value <= 4096]

    def move(value):
        play.input_len.value = value

    move(lengths[0])
    return statistics.median(seconds(lambda value=value: move(value)) for value in lengths[1:])


def in_browser() -> list[tuple[float, float]]:
    """(explorer, interact) milliseconds of each turn."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in CELLS],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        for part in ("lab", "chromium", "given"):
            (Path(name) / part).mkdir()
        path = Path(name) / "given/both.ipynb"
        nbformat.write(notebook, path)
        with (
            chromium(Path(name) / "chromium", {}) as browser,
            jupyterlab(browser, Path(name) / "lab", path),
        ):
            browser.set_script_timeout(60)
            wait(lambda: browser.execute_script(READY))
            keys = ["ArrowLeft", "ArrowRight"] * (TURNS // 2 + 1)
            return [
                tuple(browser.execute_async_script(MOVE, place, key) for place in (0, 1))
                for key in keys
            ][2:]


def main() -> int:
    alone = callback()
    print(f"explorer: callback {alone * 1e3:,.0f} ms (limit {CALLBACK * 1e3:.0f} ms)")
    if missing := [name for name in BROWSER if shutil.which(name) is None]:
        print(f"explorer: no browser to drive: {' and '.join(missing)} not on the PATH")
        return int(alone > CALLBACK)
    turns = in_browser()
    ours, theirs = (statistics.median(side) for side in zip(*turns, strict=True))
    print(
        f"explorer: {ours:,.0f} ms from key to pixels, interact {theirs:,.0f} ms, "
        f"ratio {ours / theirs:.2f} (limit {LIMIT})"
    )
    return int(alone > CALLBACK or ours / theirs > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
