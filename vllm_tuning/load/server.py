"""What is known of the server beside its /metrics: its flags, its pool, and what was predicted."""

import os
from dataclasses import dataclass

from ..answer import model_of
from ..budget import seqs_by_length
from ..diagnosis import Notice
from ..kv_cache import CacheLayout, Group
from ..launch import Launch
from ..memory_model import MemoryModel
from ..reading import Window, read_json, read_source
from ..units import LARGEST_COUNT, InputError
from ..workload import Workload


@dataclass(frozen=True)
class ServedPool:
    """The pool of one engine: blocks as printed, one of which no request gets; bytes if known."""

    blocks: int
    block_size: int
    token_bytes: float | None = None

    @property
    def usable(self) -> int:
        """Blocks that requests can get."""
        return self.blocks - 1

    @property
    def tokens(self) -> int:
        """ "GPU KV cache size": the tokens of all blocks."""
        return self.blocks * self.block_size

    def requests(self, length: int) -> int:
        """Finished requests of so many tokens that it holds at once."""
        layout = CacheLayout((Group("full", 1, self.block_size),), 1, 1, self.block_size)
        return seqs_by_length(layout, self.blocks, length, 1, margin=1.0)


@dataclass(frozen=True)
class Recommendation:
    """What ``recommend --json`` predicted: the flags, their pool in tokens, the requests."""

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_tokens: int | None
    workload: Workload | None


@dataclass(frozen=True)
class Server:
    """The launch that serves, a memory model if the launches give one, and the prediction."""

    launch: Launch | None = None
    model: MemoryModel | None = None
    predicted: Recommendation | None = None
    notices: tuple[Notice, ...] = ()

    @property
    def max_num_seqs(self) -> int | None:
        return self.launch and self.launch.max_num_seqs

    def pool(self, window: Window) -> ServedPool | None:
        """As the scrapes tell it, else the log; None if neither does, or a token has no price."""
        launch = self.launch or Launch()
        blocks = window.cache("num_gpu_blocks") or launch.num_gpu_blocks
        size = window.cache("block_size") or launch.block_size
        tokens = window.cache("kv_cache_size_tokens")
        several_kinds = launch.hybrid or any(
            window.label(name) not in (None, "None")
            for name in ("sliding_window", "mamba_page_size_padded")
        )
        if (
            not blocks
            or not size
            or blocks < 2
            or several_kinds
            or (tokens and abs(tokens - blocks * size) >= size)
        ):
            return None
        measured = launch.kv_cache and launch.kv_cache_tokens and launch.measured
        return ServedPool(
            blocks, size, launch.kv_cache / launch.kv_cache_tokens if measured else None
        )


def server_of(window: Window, launches=(), predicted: Recommendation | None = None) -> Server:
    """The server that the scrapes are of, out of LAUNCHES.

    Of several launches the one with the pool that the scrapes show. Raises InputError.
    """
    if not launches:
        return Server(predicted=predicted)
    found = [launch for source in launches for launch in read_source(source)]
    notices, blocks, size = [], window.cache("num_gpu_blocks"), window.cache("block_size") or 16
    up = [launch for launch in found if launch.status == "ok"] or found
    same = (
        up
        if len(up) == 1
        else [launch for launch in up if blocks and blocks in _logged_blocks(launch, size)]
    )
    launch = same[-1] if len({each.max_num_seqs for each in same}) == 1 else None
    if launch is None:
        notices.append(
            Notice(
                "server_not_found",
                (
                    f"which of the {len(up)} launches serves is not known: "
                    + (f"{len(same)} have" if same else "none has")
                    + " the pool that the scrapes show; "
                    "give its own start-up log"
                ),
            )
        )
    elif blocks and not launch.hybrid:
        logged = next(filter(None, _logged_blocks(launch, size)), 0)
        if logged and abs(logged - blocks) > 1:  # tokens may leave out the null block
            notices.append(
                Notice(
                    "other_server",
                    (
                        f"{launch.where}: {logged:,} blocks, but the scrapes show {blocks:,}: the log of "
                        "another start, which is not used"
                    ),
                )
            )
            launch = None
    model = None
    if len(found) > 1:
        try:
            model = model_of(launches)
        except InputError as error:
            notices.append(Notice("no_model", f"the launches make no memory model: {error}"))
    return Server(launch, model, predicted, tuple(notices))


def _logged_blocks(launch: Launch, block_size: int) -> tuple[int | None, int]:
    """Blocks as printed, and as many as the printed tokens fill."""
    return launch.num_gpu_blocks, (launch.kv_cache_tokens or 0) // (launch.block_size or block_size)


def read_recommendation(path: str | os.PathLike) -> Recommendation:
    """The answer that ``recommend --json`` printed. Raises InputError."""
    answer = read_json(path, "what vllm-tuning recommend --json prints")
    best, work = answer.get("recommended"), answer.get("workload")
    if not isinstance(best, dict):
        reason = str(answer.get("recommended_reason") or "no figure under recommended")
        raise InputError(f"{path}: no recommendation: {reason[:200]}")

    def whole(record, name):
        value = record.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= LARGEST_COUNT:
            raise InputError(
                f"{path}: {name} is {str(value)[:40]}; expected a whole number of 1 or more"
            )
        return value

    tokens = best.get("kv_cache_tokens") is not None and whole(best, "kv_cache_tokens")
    return Recommendation(
        whole(best, "max_num_seqs"),
        whole(best, "max_num_batched_tokens"),
        tokens or None,
        Workload(whole(work, "input_len"), whole(work, "output_len"))
        if isinstance(work, dict)
        else None,
    )
