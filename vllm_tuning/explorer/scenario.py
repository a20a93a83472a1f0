"""The same server under another utilization, on another card, or with an fp8 KV cache.

It was not launched so. Weights, non-torch memory and activation are taken as measured, so only the
ceiling TM*U and the KV cache of a token move.
"""

import math
from dataclasses import replace
from numbers import Real

from uncertainties import ufloat

from ..diagnosis import Notice
from ..launch import first_known
from ..memory_model import FittedLaunch, MemoryModel
from ..units import GIB, InputError, is_known, printed_half_widths


def setting(model: MemoryModel, name: str):
    """What the launches were made with, such as ``total_memory``; None where none says."""
    return first_known([fitted.launch for fitted in model.launches], name)


def fixed_settings(model: MemoryModel) -> dict[str, str]:
    """The settings that cannot be moved from what was launched, each with the reason."""
    reasons = {}
    lacking = [
        name for name in ("total_memory", "gpu_memory_utilization") if setting(model, name) is None
    ]
    if lacking:
        reasons = dict.fromkeys(
            ("gpu_memory_utilization", "total_memory"),
            (f"no launch gives {' or '.join(lacking)}, so how far the pool moves is not known"),
        )
    dtype = setting(model, "kv_cache_dtype") or ""
    if dtype.startswith("fp8"):
        reasons["kv_cache_dtype"] = f"it is {dtype} in the launches already"
    elif model.hybrid:
        reasons["kv_cache_dtype"] = "layers of several kinds share the pool, and not all shrink"
    elif not is_known(model.kv_per_token):
        reasons["kv_cache_dtype"] = "the KV cache of one token is not known"
    return reasons


def what_if(
    model: MemoryModel,
    gpu_memory_utilization: float | None = None,
    total_memory: float | None = None,
    kv_cache_dtype: str | None = None,
) -> MemoryModel:
    """The model under other settings, None being as launched; a notice says that it is derived.

    total_memory: bytes. kv_cache_dtype: "fp8", half the bytes of the 16-bit cache launched. Every
    pool moves by TM'*U' - TM*U, with the rounding of TM as its error; the launches become what they
    would have printed. Raises InputError for a value out of range, and for ``fixed_settings``.

    >>> from vllm_tuning import model_of
    >>> model = model_of(["llama-3-8b-2-layers"])  # a device of 10 GiB at 0.6
    >>> round((what_if(model, 0.7).left_over - model.left_over).n / GIB, 3)
    1.0
    """
    wanted = {
        "gpu_memory_utilization": gpu_memory_utilization,
        "total_memory": total_memory,
        "kv_cache_dtype": kv_cache_dtype,
    }
    moved = {
        name: value
        for name, value in wanted.items()
        if value is not None and value != setting(model, name)
    }
    for name, reason in fixed_settings(model).items():
        if name in moved:
            raise InputError(f"{name} cannot be moved: {reason}")
    for name, low, high in (("gpu_memory_utilization", 0, 1), ("total_memory", 0, math.inf)):
        if name in moved and not (isinstance(moved[name], Real) and low < moved[name] <= high):
            raise InputError(
                f"{name} is {moved[name]!r}; it must be a number above {low}, at most {high:g}"
            )
    if moved.get("kv_cache_dtype", "fp8") != "fp8":
        raise InputError(f"kv_cache_dtype is {kv_cache_dtype}; only fp8 can be derived")
    if not moved:
        return model
    more, share = _more(model, moved), 0.5 if "kv_cache_dtype" in moved else 1.0
    return replace(
        model,
        kv_per_token=share * model.kv_per_token,
        **{
            name: getattr(model, name) + more
            for name in ("pool_at_zero_tokens", "pool_at_zero_requests", "left_over")
        },
        launches=tuple(
            _launch(fitted, moved, float(getattr(more, "n", more)), share)
            for fitted in model.launches
        ),
        notices=(*model.notices, _notice(model, moved)),
    )


def _more(model: MemoryModel, moved: dict):
    """TM'*U' - TM*U, bytes."""
    if not moved.keys() & {"gpu_memory_utilization", "total_memory"}:
        return 0.0
    share, total = setting(model, "gpu_memory_utilization"), setting(model, "total_memory")
    launched = ufloat(total, printed_half_widths([total])[0] / math.sqrt(3))
    return (
        moved.get("total_memory", launched) * moved.get("gpu_memory_utilization", share)
        - launched * share
    )


def _launch(fitted: FittedLaunch, moved: dict, more: float, share: float) -> FittedLaunch:
    """The launch with the pool that it would have printed: the bytes, and the tokens in them."""
    launch, pool = fitted.launch, fitted.launch.kv_cache
    tokens = launch.kv_cache_tokens
    if pool and tokens:
        tokens = max(0, round(tokens / share * (pool + more) / pool)) or None
    elif more:
        tokens = None
    return replace(
        fitted,
        kv_cache=None if fitted.kv_cache is None else fitted.kv_cache + more,
        launch=replace(
            launch,
            **moved,
            kv_cache=None if pool is None else pool + more,
            kv_cache_tokens=tokens,
            max_concurrency=None,
        ),
    )


def _notice(model: MemoryModel, moved: dict) -> Notice:
    def shown(name, value):
        return f"{value / GIB:.6g} GiB" if name == "total_memory" else f"{value or 'auto'}"

    changes = ", ".join(
        f"{name} {shown(name, value)} instead of {shown(name, setting(model, name))}"
        for name, value in moved.items()
    )
    return Notice(
        "derived_setting",
        f"Derived, not launched: {changes}. Weights, non-torch memory "
        "and activation are taken as measured; make a check launch.",
    )
