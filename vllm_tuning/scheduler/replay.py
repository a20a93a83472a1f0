"""Workloads and traces as JSON (or .gz): ``config``, ``requests``, ``summary``, ``steps``.

A trace of the real scheduler in this format is a workload too: its steps are not read.
"""

import contextlib
import gzip
import io
import json
import os

from ..reading import read_text, whole_file
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

_EXPECTED = {
    int: f"a whole number, 0 to {LARGEST_COUNT:,}",
    float: "a number from 0 to below 1",
    bool: "true or false",
    str: "a name or a number",
    list: "a list of token ids",
    dict: "an object",
}
_LARGEST_FILE = 2**28
_ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def read_workload(path: str | os.PathLike) -> tuple[SchedulerConfig, list[Request], dict]:
    """The server, the requests (checked against it) and the JSON document as it stands in a file.

    Raises InputError ``FILE: what is wrong, and what would be right``.
    """
    text = read_text(path, "a workload", _LARGEST_FILE)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error}); expected a workload") from None
    try:
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


def _config(entry: dict) -> SchedulerConfig:
    _check_keys(entry, CONFIG_KEYS, "config", required=("mns", "mnbt", "blocks"))
    kinds = SchedulerConfig.__annotations__
    return SchedulerConfig(
        **{
            (name := CONFIG_KEYS[key]): _checked(value, kinds[name], f"config.{key}")
            for key, value in entry.items()
        }
    )


def _request(index: int, entry) -> Request:
    place = f"requests[{index}]"
    prompt = _checked(entry, dict, place).get("prompt")
    _check_keys(
        entry, REQUEST_KEYS, place, ("id", "max_tokens", *["prompt_len"] * (prompt is None))
    )
    name = _checked(entry["id"], str, f"{place}.id")
    if prompt is not None:
        tokens = _checked(prompt, list, f"{place}.prompt")
        prompt = tuple(_checked(token, int, f"{place}.prompt") for token in tokens)
    counts = {"prompt_len": len(prompt or ()), "at": 0} | entry
    length, tokens, at = (
        _checked(counts[key], int, f"{place}.{key}") for key in ("prompt_len", "max_tokens", "at")
    )
    return Request(name, length, tokens, at, prompt)


def _check_keys(entry: dict, names, place: str, required) -> None:
    for name in entry:
        if name not in names:
            raise InputError(
                f"{place} has an unknown key {_short(name)}; known: {', '.join(names)}"
            )
    for name in required:
        if name not in entry:
            raise InputError(f"{place} has no {name}")


def _checked(value, kind: type, place: str):
    """The value of a JSON document, if it is of its kind; else InputError."""
    fits = {
        int: type(value) is int and 0 <= value <= LARGEST_COUNT,
        float: type(value) in (int, float) and 0 <= value < 1,
        str: type(value) in (int, str),
    }
    if not fits.get(kind, type(value) is kind):
        raise InputError(f"{place} is {_short(value)}; expected {_EXPECTED[kind]}")
    return value


def _short(value) -> str:
    return json.dumps(value)[:40]
