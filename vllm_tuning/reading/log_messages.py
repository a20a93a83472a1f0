"""From the text of a server log to messages: the lines of the table, with their figures.

A line counts only where a message of vLLM begins: the same words in a prompt, in a traceback's
source line or in prose are passed over.
"""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..units import GIB, LARGEST_COUNT, parse_size
from .log_formats import ERROR, KINDS, MARK, SERVER, Format, anchors, figure, formats
from .log_text import CUT, Flat, Line, Process, joined, lines_of, passages, writer_of

_CLASS = re.compile(r"(?:[A-Za-z_][\w.]*(?:Error|Exception):|Value error,) \Z|[A-Za-z_][\w.]*\Z")

_LED = re.compile(r"\b(?:failed|error|failure|exception)\b[^:'\"]{0,40}[:'] ?\Z", re.IGNORECASE)

_SHELL = re.compile(
    r"\s*+(?:(?:[#+$>]|CMD:|command:|exec|nohup|env|sudo|[A-Z_]+=\S*|\S*/"
    r"|\S*python[\d.]*|-m)\s*+)*+\Z",
    re.IGNORECASE,
)


class Message(NamedTuple):
    """One line by its number: who wrote it, its row, its figures, or those it should have held."""

    number: int
    text: str
    process: Process
    row: Format
    values: dict
    unreadable: tuple = ()


def messages(read) -> Iterator[Message]:
    """Every line that the table knows, in order; ``read(size)`` gives the file's bytes."""
    for first, text in passages(read):
        flat = Flat(lines_of(first, text))
        hits = [
            (match.start(), *flat.locate(match.start())) for match in anchors().finditer(flat.text)
        ]
        beginning = {
            index for _, index, offset in hits if not flat.lines[index].text[:offset].strip()
        }
        for position, index, offset in hits:
            rows = [row for row in formats() if row.anchor.match(flat.text, position)]
            if found := _message(flat, index, offset, rows, beginning):
                yield found


def _message(
    flat: Flat, index: int, offset: int, rows: list[Format], beginning: set[int]
) -> Message | None:
    """The message of the message that begins at ``offset`` of a line, if one begins there.

    A terminal may have wrapped its prefix onto lines before, and the message onto lines after.
    """
    lines, line = flat.lines, flat.lines[index]
    first = index
    while first and index - first < 3 and not lines[first].fresh:
        first -= 1
    last = index + 1
    while (
        last < len(lines)
        and last - index < 400
        and last not in beginning
        and not lines[last].fresh
        and lines[last].text.strip()
    ):
        last += 1
    head = line.text[offset:]
    sentence = joined([line._replace(text=head), *lines[index + 1 : last]])
    error = _wrapped(lines[index:last], head)
    missed = None
    for row in rows:
        for begin in dict.fromkeys((first, index)):
            before = joined([*lines[begin:index], line._replace(text=line.text[:offset])])
            process, lead = _placed(before, row.stage)
            if process is not None:
                break
        else:
            continue
        match = _best(row.pattern.match(head), row.pattern.match(sentence), head, sentence)
        if not match:
            missed = missed or Message(line.number, line.text, process, row, {})
            if row.stage == ERROR:
                missed = missed._replace(values={"reason": _one_line(lead + error)})
            continue
        values = {
            name: figure(name, text) for name, text in match.groupdict().items() if text is not None
        }
        if "exact" in values:
            values = exact_figures(values["exact"])
        if row.stage == ERROR or {"generic", "fatal", "oom"} & set(values):
            values |= {"reason": _one_line(lead + error), "logged": "ERROR" in before}
        return Message(line.number, line.text, process, row, values)
    if missed:
        names = {name: None for row in rows for name in row.pattern.groupindex}
        return missed._replace(unreadable=tuple(names))
    return None


