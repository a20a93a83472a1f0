"""The project's own files agree with one another."""

import doctest
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import vllm_tuning

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
DIRECT = [
    Requirement(text)
    for text in PROJECT["dependencies"]
    + PROJECT["optional-dependencies"]["test"]
    + PYPROJECT["dependency-groups"]["setup"]
    + PYPROJECT["build-system"]["requires"]
]
LOCK = (ROOT / "requirements.lock").read_text()
TARGETS = {
    "setup",
    "report",
    "test",
    "lint",
    "test-vllm",
    "lab",
    "notebooks",
    "benchmark",
    "lock",
    "clean",
    "help",
}


def bounds(requirements):
    return {
        canonicalize_name(requirement.name): requirement.specifier for requirement in requirements
    }


def locked():
    for entry in LOCK.replace("\\\n", " ").splitlines():
        text, *hashes = entry.split("--hash=")
        yield Requirement(text), hashes


def test_conda_environment_has_the_same_packages_and_bounds():
    _, dependencies = (ROOT / "environment.yml").read_text().split("\ndependencies:\n")
    conda = bounds(map(Requirement, re.findall(r"^  - (\w.*[^:])$", dependencies, re.MULTILINE)))
    assert conda.pop("pip") == ""
    assert conda.pop("python") == PROJECT["requires-python"]
    assert conda == bounds(
        map(Requirement, PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"])
    )


def test_lock_names_no_place():
    assert "://" not in LOCK
    assert set(re.findall(r"(?<!\S)-[-\w]*", LOCK)) == {"--hash"}
    assert "@" not in LOCK


def test_every_locked_package_is_pinned_and_hashed():
    for requirement, hashes in locked():
        assert [pin.operator for pin in requirement.specifier] == ["=="], requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", digest) for digest in hashes), (
            requirement
        )


@pytest.mark.parametrize("direct", DIRECT, ids=str)
def test_lock_holds_each_direct_dependency_within_bounds(direct):
    pins = [
        pin
        for requirement, _ in locked()
        if requirement.name == direct.name
        for pin in requirement.specifier
    ]
    assert pins
    assert all(pin.version in direct.specifier for pin in pins)


@pytest.mark.skipif(not shutil.which("make"), reason="needs make")
def test_make_alone_lists_every_target():
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MAKE") and name != "MFLAGS"
    }

    def make(*args):
        return subprocess.run(
            ["make", *args], cwd=ROOT, env=env, capture_output=True, text=True, check=True
        ).stdout

    listed = set(re.findall(r"^make ([\w-]+) +\S", make(), re.MULTILINE))
    assert make() == make("help")
    assert listed == TARGETS


@pytest.mark.parametrize(
    "module",
    [
        found.name
        for found in pkgutil.walk_packages(vllm_tuning.__path__, "vllm_tuning.")
        if not found.name.endswith(".__main__")
    ],
)
def test_the_examples_in_the_docstrings_hold(module):
    module = importlib.import_module(module)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0
