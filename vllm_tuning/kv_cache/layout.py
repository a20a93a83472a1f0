"""KV cache from a config.json: bytes of a token and of a request, pool <-> blocks <-> tokens.

The arithmetic of vLLM's ``v1/core/kv_cache_utils.py``. Layers that keep the same kind of cache are
cut into groups of equal size; a block is one page in each layer of a group, and all groups draw
their blocks from one pool. A request of L tokens, prefilled in steps of B, takes for each group

    ceil(L / block)                          full attention, latent attention
    ceil(min(w - 1 + B, L) / block) + 1      sliding window of w tokens
    ceil(min(c + B, L) / block)              chunks of c tokens
    1                                        recurrent state (Mamba, linear attention)

blocks: a + b*L bytes once its windows are full. Each drafted token keeps a state more, and so does
prefix caching (where the release caches states at all).
"""

import itertools
import os
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from ..law import hidden_state_bytes
from ..releases import prints_tokens_by_concurrency
from ..units import InputError
from .layers import cache_layers
from .model_config import MissingFigure, ModelConfig, read_config


@dataclass(frozen=True)
class Group:
    """Layers that share one block table: ``block`` tokens a block, ``state_blocks`` of a state."""

    kind: str
    layers: int
    block: int
    window: int = 0
    state_blocks: int = 1


