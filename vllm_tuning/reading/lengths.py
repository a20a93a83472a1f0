"""The lengths of requests out of a file: CSV, JSONL or a scrape of /metrics."""

import csv
import io
import json
import os

import numpy as np

from ..units import LARGEST_COUNT, InputError
from ..workload import Workload
from .files import read_text

PROMPT_COLUMNS = (
    "prompt_tokens",
    "prompt_len",
    "input_tokens",
    "input_len",
    "ContextTokens",
    "Request tokens",
)

OUTPUT_COLUMNS = (
    "output_tokens",
    "output_len",
    "completion_tokens",
    "max_tokens",
    "GeneratedTokens",
    "Response tokens",
)

REQUESTS = 'a CSV with a header, or JSONL, such as {"prompt_tokens": 1024, "output_tokens": 256}'

LARGEST_FILE = 2**28  # bytes: some five million requests


def read_lengths(path: str | os.PathLike) -> list[Workload]:
    """Each request of a CSV with a header, or of a JSONL file, in the order of the file.

    The prompt is the first of ``PROMPT_COLUMNS`` that is there, the output the first of
    ``OUTPUT_COLUMNS`` (the last two of both are those of public traces); other columns are not
    read. Raises InputError ``FILE:LINE: what is wrong, and what would be right``.
    """
    found = []
    for line, entry in _entries(read_text(path, REQUESTS, LARGEST_FILE), path):
        try:
            prompt = _tokens(entry, PROMPT_COLUMNS, "prompt")
            found.append(Workload(prompt, _tokens(entry, OUTPUT_COLUMNS, "output")))
        except ValueError as error:
            raise InputError(f"{path}:{line}: {error}") from None
    if not found:
        raise InputError(f"{path}: no request; expected {REQUESTS}")
    return found


def _entries(text: str, path):
    """Line number and entry of each request; None is a line that is not JSON."""
    if text.lstrip()[:1] in ("{", "["):
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield number, _object(line)
        return
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        for entry in reader:
            yield reader.line_num, entry
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: not a CSV line ({error})") from None


def _object(line: str):
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _tokens(entry, columns: tuple[str, ...], what: str) -> int:
    if not isinstance(entry, dict):
        raise InputError("no JSON object; JSONL has one a line")
    name = next((name for name in columns if entry.get(name) not in (None, "")), None)
    if name is None:
        raise InputError(f"no {what} tokens; expected one of {', '.join(columns)}")
    value = entry[name]
    text = value.strip() if isinstance(value, str) else str(value)
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:20]) <= LARGEST_COUNT:
        raise InputError(f"{name} is {text[:40]!r}; expected a whole number of tokens, at least 1")
    return int(text)


def lengths_from_histograms(prompt, generation) -> list[Workload]:
    """A hundred requests with the lengths of two histograms, at 1 % steps of each.

    Each: (requests at or below each upper end, mean length or None). A histogram says that so many
    are at most so long. Without a mean the upper end of the bucket is taken (twice the last finite
    one above it), so the lengths are never too short but for that tail. With it all stand at the
    same share of their bucket, the one that gives the mean. Prompts and outputs are matched by
    rank, the costliest pairing, since a histogram does not show which go together. Raises
    InputError where there are none.
    """
    found = []
    for kind, (buckets, mean) in (("prompt", prompt), ("generation", generation)):
        bounds = np.array(sorted(buckets))
        held = np.array([buckets[bound] for bound in bounds])
        if not len(held) or held[-1] <= 0:
            raise InputError(f"metrics: no vllm:request_{kind}_tokens with requests in it")
        if not np.isfinite(bounds[-1]):
            bounds[-1] = 2 * bounds[-2] if len(bounds) > 1 else 1
        lows, counts = np.r_[0, bounds[:-1]], np.diff(held, prepend=0) / held[-1]
        if mean is not None and counts[-1] > 0:
            bounds[-1] += max(0.0, (mean - bounds @ counts) / counts[-1])
        width = (bounds - lows) @ counts
        share = (
            1.0
            if mean is None or not width
            else float(np.clip((mean - lows @ counts) / width, 0, 1))
        )
        places = np.searchsorted(held / held[-1], (np.arange(100) + 0.5) / 100)
        lengths = np.ceil((lows + share * (bounds - lows))[places] - 1e-6)
        found.append(np.maximum(1, lengths).astype(int))
    return [Workload(int(prompt), int(output)) for prompt, output in zip(*found, strict=True)]
