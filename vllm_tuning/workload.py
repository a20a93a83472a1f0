"""What the requests look like: input and output length."""

from dataclasses import dataclass

from .units import InputError


@dataclass(frozen=True)
class Workload:
    """Requests of ``input_len`` prompt tokens and ``output_len`` generated ones."""

    input_len: int
    output_len: int

    def __post_init__(self):
        for name in ("input_len", "output_len"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1 token")

    @property
    def length(self) -> int:
        """L = input + output, tokens of one finished request."""
        return self.input_len + self.output_len

    def blocks(self, block_size: int) -> int:
        """Whole KV blocks of one finished request: ceil(L / block_size)."""
        return -(-self.length // block_size)
