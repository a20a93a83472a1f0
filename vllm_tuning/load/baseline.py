"""An earlier verdict and what differs from it now: the figures that ``check --json`` prints."""

import os

from ..reading import read_json
from ..units import InputError
from .rules import Verdict

_NO_FIGURES = ("rules", "per_engine", "warnings", "explanations")


def read_baseline(path: str | os.PathLike) -> dict[str, float | None]:
    """The figures of a verdict that ``check --json`` printed. Raises InputError."""
    expected = "what vllm-tuning check --json prints"
    document = read_json(path, expected)
    rules = document.get("rules")
    if not (
        "healthy" in document
        and isinstance(rules, list)
        and all(isinstance(rule, dict) and isinstance(rule.get("name"), str) for rule in rules)
    ):
        raise InputError(f"{path}: no verdict with its rules; expected {expected}")
    figures = _figures(document)
    for name, value in figures.items():
        if not (value is None or (isinstance(value, (int, float)) and abs(value) < 1e300)):
            raise InputError(f"{path}: {name} is {str(value)[:40]}; expected {expected}")
    return figures


def compare(then: dict[str, float | None], verdict: Verdict) -> list[dict]:
    """``name``, ``then`` and ``now`` of each figure that differs; None where it is not known."""
    now = _figures(verdict.to_dict())
    return [
        {"name": name, "then": then.get(name), "now": now.get(name)}
        for name in now | then
        if then.get(name) != now.get(name)
    ]


def _figures(document: dict) -> dict:
    """The figures at the top of a verdict, and of each rule the limit and what else it measures."""
    figures = {name: value for name, value in document.items() if name not in _NO_FIGURES}
    for rule in document["rules"]:
        figures.setdefault(rule["name"], rule.get("measured"))
        figures[f"{rule['name']}_limit"] = rule.get("limit")
    return figures
