"""What is known of the server beside its /metrics: its flags and its pool."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..diagnosis import Notice
from ..launch import Launch
from ..memory_model import MemoryModel
from ..reading import ScrapeSeries


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
        """The tokens of all blocks, vLLM's "GPU KV cache size"."""
        return self.blocks * self.block_size

    @property
    def usable_tokens(self) -> int:
        """Tokens that requests can get."""
        return self.usable * self.block_size

    def requests(self, length: int) -> int:
        """Finished requests of ``length`` tokens, in whole blocks, that it holds at once.

        >>> ServedPool(blocks=129, block_size=32).requests(256)
        16
        """
        return self.usable // -(-length // self.block_size)


@dataclass(frozen=True)
class ServingLaunch:
    """The launch that serves, and a memory model if the launches give one."""

    launch: Launch | None = None
    model: MemoryModel | None = None

    @property
    def max_num_seqs(self) -> int | None:
        return self.launch.max_num_seqs if self.launch else None

    def pool(self, series: ScrapeSeries) -> ServedPool | None:
        """As the scrapes give it, else the log; None where neither does, or not in tokens."""
        launch = self.launch or Launch()
        blocks = series.cache("num_gpu_blocks") or launch.num_gpu_blocks or 0
        size = series.cache("block_size") or launch.block_size or 0
        tokens = series.cache("kv_cache_size_tokens") or blocks * size
        if blocks < 2 or not size or abs(tokens - blocks * size) >= size:
            return None
        if launch.hybrid or any(
            series.label(name) not in (None, "None")
            for name in ("sliding_window", "mamba_page_size_padded")
        ):
            return None
        return ServedPool(blocks, size, _token_bytes(launch))


def serving_launch(
    series: ScrapeSeries, launches: Sequence[Launch]
) -> tuple[Launch | None, Notice | None]:
    """The one of the launches that the scrapes are of; None, and why, where that is not known.

    Of several it is the one with the pool that the scrapes show.
    """
    blocks, size = series.cache("num_gpu_blocks"), series.cache("block_size") or 16
    up = [launch for launch in launches if launch.status == "ok"] or launches
    if len(up) == 1:
        logged = next(filter(None, _logged_blocks(up[0], size)), None)
        if blocks and logged and not up[0].hybrid and abs(logged - blocks) > 1:
            # Not 1: the printed tokens may leave out the block that no request gets.
            return None, Notice(
                "other_server",
                f"{up[0].where}: {logged:,} blocks, but the scrapes show {blocks:,}: the log of "
                "another start, which is not used",
            )
        return up[0], None
    same = [launch for launch in up if blocks and blocks in _logged_blocks(launch, size)]
    if len({launch.max_num_seqs for launch in same}) == 1:
        return same[-1], None
    return None, Notice(
        "server_not_found",
        f"which of the {len(up)} launches serves is not known: "
        + (f"{len(same)} have" if same else "none has")
        + " the pool that the scrapes show; give its own start-up log",
    )


def _logged_blocks(launch: Launch, block_size: int) -> tuple[int | None, int]:
    """Blocks as printed, and as many as the printed tokens fill."""
    return launch.num_gpu_blocks, (launch.kv_cache_tokens or 0) // (launch.block_size or block_size)


def _token_bytes(launch: Launch) -> float | None:
    """Bytes of a token in the pool; None where the log does not give them as measured."""
    if not (launch.kv_cache and launch.kv_cache_tokens and launch.measured):
        return None
    return launch.kv_cache / launch.kv_cache_tokens
