"""The same server under another ``--gpu-memory-utilization``: only the ceiling TM*U moves."""

from dataclasses import replace

import numpy as np
from uncertainties import ufloat

from ..answer import Fit
from ..diagnosis import Notice
from ..launch import first_known
from ..memory_model import FittedLaunch
from ..readings import rounding
from ..units import InputError


def launched(model: Fit, name: str) -> float | None:
    """``total_memory`` (bytes) or ``gpu_memory_utilization`` of the launches, None if unknown."""
    return first_known([fitted.launch for fitted in model.launches], name)


def at_utilization(model: Fit, utilization: float | None) -> Fit:
    """The model at another utilization U', None being as launched; a notice says it is derived.

    Every pool moves by TM*(U' - U), with the rounding of TM as its error, and the launches become
    what they would have printed. Raises InputError where TM or U is unknown or U' is out of range.

    >>> from vllm_tuning import GIB, model_of
    >>> model = model_of(["llama-3-8b-2-layers"])  # a device of 10 GiB at 0.6
    >>> round((at_utilization(model, 0.7).left_over - model.left_over).n / GIB, 3)
    1.0
    """
    total, before = (launched(model, n) for n in ("total_memory", "gpu_memory_utilization"))
    if utilization in (None, before):
        return model
    if total is None or before is None:
        raise InputError(
            "the utilization cannot be moved: no launch gives both total_memory_gib and "
            "gpu_memory_utilization, so how far the pool moves is not known"
        )
    if not 0 < utilization <= 1:
        raise InputError(f"utilization is {utilization}; it must be above 0, at most 1")
    more = ufloat(total, rounding(np.array([total]))[0]) * (utilization - before)

    def printed(fitted: FittedLaunch) -> FittedLaunch:
        launch, pool, tokens = fitted.launch, fitted.launch.kv_cache, fitted.launch.kv_cache_tokens
        there = None
        if pool is not None and pool > 0 and tokens is not None:
            there = max(0, round(tokens * (1 + more.n / pool))) or None
        launch = replace(
            launch,
            gpu_memory_utilization=utilization,
            kv_cache=None if pool is None else pool + more.n,
            kv_cache_tokens=there,
            max_concurrency=None,
        )
        return replace(fitted, launch=launch)

    notice = Notice(
        "derived_setting",
        f"Derived, not launched: gpu_memory_utilization {utilization:g} instead of {before:g}. "
        "Weights, non-torch memory and activation are taken as measured; make a check launch.",
    )
    moved = model.moved(more)
    changed = {
        "gpu_memory_utilization": utilization,
        "launches": tuple(map(printed, moved.launches)),
        "notices": (*model.notices, notice),
    }
    return Fit(**vars(moved) | changed)
