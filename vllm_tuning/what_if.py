"""A fitted server under another setting that moves no peak: what stays, and what moves."""

from dataclasses import replace

from .memory_model import MemoryModel
from .units import InputError


def at_utilization(model: MemoryModel, utilization: float) -> MemoryModel:
    """The model with another gpu_memory_utilization: every pool moves by TM * (U' - U), no peak does.

    Needs total_memory and gpu_memory_utilization of the launches. The launches carry the new
    utilization; the pools that they printed stay as they were measured. Raises InputError.
    """
    if not 0 < utilization <= 1:
        raise InputError(f"gpu_memory_utilization is {utilization:g}; it must be above 0, at most 1")
    total, launched = (next((value for f in model.launches
                             if (value := getattr(f.launch, name)) is not None), None)
                       for name in ("total_memory", "gpu_memory_utilization"))
    if utilization == launched:
        return model
    if None in (total, launched):
        raise InputError("another gpu_memory_utilization needs launches with total_memory_gib and "
                         "gpu_memory_utilization")
    more = total * (utilization - launched)
    return replace(
        model, **{name: getattr(model, name) + more
                  for name in ("model_headroom", "sampler_headroom", "left_over")},
        launches=tuple(replace(f, launch=replace(f.launch, gpu_memory_utilization=utilization),
                               kv_cache=None if f.kv_cache is None else f.kv_cache + more)
                       for f in model.launches))
