"""What the scheduler is given: the flags of a server, and requests."""

from dataclasses import dataclass, field
from numbers import Integral

from ..units import InputError

LONGEST = 10**8  # tokens of one request: each takes its share of a step, and of memory here


@dataclass(frozen=True)
class SchedulerConfig:
    """The server's flags, under vLLM's names. Raises InputError for what vLLM refuses.

    num_gpu_blocks: as printed, so with the null block, which no request gets. watermark: the part
    of num_gpu_blocks that an admission leaves free. long_prefill_token_threshold: the largest
    chunk of a prompt, tokens; 0 is no limit. scheduler_reserve_full_isl: admit a request only if
    all of its tokens so far fit, not just the first chunk.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    num_gpu_blocks: int
    block_size: int = 16
    max_model_len: int = 8192
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = False
    long_prefill_token_threshold: int = 0
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0

    def __post_init__(self):
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "max_model_len"):
            _whole(getattr(self, name), name, 1)
        _whole(self.num_gpu_blocks, "num_gpu_blocks", 2, ": one is the null block")
        _whole(self.long_prefill_token_threshold, "long_prefill_token_threshold", 0)
        if self.max_model_len > LONGEST:
            raise InputError(
                f"max_model_len is {self.max_model_len:,}; requests of at most "
                f"{LONGEST:,} tokens are simulated"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InputError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below "
                f"max_num_seqs {self.max_num_seqs}; a step must have a token for each"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise InputError(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is below "
                f"max_model_len {self.max_model_len}; without chunked prefill a step "
                "must take a whole prompt"
            )
        if self.long_prefill_token_threshold > self.max_model_len:
            raise InputError(
                f"long_prefill_token_threshold {self.long_prefill_token_threshold} "
                f"must be 0 to max_model_len {self.max_model_len}"
            )
        if not 0 <= self.watermark < 1:
            raise InputError(f"watermark is {self.watermark:g}; it must be 0 or more and below 1")

    def blocks(self, tokens: int) -> int:
        """Whole blocks that hold so many tokens."""
        return -(-tokens // self.block_size)

    def check(self, request: "Request") -> "Request":
        """The request, if it can ever finish; else InputError."""
        for name in ("prompt_len", "max_tokens", "at"):
            _whole(getattr(request, name), f"request {request.id}: {name}", 0)
        length, usable = request.prompt_len + request.max_tokens, self.num_gpu_blocks - 1
        if request.prompt is not None and len(request.prompt) != request.prompt_len:
            raise InputError(
                f"request {request.id}: prompt has {len(request.prompt)} tokens, "
                f"prompt_len is {request.prompt_len}"
            )
        if request.prompt_len < 1 or request.max_tokens < 1:
            raise InputError(
                f"request {request.id}: {request.prompt_len} prompt tokens and "
                f"{request.max_tokens} to generate; each must be at least 1"
            )
        if length > self.max_model_len:
            raise InputError(
                f"request {request.id}: {length} tokens are more than max_model_len "
                f"{self.max_model_len}"
            )
        if self.blocks(length - 1) > usable:
            raise InputError(
                f"request {request.id}: {length - 1} tokens of KV cache need "
                f"{self.blocks(length - 1)} blocks of {self.block_size}, and the pool "
                f"has {usable}"
            )
        return request


def _whole(value, name: str, least: int, why: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{name} is {value}; it must be a whole number of at least {least}{why}")


@dataclass(frozen=True, slots=True)
class Request:
    """``prompt_len`` tokens in, ``max_tokens`` out, arriving before step ``at``.

    prompt: its token ids, for prefix caching; without them it shares no block with another request.
    """

    id: str | int
    prompt_len: int
    max_tokens: int
    at: int = 0
    prompt: tuple[int, ...] | None = field(default=None, repr=False)