@dataclass(frozen=True)
class CacheLayout:
    """The groups of a model and the bytes of a block on the fullest GPU.

    ``kv_bytes_per_token``: of a token in the layers that keep it as long as the request lasts, or
    in all windows where no layer does.
    """

    groups: tuple[Group, ...]
    block_bytes: int
    kv_bytes_per_token: int
    block_size: int
    decode_context_parallel_size: int = 1
    speculative_tokens: int = 0

    @property
    def hybrid(self) -> bool:
        """Whether a request costs something else than its length times the bytes of a token."""
        return len(self.groups) > 1 or self.groups[0].kind != "full"

    @property
    def state_blocks(self) -> int:
        """Blocks of recurrent states that a request holds in a group; 0 where there are none."""
        return max((g.state_blocks for g in self.groups if g.kind == "state"), default=0)

    def blocks(self, kv_cache: float) -> int:
        """Blocks in so many bytes of the pool; vLLM keeps one of them back."""
        return max(0, int(kv_cache // self.block_bytes))

    def request_blocks(self, length, budget: int):
        """Blocks of one request of ``length`` tokens (or of each of an array) beside B = budget."""
        return sum(self._group_blocks(group, length, budget) for group in self.groups)

    def held_blocks(self, length, budget: int):
        """The same with the slots of the drafted tokens, which a request looks ahead by."""
        return self.request_blocks(length + self.speculative_tokens, budget)

    def _group_blocks(self, group: Group, length, budget: int):
        least = np.minimum if isinstance(length, np.ndarray) else min
        if group.kind == "state":
            return group.state_blocks
        if group.kind == "window":
            return -(-least(group.window - 1 + budget, length) // group.block) + 1
        if group.kind == "chunk":
            return -(-least(group.window + budget, length) // group.block)
        return -(-length // (self.decode_context_parallel_size * group.block))

    def concurrency(self, blocks: int, length: int, budget: int) -> float:
        """Requests of ``length`` tokens in so many blocks, as vLLM prints it for max_model_len."""
        return blocks / self.request_blocks(length, budget)

    def printed_tokens(
        self, blocks: int, max_model_len: int, budget: int, vllm_version: str | None = None
    ) -> int:
        """ "GPU KV cache size" of so many blocks.

        From 0.20.2 on (and where the release is unknown) int(concurrency * max_model_len), before
        that the blocks of one group times the tokens of the smallest block.
        """
        if prints_tokens_by_concurrency(vllm_version) is False:
            return (
                blocks
                // len(self.groups)
                * min(group.block for group in self.groups)
                * self.decode_context_parallel_size
            )
        return int(self.concurrency(blocks, max_model_len, budget) * max_model_len)

    @property
    def per_token(self) -> float:
        """b: bytes that one more token of a long request takes."""
        return (
            sum(self.block_bytes / group.block for group in self.groups if group.kind == "full")
            / self.decode_context_parallel_size
        )

    def fixed(self, budget: int) -> int:
        """a: bytes of the states and of full windows beside a token budget of B."""
        long = max((group.window + budget for group in self.groups), default=0) + 1
        return self.block_bytes * sum(
            self._group_blocks(group, long, budget) for group in self.groups if group.kind != "full"
        )


def cache_layout(
    config: ModelConfig,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    kv_cache_dtype: str | None = None,
    block_size: int = 16,
    decode_context_parallel_size: int = 1,
    speculative_tokens: int = 0,
    prefix_caching: bool = False,
) -> CacheLayout:
    """The groups and blocks of a model on one GPU, that of the fullest pipeline stage.

    Layers of different kinds get pages of one size: larger blocks where layers keep less a token,
    and blocks that hold a recurrent state. The size of a group is the smallest class of layers, or
    the largest where that is less than half as large again. prefix_caching: of states. Raises
    InputError.
    """
    if tensor_parallel_size % decode_context_parallel_size:
        raise InputError(
            f"decode_context_parallel_size {decode_context_parallel_size} does not "
            f"divide tensor_parallel_size {tensor_parallel_size}"
        )
    layers = cache_layers(config, tensor_parallel_size, kv_cache_dtype, speculative_tokens)
    whole = max((layer.token_bytes for layer in layers), default=0)
    states = max(layer.state_bytes for layer in layers)
    if states:
        if not whole:
            raise MissingFigure(f"{config.path}: recurrent layers only: no KV cache to size")
        grain = max(128, block_size) if config.latent else block_size
        block_size = max(block_size, grain * -(-states // (grain * whole)))
    if (heads := config.optional("num_attention_heads", 0) or 0) % tensor_parallel_size:
        raise InputError(
            f"{config.path}: {heads:,} attention heads cannot be split over "
            f"tensor_parallel_size {tensor_parallel_size}"
        )
    if pipeline_parallel_size > config.count("num_hidden_layers"):
        raise InputError(
            f"{config.path}: {config.count('num_hidden_layers'):,} layers cannot fill "
            f"{pipeline_parallel_size:,} pipeline stages"
        )
    stage_of = _stages(config.count("num_hidden_layers"), pipeline_parallel_size)
    page = whole * block_size
    classes = defaultdict(list)
    for layer in layers:
        own = (layer.token_bytes or whole) * block_size
        block = block_size if page % own else block_size * page // own
        classes[layer.kind, layer.window, block].append(layer)

    def fullest(group, size):
        stages = defaultdict(int)
        for layer in group:
            stages[stage_of(layer.index)] += size(layer)
        return max(stages.values())

    if len({(kind, window) for kind, window, _ in classes}) == 1:
        (kind, window, _), *_ = classes
        groups: tuple[Group, ...] = (Group(kind, len(layers), block_size, window),)
        block_bytes = fullest(layers, lambda layer: layer.token_bytes * block_size)
    else:
        sizes = [len(members) for members in classes.values()]
        size = max(sizes) if max(sizes) < 1.5 * min(sizes) else min(sizes)
        cut = [
            (key, members[i::count])
            for key, members in classes.items()
            for count in [-(-len(members) // size)]
            for i in range(count)
        ]
        groups = tuple(
            Group(kind, len(members), block, window, 1 + speculative_tokens + prefix_caching)
            for (kind, window, block), members in cut
        )
        block_bytes = max(fullest(members, lambda _: page) for _, members in cut)
    per_token = fullest(
        [layer for layer in layers if layer.kind == "full"] or layers,
        lambda layer: layer.token_bytes,
    )
    split = decode_context_parallel_size
    return CacheLayout(groups, block_bytes, per_token, block_size, split, speculative_tokens)


def _stages(layers: int, stages: int):
    """The pipeline stage of a layer: equal shares, the rest to the stages before the last one."""
    shares = [layers // stages] * stages
    for i in range(layers % stages):
        shares[-2 - i] += 1
    ends = list(itertools.accumulate(shares))
    return lambda index: next((i for i, end in enumerate(ends) if index < end), stages - 1)


@dataclass(frozen=True)
class Shape:
    """What the memory model needs of a model's shape; bytes, None if unknown.

    hybrid: layers of several kinds, so that a request does not cost its length times kappa.
    cache: the groups and blocks that it takes; config: the figures that it was read from.
    """

    hidden_state_bytes: int
    kv_bytes_per_token: int | None
    hybrid: bool = False
    cache: CacheLayout | None = None
    config: ModelConfig | None = None


def read_shape(
    path: str | os.PathLike | ModelConfig,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    kv_cache_dtype: str | None = None,
    block_size: int = 16,
    speculative_tokens: int = 0,
    prefix_caching: bool = False,
) -> Shape:
    """The shape in a Hugging Face config.json (a file or a folder of one), or in what it held.

    kappa is None for models whose layers are not all of one plain kind (sliding window, hybrid),
    since their cost is not one figure a token, and where the config lacks what it takes. Raises
    InputError where a figure is no figure.
    """
    config = path if isinstance(path, ModelConfig) else read_config(path)
    k = hidden_state_bytes(config.count("hidden_size"), config.element_bytes)
    try:
        cache = cache_layout(
            config,
            tensor_parallel_size,
            pipeline_parallel_size,
            kv_cache_dtype,
            block_size,
            speculative_tokens=speculative_tokens,
            prefix_caching=prefix_caching,
        )
    except MissingFigure:
        return Shape(k, None, not _plain(config), None, config)
    kappa = None if cache.hybrid else cache.kv_bytes_per_token
    return Shape(k, kappa, cache.hybrid, cache, config)


def _plain(config: ModelConfig) -> bool:
    try:
        return set(config.layer_kinds()) <= {"full", None}
    except MissingFigure:
        return "num_hidden_layers" not in config.values
