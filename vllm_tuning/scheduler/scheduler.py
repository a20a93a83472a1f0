"""A step of vLLM's V1 scheduler, by the rules of release 0.32: which requests run, how many tokens.

There is no prefill phase and no decode phase: every request has tokens and computed tokens, and a
step lets the computed ones catch up, within a budget of tokens and a pool of KV blocks. A request
that has caught up decodes: it then needs one token a step, a block every ``block_size`` steps and
ends at a step known in advance. Such requests are not visited every step; they are kept under the
step at which they next need something.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field

from .config import Request, SchedulerConfig
from .kv_blocks import BlockPool, hash_block_tokens


@dataclass(slots=True, eq=False)
class Sequence:
    """What the scheduler knows of an unfinished request.

    number: counts the arrivals. num_tokens: the prompt, and what is generated when it resumes.
    num_computed_tokens: while it is in the prefill; then None in ``decoding_since`` is replaced by
    a step, since when it has computed one token each. lost_tokens: computed when it was preempted.
    """

    number: int
    request: Request
    prompt_hashes: list[int]
    num_tokens: int
    num_computed_tokens: int = 0
    decoding_since: int | None = None
    blocks: list[int] = field(default_factory=list)
    num_cached_blocks: int = 0
    lost_tokens: int | None = None

    @property
    def last_token(self) -> int:
        """Computed tokens at its end: the last generated one is never fed back."""
        return self.request.prompt_len + self.request.max_tokens - 1

    def block_hash(self, index: int):
        """Of the prompt's blocks the chained hash; generated tokens are taken to be its own."""
        known = index < len(self.prompt_hashes)
        return self.prompt_hashes[index] if known else (self.number, index)


@dataclass(slots=True)
class Step:
    """What one step did; requests by their number.

    chunks: tokens of each request in the prefill; all others that run decode one. hits: prefix
    tokens not computed anew. first_token: those whose prompt is complete for the first time.
    kv_tokens: tokens whose keys and values the running requests attend to, those of the step
    included. running, waiting, used (blocks): after scheduling; used_after: after the output.
    """

    new: list[int] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    first_token: list[int] = field(default_factory=list)
    chunks: dict[int, int] = field(default_factory=dict)
    hits: dict[int, int] = field(default_factory=dict)
    tokens: int = 0
    kv_tokens: int = 0
    running: int = 0
    waiting: int = 0
    used: int = 0
    used_after: int = 0


