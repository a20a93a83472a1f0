"""Named sources: which are one model's, where their config.json lies, and their fit."""

import os
from pathlib import Path

from ..kv_cache import shape_of
from ..memory_model import usual
from ..reading import is_log, locate, read_source
from .answer import Asked, Fit, fit_memory_model


def model_of(sources, config=None, asked: Asked | None = None) -> Fit:
    """Read launches (launches.csv or logs, all one fit) and config.json, and fit them.

    config: a config.json; by default the one beside the first source or its folder ``logs``, if
    there is one. asked: the server that the answer is for.
    """
    asked = asked or Asked()
    each = {os.path.realpath(source): source for source in sources}  # a file named twice is one
    launches = [launch for source in each.values() for launch in read_source(source)]
    config = config or config_beside(sources[0])
    if config is None:
        return fit_memory_model(launches, asked=asked)

    shape = shape_of(
        config,
        launches,
        asked.kv_cache_dtype or usual(launches, "kv_cache_dtype"),
        asked.block_size or usual(launches, "block_size") or 16,
    )
    return fit_memory_model(launches, shape, asked)


def config_beside(source) -> Path | None:
    """The config.json beside a source of launches or its folder ``logs``; None if there is none."""
    folder = (Path(source) if str(source) == "-" else locate(source)).parent
    folders = [folder, *([folder.parent] if folder.name == "logs" else [])]
    return next((path for each in folders if os.path.lexists(path := each / "config.json")), None)


def by_model(sources) -> list[list]:
    """LAUNCHES in groups of one model each: a table is one by itself, logs of one model are one."""
    groups: dict = {}
    for number, source in enumerate(sources):
        models = {launch.model for launch in read_source(source)} if is_log(source) else {None}
        key = number if len(models) > 1 or None in models else models.pop()
        groups.setdefault(key, []).append(source)
    return list(groups.values())
