"""The whole of ``measure``: plan, launch, fit, recommend, and one launch at the answer."""

import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..diagnosis import next_launches
from ..launch import Launch
from ..memory_model import MemoryModel
from ..optimum import Optimum
from ..reading import arguments, read_launches, read_text, write_whole
from ..units import InputError
from ..workload import Workload
from .driver import Driver
from .folder import TABLE, VERIFY, Folder
from .plan import plan_launches
from .verify import Verification, verify_launch

SHORT = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size"}
PLANNED = {  # what the command says and the plan is made for, under the planner's names
    "max_model_len": "max_model_len",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "gpu_memory_utilization": "utilization",
}
MOST = 6  # launches of a plan of ours: four, and two where those leave something unknown
Solve = Callable[[Path, bool], tuple[MemoryModel, Optimum | None]]


@dataclass(frozen=True)
class Measured:
    """What ``measure`` made of it; ``optimum`` only where the requests' length is given."""

    table: Path
    launches: tuple[Launch, ...]
    model: MemoryModel
    optimum: Optimum | None = None
    verification: Verification | None = None


def measured(
    command: list[str],
    output,
    *,
    solve: Solve,
    show: Callable[[str, int, int], None],
    table=None,
    workload: Workload | None = None,
    verify: bool = False,
    timeout: float,
    grace: float,
    config=None,
    **gpu,
) -> Measured:
    """Make the launches of ``table``, else those of the planner, into the folder ``output``.

    command: the server's without mns, mnbt and port. solve: from the folder, and whether prefill is
    chunked, to the memory model and the optimum. show: what goes on, launches made, their number.
    config: by default the one in the model's folder, if MODEL is one; it is kept beside the
    launches. ``gpu``: as of ``plan_launches``. Raises InputError.
    """
    server, chunked = _settings(command)
    name = str(server.get("model"))
    config = config or _config_of(name)
    if table:
        wanted = _read_plan(table)
    else:
        flags = {PLANNED[name]: value for name, value in server.items() if name in PLANNED}
        wanted = _flags(plan_launches(config, workload, chunked, **flags, **gpu).launches)
    with Folder(output) as folder:
        folder.check(command)
        _keep(config, folder)
        driver, done, so_far = Driver(folder, command, timeout, grace), 0, ""

        def make(flags, table) -> Launch:
            nonlocal done
            count = len(wanted) + verify
            made = driver.make(flags, table, lambda text: show(text + so_far, done, count))
            done += 1
            show("", done, count)
            return made[-1]

        while done < len(wanted):
            make(wanted[done], TABLE)
            _keep(config or _config_of(name), folder)  # the first launch may have fetched it
            with suppress(InputError):  # raised again at the end
                model, optimum = solve(folder.path, chunked)
                if best := optimum and optimum.recommended:
                    so_far = f"; so far mns {best.max_num_seqs}, mnbt {best.max_num_batched_tokens}"
                if done == len(wanted) and not table and model.launches:
                    more = _flags(next_launches(model, wanted, hidden_states=True))
                    wanted += more[: max(0, MOST - len(wanted))]
        model, optimum = solve(folder.path, chunked)
        verification, best = None, optimum and optimum.recommended
        if optimum and best and verify:
            so_far = " (verify)"
            launch = make((best.max_num_seqs, best.max_num_batched_tokens), VERIFY)
            verification = verify_launch(optimum, launch)
        launches = tuple(folder.launches())
        return Measured(folder.path / TABLE, launches, model, optimum, verification)


def _settings(command: list[str]) -> tuple[dict, bool]:
    """What the command says of model, split and memory, in any of vLLM's spellings, under its own
    names; and whether prefill is chunked."""
    serve = command.index("serve") + 1 if "serve" in command else 1
    options = []
    for name, equals, value in (argument.partition("=") for argument in command[serve:]):
        if name.startswith("-"):
            name = SHORT.get(name, name.replace("_", "-"))
        options.append(name + equals + value)
    server = arguments({"command": shlex.join(options)})
    if options and not options[0].startswith("-"):
        server["model"] = options[0]
    return server, "--no-enable-chunked-prefill" not in options


def _config_of(model: str) -> Path | None:
    """The config.json in a model's folder, or of a model's name in Hugging Face's cache."""
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    snapshots = hub / f"models--{model.replace('/', '--')}/snapshots"
    cached = sorted(snapshots.glob("*/config.json"))
    return next((path for path in (Path(model, "config.json"), *cached) if path.is_file()), None)


def _keep(config, folder: Folder) -> None:
    """A copy of config.json beside the launches, where the other commands look for it."""
    kept = folder.path / "config.json"
    if config and not kept.exists():
        write_whole(kept, read_text(config, "the model's config.json"))


def _flags(launches) -> list[tuple[int, int]]:
    """(mns, mnbt) of each, none twice."""
    return list(
        dict.fromkeys((launch.max_num_seqs, launch.max_num_batched_tokens) for launch in launches)
    )


def _read_plan(table) -> list[tuple[int, int]]:
    launches = read_launches(table)
    for launch in launches:
        if not launch.max_num_seqs or not launch.max_num_batched_tokens:
            raise InputError(f"{launch.where}: needs max_num_seqs and max_num_batched_tokens")
    return _flags(launches)
