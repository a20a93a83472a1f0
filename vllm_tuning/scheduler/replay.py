"""Workloads and traces as JSON (or .gz): ``config``, ``requests``, ``summary``, ``steps``.

A trace of the real scheduler in this format is a workload too: its steps are not read.
"""

import contextlib
import gzip
import io
import json
import os
import zlib
from pathlib import Path

from ..reading import whole_file
from ..units import LARGEST_COUNT, InputError
from .config import Request, SchedulerConfig
from .simulation import Simulation

CONFIG_KEYS = {
    "mns": "max_num_seqs",
    "mnbt": "max_num_batched_tokens",
    "blocks": "num_gpu_blocks",
    "block_size": "block_size",
    "max_model_len": "max_model_len",
    "chunked": "enable_chunked_prefill",
    "prefix": "enable_prefix_caching",
    "lpt": "long_prefill_token_threshold",
    "reserve": "scheduler_reserve_full_isl",
    "watermark": "watermark",
}
REQUEST_KEYS = ("id", "prompt_len", "max_tokens", "at", "prompt")

_LARGEST_FILE = 2**28
_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def read_workload(path: str | os.PathLike) -> tuple[SchedulerConfig, list[Request], dict]:
    """The server, the requests (checked against it) and the JSON document as it stands in a file.

    Raises InputError ``FILE: what is wrong, and what would be right``.
    """
    try:
        document = _read_json(Path(path))
        for name, kind in (("config", dict), ("requests", list)):
            if not isinstance(document, dict) or not isinstance(document.get(name), kind):
                raise InputError(f"no {name}; expected a JSON object with config and requests")
        config = _config(document["config"])
        requests = [
            config.check(_request(index, entry)) for index, entry in enumerate(document["requests"])
        ]
        seen = set()
        for name in (str(request.id) for request in requests):
            if name in seen:
                raise InputError(f"two requests have the same id {_short(name)}")
            seen.add(name)
        return config, requests, document
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def write_trace(
    path: str | os.PathLike, simulation: Simulation, document: dict | None = None
) -> None:
    """A traced simulation as JSON, gzip where the name ends in .gz.

    document: the workload's own, whose config and requests are kept as they are. Step after step,
    so that the text is never whole in memory.
    """
    trace = simulation.trace
    if trace is None:
        raise InputError("the simulation kept no trace; simulate with trace=True")
    document = document or {
        "config": config_to_json(simulation.config),
        "requests": [_request_to_json(request) for request in trace.requests],
    }
    head = {name: document[name] for name in ("config", "requests")}
    head["summary"] = simulation.summary.to_dict()
    with contextlib.ExitStack() as files:
        file = files.enter_context(whole_file(path))
        zipped = str(path).endswith(".gz")
        out = gzip.GzipFile("", "wb", 6, file, mtime=0) if zipped else file
        text = files.enter_context(io.TextIOWrapper(out, "ascii", newline=""))
        text.write(_ENCODE(head)[:-1] + ',"steps":[')
        for number, step in enumerate(trace.to_json()):
            text.write("," * (number > 0) + _ENCODE(step))
        text.write("]}\n")


def config_to_json(config: SchedulerConfig) -> dict:
    """The flags under their short names."""
    return {key: getattr(config, name) for key, name in CONFIG_KEYS.items()}


def _request_to_json(request: Request) -> dict:
    entry = {name: getattr(request, name) for name in REQUEST_KEYS}
    return {name: value for name, value in entry.items() if value is not None}


def _read_json(path: Path):
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            data = (gzip.GzipFile(fileobj=file) if zipped else file).read(_LARGEST_FILE + 1)
        if len(data) > _LARGEST_FILE:
            raise InputError("larger than 256 MiB")
        return json.loads(data)
    except (ValueError, RecursionError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"not JSON ({error}); expected a workload") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from None


def _config(entry: dict) -> SchedulerConfig:
    _known(entry, CONFIG_KEYS, "config", required=("mns", "mnbt", "blocks"))
    for key, value in entry.items():
        place, number = (
            f"config.{key}",
            isinstance(value, int | float) and not isinstance(value, bool),
        )
        if key in ("chunked", "prefix", "reserve"):
            if not isinstance(value, bool):
                raise InputError(f"{place} is {_short(value)}; expected true or false")
        elif key == "watermark":
            if not number or not 0 <= value < 1:
                raise InputError(f"{place} is {_short(value)}; expected a number from 0 to below 1")
        else:
            _count(value, place)
    return SchedulerConfig(**{CONFIG_KEYS[key]: value for key, value in entry.items()})


def _request(index: int, entry) -> Request:
    place = f"requests[{index}]"
    if not isinstance(entry, dict):
        raise InputError(f"{place} is {_short(entry)}; expected an object")
    prompt = entry.get("prompt")
    _known(entry, REQUEST_KEYS, place, ("id", "max_tokens", *["prompt_len"] * (prompt is None)))
    if isinstance(entry["id"], bool) or not isinstance(entry["id"], str | int):
        raise InputError(f"{place}.id is {_short(entry['id'])}; expected a name or a number")
    if prompt is not None:
        if not isinstance(prompt, list):
            raise InputError(f"{place}.prompt is {_short(prompt)}; expected a list of token ids")
        prompt = tuple(_count(token, f"{place}.prompt") for token in prompt)
    counts = {"prompt_len": len(prompt or ()), "at": 0} | entry
    length, tokens, at = (
        _count(counts[name], f"{place}.{name}") for name in ("prompt_len", "max_tokens", "at")
    )
    return Request(entry["id"], length, tokens, at, prompt)


def _known(entry: dict, names, place: str, required) -> None:
    for name in entry:
        if name not in names:
            raise InputError(
                f"{place} has an unknown key {_short(name)}; known: {', '.join(names)}"
            )
    for name in required:
        if name not in entry:
            raise InputError(f"{place} has no {name}")


def _count(value, place: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST_COUNT:
        raise InputError(
            f"{place} is {_short(value)}; expected a whole number, 0 to {LARGEST_COUNT:,}"
        )
    return value


def _short(value) -> str:
    return json.dumps(value)[:40]
