"""The whole of ``measure``: plan, launch, fit, recommend, and one launch at the answer."""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ..answer import Answer, find_optimum, model_of
from ..diagnosis import NextLaunch, next_launches
from ..launch import Launch
from ..memory_model import MemoryModel
from ..reading import arguments, read_launches, write_whole
from ..units import InputError, is_known
from ..workload import Workload
from .driver import make
from .folder import TABLE, VERIFY, Folder
from .plan import next_launch, plan_launches
from .verify import Verification, verified

SHORT = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size"}


EXTRA = 2  # launches beyond a plan of ours, where those it holds leave something unknown


@dataclass(frozen=True)
class Measured:
    """What ``measure`` made of it; ``optimum`` only where the requests' length is given."""

    table: Path
    launches: tuple[Launch, ...]
    model: MemoryModel
    optimum: Answer | None = None
    verification: Verification | None = None


def measured(
    command: list[str],
    output,
    table,
    workload: Workload | None,
    verify: bool,
    timeout: float,
    grace: float,
    config,
    show: Callable[[str, int, int], None],
    **gpu,
) -> Measured:
    """Make the launches of ``table``, else those of the planner, into the folder ``output``.

    command: the server's without mns, mnbt and port. config: by default the one in the model's
    folder, if MODEL is one; it is kept beside the launches. show: what goes on, launches made, and
    their number. ``gpu``: as of ``plan_launches``. Raises InputError.
    """
    server, chunked = _settings(command)
    name = str(server.get("model"))
    config = config or _config_of(name)
    wanted = (
        _read_plan(table)
        if table
        else _flags(
            plan_launches(
                config,
                workload,
                chunked,
                **{
                    name: value
                    for name, value in server.items()
                    if name in ("max_model_len", "tensor_parallel_size", "pipeline_parallel_size")
                },
                **(
                    {"utilization": server["gpu_memory_utilization"]}
                    if "gpu_memory_utilization" in server
                    else {}
                ),
                **gpu,
            ).launches
        )
    )
    with Folder(output, grace) as folder:
        folder.check(command)
        _keep(config, folder)
        learned, done, count = "", 0, len(wanted) + verify
        while done < len(wanted):
            make(
                folder,
                command,
                wanted[done],
                timeout,
                TABLE,
                lambda text: show(f"{text}{learned}", done, count),
            )
            done += 1
            _keep(config or _config_of(name), folder)  # the first launch may have fetched it
            model, learned = _fitted(folder, workload, chunked)
            if done == len(wanted) and not table and model and model.launches:
                more = _flags(_more(model, workload, chunked, wanted))
                wanted += more[: max(0, 4 + EXTRA - len(wanted))]
                count = len(wanted) + verify
        model = model_of([folder.path])
        found = Measured(
            folder.path / TABLE,
            tuple(folder.launches()),
            model,
            workload and find_optimum(model, workload, chunked),
        )
        best = found.optimum.recommended if verify else None
        if best:
            make(
                folder,
                command,
                (best.max_num_seqs, best.max_num_batched_tokens),
                timeout,
                VERIFY,
                lambda text: show(f"{text} (verify)", done, count),
            )
            found = replace(found, verification=verified([folder.path], found.optimum))
        show("", done + bool(best), count)
        return found


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
    cache = Path(
        os.environ.get("HF_HUB_CACHE") or home / "hub",
        f"models--{model.replace('/', '--')}",
        "snapshots",
    )
    found = [
        path
        for path in (Path(model, "config.json"), *sorted(cache.glob("*/config.json")))
        if path.is_file()
    ]
    return found[0] if found else None


def _keep(config, folder: Folder) -> None:
    """A copy of config.json beside the launches, where the other commands look for it."""
    kept = folder.path / "config.json"
    if config and not kept.exists():
        write_whole(kept, Path(config).read_text(encoding="utf-8"))


def _flags(launches) -> list[tuple[int, int]]:
    """(mns, mnbt) of each, none twice."""
    return list(
        dict.fromkeys((launch.max_num_seqs, launch.max_num_batched_tokens) for launch in launches)
    )


def _more(model: MemoryModel, workload, chunked, made) -> list[NextLaunch]:
    """What would tell the parameters that are not known; a k that is only assumed is one."""
    missing = next_launches(model, made)
    if missing or workload is None or model.k_source != "assumed 0":
        return missing
    launch = next_launch(
        find_optimum(model, workload, chunked),
        1 if chunked else max(fitted.launch.max_model_len or 1 for fitted in model.launches),
    ).launch
    return [launch] if launch else []


def _read_plan(table) -> list[tuple[int, int]]:
    launches = read_launches(table)
    for launch in launches:
        if not launch.max_num_seqs or not launch.max_num_batched_tokens:
            raise InputError(f"{launch.where}: needs max_num_seqs and max_num_batched_tokens")
    return _flags(launches)


def _fitted(folder: Folder, workload, chunked) -> tuple[MemoryModel | None, str]:
    """The model so far, and the answer or the slopes in a few words for the progress bar."""
    try:
        model = model_of([folder.path])
    except InputError:  # told at the end
        return None, ""
    best = workload and find_optimum(model, workload, chunked).recommended
    if best:
        return model, f"; so far mns {best.max_num_seqs}, mnbt {best.max_num_batched_tokens}"
    known = [
        f"{name.upper()} {value.n / 2**20:.3g} MiB"
        for name in ("k1", "k2")
        if is_known(value := getattr(model, name))
    ]
    return model, "".join(f"; {text}" for text in known)
