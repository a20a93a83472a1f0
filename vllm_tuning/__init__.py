"""What to set vLLM's max_num_seqs and max_num_batched_tokens to, from about four launches."""

from .launches import Launch, read_launches, write_launches
from .memory_model import MemoryModel, fit_memory_model, model_of
from .optimum import Optimum, find_optimum
from .units import GIB, InputError
from .workload import Workload

__all__ = ["GIB", "InputError", "Launch", "MemoryModel", "Optimum", "Workload", "find_optimum",
           "fit_memory_model", "model_of", "read_launches", "write_launches"]