def _placed(before: str, stage: int) -> tuple[Process | None, str]:
    """Who wrote the message after ``before``, None if none begins there; and its class of error."""
    lead = _CLASS.search(before) if stage in (ERROR, MARK) else None
    if lead and (writer := writer_of(before[: lead.start()])) is not None:
        return writer, lead[0]
    if stage == ERROR and _LED.search(before) and not re.search("request|prompt", before):
        return Process(), ""
    if stage == SERVER and _SHELL.match(before):
        return Process(), ""
    return writer_of(before), ""


def _best(
    single: re.Match | None, whole: re.Match | None, head: str, sentence: str
) -> re.Match | None:
    """The match over a wrapped sentence, else over its first line alone.

    None where a figure at the end of the line may go on in the next, which cannot be read.
    """
    goes_on = head[-1:].isdigit() and re.match(r"[\d.,]", sentence[len(head) :])
    return whole or (None if single and single.end() == len(head) and goes_on else single)


def _wrapped(lines: list[Line], head: str) -> str:
    """An error from ``head`` on: it goes on until its sentence ends, in lines no longer."""
    text = head
    for line, following in itertools.pairwise(lines):
        if text.rstrip()[-1:] in ".!?)]'\"" or len(following.text) > len(line.text):
            break
        text += following.text
    return text


def _one_line(error: str) -> str:
    """An error in one line, without the dump of its input."""
    error = re.sub(r"\s*\[type=.*", "", error.replace(CUT, ""), flags=re.DOTALL)
    return " ".join(error.split()).rstrip("'")[:600]


_TEXTS = (
    "model",
    "model_tag",
    "kv_cache_dtype",
    "device_config",
    "enforce_eager",
    "cudagraph_mode",
    "compile_ranges_endpoints",
    "performance_mode",
    "speculative_config",
    "enable_prefix_caching",
)

_SIZES = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "max_seq_len",
    "block_size",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "num_gpu_blocks_override",
    "kv_cache_memory_bytes",
    "decode_context_parallel_size",
    "num_spec_tokens",
    "num_speculative_tokens",
)

_NAMES = "|".join((*_TEXTS, *_SIZES, "gpu_memory_utilization"))

_ARGUMENT = re.compile(
    rf"(?<![\w.-])['\"]?({_NAMES})['\"]?\s*[:=]\s*"
    r"('[^']*'|\"[^\"]*\"|<[^<>]*>|\[[^\[\]]*\]|[^\s,)}]+)(?=\s*[,)}])"
)

_OPTION = re.compile(rf"--({_NAMES.replace('_', '-')})[ =]('[^']*'|\"[^\"]*\"|[^\s'\"]+)(?=\s|\Z)")


def arguments(values: dict) -> dict:
    """The arguments in a dict, a Namespace, an engine's config, or on a command line."""
    if "command" in values:
        found = _OPTION.findall(values["command"])
        if model := re.match(r"([^\s-]\S*)(?:\s|\Z)", values["command"]):
            found.append(("model", model[1]))
    else:
        found = _ARGUMENT.findall(values.get("flags", ""))
    parsed = {}
    for name, text in found:
        name, text = name.replace("-", "_"), text.strip("'\"")
        if name in parsed or CUT in text or text in ("", "None"):
            continue
        try:
            parsed[name] = (
                parse_size(text) if name in _SIZES else text if name in _TEXTS else float(text)
            )
        except ValueError:
            continue
    return parsed


def exact_figures(text: str) -> dict:
    """The figures that the plugin wrote, under the table's names: GiB with every digit."""
    try:
        written = json.loads(text)
    except ValueError:
        return {}
    figures: dict[str, Any] = {"exact": True}
    for name, value in written.items():
        kind = KINDS.get(name)
        if kind == "text" and isinstance(value, str) and value.isprintable():
            figures[name] = value
        whole = type(value) is int and 0 < value < LARGEST_COUNT
        if kind == "count" and whole:
            figures[name] = value
        if kind in ("gib", "number") and type(value) in (int, float) and abs(value) < 1e9 * GIB:
            figures[name] = value / GIB if kind == "gib" else value
    return figures
