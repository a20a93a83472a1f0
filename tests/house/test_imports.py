"""The direction of imports: the method imports no room, a room only what stands before it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vllm_tuning

PACKAGE = Path(vllm_tuning.__file__).parent
ROOMS = [
    "reading",
    "diagnosis",
    "kv_cache",
    "budget",
    "scheduler",
    "measure",
    "plugin",
    "load",
    "answer",
    "figures",
    "report",
    "explorer",
    "cli",
]
ONLY_IN = {
    "matplotlib": {"figures", "explorer"},
    "PIL": {"figures"},
    "ipywidgets": {"explorer"},
    "papermill": {"report"},
    "nbconvert": {"report"},
    "click": {"cli"},
    "prometheus_client": {"reading"},
}
FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
every = pytest.mark.parametrize("path", FILES, ids=str)


def room_of(path):
    return path.parts[0] if len(path.parts) > 1 else ""


def imports_of(path):
    """The absolute name of each module that a file imports, wherever in it, and the names taken."""
    for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            here = ("vllm_tuning", *path.parts[:-1])
            base = here[: len(here) - node.level + 1] if node.level else ()
            module = ".".join((*base, *filter(None, [node.module])))
            yield module, tuple(alias.name for alias in node.names)


@every
def test_a_file_imports_the_method_its_own_room_and_the_doors_of_rooms_before_it(path):
    mine = room_of(path)
    for module, names in imports_of(path):
        if module.partition(".")[0] != "vllm_tuning":
            continue
        assert mine != "plugin", f"{path} imports {module}"
        _, *parts = module.split(".")
        if parts and parts[0] in ROOMS:
            assert mine or path.name == "__main__.py", f"{path} imports the room {parts[0]}"
            mine = mine or "cli"
            assert ROOMS.index(parts[0]) <= ROOMS.index(mine), f"{path} imports {module}"
            assert parts[0] == mine or len(parts) == 1, f"{path} passes the door of {parts[0]}"
            private = [name for name in names if name[0] == "_"]
            assert not private or parts[0] == mine, f"{path} takes {private} of {parts[0]}"


@every
def test_a_library_is_used_in_its_room_only(path):
    for module, _ in imports_of(path):
        rooms = ONLY_IN.get(module.partition(".")[0])
        assert rooms is None or room_of(path) in rooms, f"{path} imports {module}"


def test_no_two_files_import_each_other_in_a_circle():
    modules = {
        ".".join(("vllm_tuning", *path.with_suffix("").parts)).removesuffix(".__init__"): path
        for path in FILES
    }
    ahead = {
        name: {
            target
            for module, names in imports_of(path)
            for target in (module, *(f"{module}.{each}" for each in names))
            if target in modules and target != name and not name.startswith(f"{target}.")
        }
        for name, path in modules.items()
    }
    while ahead:
        free = {name for name, targets in ahead.items() if not targets & ahead.keys()}
        assert free, f"a circle among {sorted(ahead)}"
        ahead = {name: targets for name, targets in ahead.items() if name not in free}


def test_the_package_itself_imports_nothing_that_costs():
    assert {module for module, _ in imports_of(Path("__init__.py"))} == {"importlib"}


def test_an_answer_on_the_terminal_draws_nothing_and_starts_no_kernel():
    code = (
        "import sys; from click.testing import CliRunner; from vllm_tuning.cli import main;"
        "args = ['recommend', 'llama-3-8b-2-layers', '--input-len', '1024', '--output-len', '256'];"
        "assert CliRunner().invoke(main, args).exit_code == 0;"
        "print({'matplotlib', 'papermill', 'nbconvert', 'ipywidgets', 'IPython'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
