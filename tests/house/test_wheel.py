"""The wheel works by itself, away from the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            *PIP,
            "wheel",
            "--no-index",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            folder,
            ROOT,
        ],
        check=True,
    )
    (wheel,) = folder.glob("vllm_tuning-*.whl")
    return wheel


@pytest.fixture
def python(wheel, tmp_path):
    """Run Python in an empty folder, with the installed wheel first on its path."""
    target, work = tmp_path / "target", tmp_path / "work"
    work.mkdir()
    subprocess.run(
        [*PIP, "install", "--no-index", "--no-deps", "--target", target, wheel], check=True
    )

    def run(*args):
        env = os.environ | {"PYTHONPATH": str(target)}
        return subprocess.run(
            [sys.executable, *args],
            cwd=work,
            env=env,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout

    run.target, run.work = target, work
    return run


def test_wheel_carries_notebooks_and_data(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "vllm_tuning/notebooks/tuning_report.ipynb" in names
    assert "vllm_tuning/data/llama-3-8b-2-layers/launches.csv" in names
    assert {name.split("/")[0] for name in names} == {"vllm_tuning", "vllm_tuning-0.1.0.dist-info"}


def test_installed_wheel_writes_a_report(python):
    imported = python("-c", "import vllm_tuning; print(vllm_tuning.__file__)").strip()
    assert Path(imported).is_relative_to(python.target)

    lengths = ["--input-len", "1024", "--output-len", "256"]
    python("-m", "vllm_tuning", "report", "llama-3-8b-2-layers", *lengths, "-o", "out")
    assert (python.work / "out" / "llama-3-8b-2-layers.html").is_file()
