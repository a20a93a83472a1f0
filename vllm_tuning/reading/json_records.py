"""JSON objects out of a file."""

import json
import os

from ..units import InputError
from .files import read_text


def read_json(path: str | os.PathLike, expected: str) -> dict:
    """The one JSON object of a file. Raises InputError."""
    records = read_records(path, expected)
    if len(records) > 1:
        raise InputError(f"{path}: several JSON objects; expected {expected}")
    return records[0]


def read_records(path: str | os.PathLike, expected: str) -> list[dict]:
    """The JSON objects of a file: one, a list of them, or one a line. Raises InputError."""
    return records_of(read_text(path, expected), path, expected)


def records_of(text: str, path: str | os.PathLike, expected: str) -> list[dict]:
    """The same of a text that was read; ``path`` is for messages."""
    try:
        try:
            found = json.loads(text)
        except ValueError:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError):
        raise InputError(f"{path}: not JSON; expected {expected}") from None
    records = found if isinstance(found, list) else [found]
    if not records or not all(isinstance(record, dict) for record in records):
        raise InputError(f"{path}: no JSON object; expected {expected}")
    return records
