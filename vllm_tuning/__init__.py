"""What to set vLLM's max_num_seqs and max_num_batched_tokens to, from about four launches."""

from importlib import import_module

_HOMES = {
    "GIB": "units",
    "InputError": "units",
    "Launch": "launch",
    "MemoryModel": "memory_model",
    "Optimum": "optimum",
    "Workload": "workload",
    "find_optimum": "answer",
    "fit_memory_model": "answer",
    "model_of": "answer",
    "read_launches": "reading",
    "write_launches": "reading",
}
__all__ = list(_HOMES)


def __getattr__(name: str):
    """Loaded when asked for: inside vLLM (plugin) numpy and scipy stay out."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