class Scheduler:
    """``add_request`` when one arrives; a step is ``schedule``, then ``update_from_output``."""

    def __init__(self, config: SchedulerConfig, block_pool: BlockPool | None = None):
        self.config = config
        self.block_pool = block_pool or BlockPool(
            range(1, config.num_gpu_blocks), config.enable_prefix_caching
        )
        self.watermark_blocks = int(config.watermark * config.num_gpu_blocks)
        self.waiting: deque[Sequence] = deque()
        self.running: dict[int, Sequence] = {}  # in the order of admission
        self.prefilling: dict[int, Sequence] = {}  # those of them that do not decode
        # those that do, by the step modulo block_size of a new block, and by that of their end
        self.due: defaultdict[int, dict[int, Sequence]] = defaultdict(dict)
        self.finishing: defaultdict[int, dict[int, Sequence]] = defaultdict(dict)
        self.now = 0  # steps scheduled
        self.arrived = self.recomputed_tokens = self.kv_tokens = 0

    def add_request(self, request: Request) -> None:
        """Last in the WAITING queue."""
        cached = self.config.enable_prefix_caching and request.prompt
        hashes = hash_block_tokens(request.prompt, self.config.block_size) if cached else []
        self.waiting.append(Sequence(self.arrived, request, hashes, request.prompt_len))
        self.arrived += 1

    def schedule(self) -> Step:
        """RUNNING requests first, then WAITING ones unless one had to be preempted."""
        step = Step()
        threshold = self.config.long_prefill_token_threshold
        lone = len(self.running) + len(self.waiting) == 1
        self.largest_chunk = threshold if threshold and not lone else self.config.max_model_len
        self._schedule_running(step)
        step.tokens = len(self.running) - len(step.chunks) + sum(step.chunks.values())
        if not step.preempted:
            self._schedule_waiting(step)
        step.running, step.waiting = len(self.running), len(self.waiting)
        step.used = self.block_pool.used
        self.now += 1
        self._update_after_schedule(step)
        self.kv_tokens += step.tokens
        step.kv_tokens = self.kv_tokens
        return step

    def update_from_output(self, step: Step) -> None:
        """Requests with their last token leave, in order, and give their blocks back."""
        step.finished = sorted(self.finishing[self.now])  # who came first was admitted first
        for sequence in map(self.running.pop, step.finished):
            self._free(sequence)
            self._stop_decoding(sequence)
        del self.finishing[self.now]
        step.used_after = self.block_pool.used

    def computed_tokens(self, sequence: Sequence) -> int:
        """Tokens whose keys and values are in its blocks."""
        if sequence.decoding_since is None:
            return sequence.num_computed_tokens
        return self.now - sequence.decoding_since

    def block_table(self, number: int) -> list[tuple[int, int]]:
        """(physical block, slots filled) of each logical block of a running request."""
        sequence, size = self.running[number], self.config.block_size
        left = self.computed_tokens(sequence)
        return [
            (block, max(0, min(size, left - size * index)))
            for index, block in enumerate(sequence.blocks)
        ]

    # ------------------------------------------------------------ the rules of a step

    def _schedule_running(self, step: Step) -> None:
        """Each what it lacks: one token, or the next chunk of its prefill; blocks in order.

        The budget can cut the last one only. All before it got what they lacked in the step before,
        else it would not have been scheduled behind them, and they lack no more now.
        """
        due = self.due[self.now % self.config.block_size]
        budget = self.config.max_num_batched_tokens - len(self.running) + len(self.prefilling)
        blocks = len(due)
        for number, sequence in self.prefilling.items():
            step.chunks[number] = tokens = min(self._chunk(sequence), budget)
            budget -= tokens
            blocks += self._lacking_blocks(sequence, tokens)
        if blocks <= self.block_pool.num_free_blocks:
            for sequence, block in zip(
                due.values(), self.block_pool.get_new_blocks(len(due)), strict=True
            ):
                sequence.blocks.append(block)
            for number, sequence in self.prefilling.items():
                self._allocate_slots(sequence, step.chunks[number])
            return
        for number, sequence in list(self.running.items()):
            if number in due or number in step.chunks:
                tokens = step.chunks.get(number, 1)
                if self._make_room(sequence, tokens, step):
                    self._allocate_slots(sequence, tokens)

    def _schedule_waiting(self, step: Step) -> None:
        """First come, first served, while tokens, places and blocks suffice for the first."""
        config = self.config
        while (
            self.waiting
            and len(self.running) < config.max_num_seqs
            and (budget := config.max_num_batched_tokens - step.tokens)
        ):
            sequence = self.waiting[0]
            hits = self._get_computed_blocks(sequence)
            sequence.num_computed_tokens = len(hits) * config.block_size
            tokens = self._chunk(sequence)
            if tokens > budget and not config.enable_chunked_prefill:
                break
            tokens = min(tokens, budget)
            if not self._can_admit(sequence, hits, tokens):
                break
            self._admit(self.waiting.popleft(), hits, tokens, step)

    def _chunk(self, sequence: Sequence) -> int:
        """Tokens it lacks, at most long_prefill_token_threshold of them."""
        return min(sequence.num_tokens - sequence.num_computed_tokens, self.largest_chunk)

    def _can_admit(self, sequence: Sequence, hits: list[int], tokens: int) -> bool:
        """Room for the whole sequence (or its chunk), and the watermark while something runs."""
        whole = self.config.scheduler_reserve_full_isl
        upto = sequence.num_tokens if whole else sequence.num_computed_tokens + tokens
        needed = self.config.blocks(upto) - len(hits) + self.block_pool.count_evictable(hits)
        watermark = self.watermark_blocks if self.running else 0
        return needed + watermark <= self.block_pool.num_free_blocks

    def _admit(self, sequence: Sequence, hits: list[int], tokens: int, step: Step) -> None:
        """From WAITING (or preempted) to RUNNING, behind all others."""
        number, computed = sequence.number, sequence.num_computed_tokens
        (step.new if sequence.lost_tokens is None else step.resumed).append(number)
        self.recomputed_tokens += max(0, (sequence.lost_tokens or 0) - computed)
        if hits:
            step.hits[number] = computed
            self.kv_tokens += computed
            self.block_pool.touch(hits)
        sequence.blocks, sequence.num_cached_blocks = hits, len(hits)
        self._allocate_slots(sequence, tokens)
        self.running[number] = self.prefilling[number] = sequence
        step.chunks[number] = tokens
        step.tokens += tokens

    def _make_room(self, sequence: Sequence, tokens: int, step: Step) -> bool:
        """Preempt the last running request until the blocks suffice; False if it is this one."""
        while self._lacking_blocks(sequence, tokens) > self.block_pool.num_free_blocks:
            if self._preempt_request(step) is sequence:
                return False
        return True

    def _preempt_request(self, step: Step) -> Sequence:
        """Its blocks are freed; it waits at the front, to recompute all it had."""
        number, sequence = self.running.popitem()
        sequence.lost_tokens = self.computed_tokens(sequence)
        self._free(sequence)
        if sequence.decoding_since is None:
            del self.prefilling[number]
        else:
            sequence.num_tokens = sequence.lost_tokens + 1
            self._stop_decoding(sequence)
        self.waiting.appendleft(sequence)
        step.preempted.append(number)
        step.chunks.pop(number, None)
        return sequence

    def _update_after_schedule(self, step: Step) -> None:
        """Count the tokens as computed; who has caught up decodes from the next step on."""
        for number, tokens in step.chunks.items():
            sequence = self.running[number]
            sequence.num_computed_tokens += tokens
            if sequence.num_computed_tokens == sequence.num_tokens:
                del self.prefilling[number]
                self._start_decoding(sequence, self.now - sequence.num_computed_tokens)
                if sequence.num_tokens == sequence.request.prompt_len:
                    step.first_token.append(number)

    def _start_decoding(self, sequence: Sequence, since: int) -> None:
        sequence.decoding_since = since
        self.due[since % self.config.block_size][sequence.number] = sequence
        self.finishing[since + sequence.last_token][sequence.number] = sequence

    def _stop_decoding(self, sequence: Sequence) -> None:
        since, sequence.decoding_since = sequence.decoding_since, None
        assert since is not None
        del self.due[since % self.config.block_size][sequence.number]
        del self.finishing[since + sequence.last_token][sequence.number]

    # ------------------------------------------------------------ the blocks of a request

    def _lacking_blocks(self, sequence: Sequence, tokens: int) -> int:
        upto = self.computed_tokens(sequence) + tokens
        return self.config.blocks(upto) - len(sequence.blocks)

    def _allocate_slots(self, sequence: Sequence, tokens: int) -> None:
        """Blocks for these tokens; the blocks of a prompt that get full can be hit at once."""
        sequence.blocks += self.block_pool.get_new_blocks(self._lacking_blocks(sequence, tokens))
        if sequence.decoding_since is None:
            self._cache_full_blocks(sequence, sequence.num_computed_tokens + tokens)

    def _get_computed_blocks(self, sequence: Sequence) -> list[int]:
        """Cached blocks of its prefix; the last token is always computed, for its logits."""
        if not self.config.enable_prefix_caching:
            return []
        most = (sequence.num_tokens - 1) // self.config.block_size
        return self.block_pool.get_computed_blocks(map(sequence.block_hash, range(most)))

    def _cache_full_blocks(self, sequence: Sequence, tokens: int) -> None:
        if self.config.enable_prefix_caching:
            for index in range(sequence.num_cached_blocks, tokens // self.config.block_size):
                self.block_pool.cache_full_block(sequence.blocks[index], sequence.block_hash(index))
                sequence.num_cached_blocks = index + 1

    def _free(self, sequence: Sequence) -> None:
        """Blocks of generated tokens are hashed only now: no other request can hit them before."""
        computed = self.computed_tokens(sequence)
        self._cache_full_blocks(sequence, computed)
        self.kv_tokens -= computed
        self.block_pool.free_blocks(sequence.blocks)
        sequence.blocks, sequence.num_cached_blocks, sequence.num_computed_tokens = [], 0, 0
