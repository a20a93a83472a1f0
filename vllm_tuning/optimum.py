"""From the memory model and a workload to max_num_seqs and max_num_batched_tokens.

Point C: the largest number of full requests that the pool holds, with the largest token budget
that is free of charge, because there the model run and the sampler run have the same peak.
"""

from dataclasses import dataclass, field

from uncertainties import UFloat

from .four_launches import SeedAnswer, seed_answer
from .launch import Notice, serve_flags
from .law import refined_point
from .memory_model import MemoryModel
from .pool import CONFIDENCE, Pool
from .units import GIB, is_known, nominal, stderr
from .workload import Workload

MANY_STEPS = 8  # of one prompt, before it is told


PRICED_BUDGETS = tuple(2**power for power in range(9, 16))  # 512 ... 32768


@dataclass(frozen=True)
class Price:
    """What a token budget costs: the pool it leaves and the requests that still fit."""

    max_num_batched_tokens: int
    kv_cache: float
    kv_cache_tokens: int | None
    max_num_seqs: int


@dataclass(frozen=True)
class Recommended:
    """Integers that obey vLLM's rules and fit with 95 % confidence, and the pool to expect."""

    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache: float
    kv_cache_tokens: int | None
    kv_cache_tokens_stderr: float | None
    concurrency: float

    @property
    def flags(self) -> str:
        return serve_flags(self.max_num_seqs, self.max_num_batched_tokens)


@dataclass(frozen=True)
class Optimum:
    """The answer in three steps: the seed's closed form, the refined one, and the integers."""

    model: MemoryModel
    workload: Workload
    method: SeedAnswer
    max_num_seqs: UFloat | None = None
    max_num_batched_tokens: UFloat | None = None
    recommended: Recommended | None = None
    reason: str | None = None
    prices: tuple[Price, ...] = ()
    notices: tuple[Notice, ...] = field(default=())

    @property
    def proviso(self) -> str:
        """What the confidence rests on: an assumed k is given room up to a 70B model's."""
        return "95 % confidence" + (
            ", for k up to 16 KiB" if self.model.k_source == "assumed 0" else ""
        )

    def to_dict(self) -> dict:
        """JSON of ``recommend``: bytes and tokens, GiB where the name says so, null = unknown."""
        model, seed = self.model, self.method
        names = ("max_num_seqs", "max_num_batched_tokens", "k1", "k2", "a", "kv_bytes_per_token")
        refined_names = ("k1", "a1", "k2", "a2", "k")
        point = {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
        }
        best = self.recommended
        return {
            "workload": {
                "input_len": self.workload.input_len,
                "output_len": self.workload.output_len,
            },
            "method": None
            if seed.reason
            else {
                **{name: nominal(getattr(seed, name)) for name in names},
                "stderr": {name: stderr(getattr(seed, name)) for name in names},
            },
            "method_reason": seed.reason,
            "refined": {
                **{name: value and nominal(value) for name, value in point.items()},
                **{name: nominal(getattr(model, name)) for name in refined_names},
                "stderr": {
                    **{name: value and stderr(value) for name, value in point.items()},
                    **{name: stderr(getattr(model, name)) for name in refined_names},
                },
                "route": model.route,
                "k_source": model.k_source,
            },
            "recommended": best
            and {
                "max_num_seqs": best.max_num_seqs,
                "max_num_batched_tokens": best.max_num_batched_tokens,
                "kv_cache_gib": best.kv_cache / GIB,
                "kv_cache_tokens": best.kv_cache_tokens,
                "kv_cache_tokens_stderr": best.kv_cache_tokens_stderr,
                "concurrency": best.concurrency,
                "confidence": CONFIDENCE,
            },
            "recommended_reason": self.reason,
            "reasons": model.reasons,
            "prices": [
                {
                    "max_num_batched_tokens": price.max_num_batched_tokens,
                    "kv_cache_gib": price.kv_cache / GIB,
                    "kv_cache_tokens": price.kv_cache_tokens,
                    "max_num_seqs": price.max_num_seqs,
                }
                for price in self.prices
            ],
            "next_launches": [vars(launch) for launch in model.next_launches],
            "warnings": list(dict.fromkeys(notice.name for notice in self.notices)),
            "explanations": [notice.text for notice in self.notices],
        }

    def to_yaml(self) -> str:
        """A file for ``vllm serve --config``: the flags, and those of the launches it stands on."""
        if self.recommended is None:
            return f"# no recommendation: {self.reason}\n"
        lines = [
            *(f"# {notice.name}: {notice.text}" for notice in self.notices),
            "# To be added to the other flags of the launches.",
            f"max-num-seqs: {self.recommended.max_num_seqs}",
            f"max-num-batched-tokens: {self.recommended.max_num_batched_tokens}",
        ]
        for name in (
            "gpu_memory_utilization",
            "max_model_len",
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "kv_cache_dtype",
        ):
            values = {v for f in self.model.launches if (v := getattr(f.launch, name))}
            if len(values) == 1 and values.isdisjoint((1, "auto")):
                lines.append(f"{name.replace('_', '-')}: {values.pop()}")
        return "\n".join(lines) + "\n"


def find_optimum(model: MemoryModel, workload: Workload, chunked_prefill=True) -> Optimum:
    """The optimum of a memory model for a workload; what it cannot know is None with the reason.

    chunked_prefill: where it is off, vLLM refuses a token budget below max_model_len.
    """
    method = (
        seed_answer(model.launches, workload.length)
        if not model.hybrid
        else SeedAnswer(
            reason="layers of several kinds share the pool: KV/KVS is not the cost of a token"
        )
    )
    notices = [*model.notices, *_scope(model, workload)]
    reason = _no_answer(model, workload)
    if reason:
        return Optimum(model, workload, method, reason=reason, notices=tuple(notices))
    point = optimum_of(model, workload.length)
    pool = Pool(model, workload, 1 if chunked_prefill else _longest(model, workload))
    best = _recommend(pool)
    if best is None:
        reason = (
            f"not one request of {workload.length:,} tokens fits the pool with 95 % "
            "confidence: raise gpu_memory_utilization or shorten the requests"
        )
        notices.append(Notice("negative_pool", reason + "."))
    else:
        notices += _limits(model, workload, best, point)
    return Optimum(
        model,
        workload,
        method,
        *point,
        best,
        reason,
        tuple(_prices(pool)) if best else (),
        tuple(notices),
    )


def optimum_of(model: MemoryModel, length: int) -> tuple[UFloat, UFloat]:
    """(C*, B*) of ``refined_point`` for requests of ``length`` tokens, where their cost is known."""

    def requests(point):
        return point[0].n

    def solved(request, per_budget):
        return refined_point(
            model.model_headroom - model.graph_charge,
            model.sampler_headroom - model.graph_charge,
            request,
            model.k1,
            model.k2,
            model.k,
            per_budget,
        )

    return min(
        (
            max((solved(*form) for form in forms), key=requests)
            for forms in model.request_forms(length)
        ),
        key=requests,
    )


def _no_answer(model: MemoryModel, workload: Workload) -> str | None:
    for name in ("k1", "k2"):
        if not is_known(getattr(model, name)):
            return f"{name.upper()} is not known: {model.reasons[name]}"
    if model.hybrid and not model.request_forms(workload.length):
        return _unknown_cost(model, workload)
    if not model.request_forms(workload.length):
        return (
            "the KV cache of one token is not known: needs kv_cache_gib beside kv_cache_tokens "
            "in a launch, or --config config.json"
        )
    if not is_known(model.model_headroom):
        return (
            "the pool is not known: no launch prints kv_cache_gib or kv_cache_tokens, and "
            "total_memory_gib, gpu_memory_utilization, model_weights_gib, non_torch_gib are not "
            "all given"
        )
    if model.k1.n <= model.k.n:
        return (
            "K1 is not above k: keeping a token's hidden state costs more than running the "
            "model on it; the launches contradict the law"
        )
    return None


def _unknown_cost(model: MemoryModel, workload: Workload) -> str:
    reason = (
        "layers of several kinds share the pool, so a request does not cost its length times "
        "the KV cache of a token; "
    )
    if model.request_cost is None:
        return reason + (
            "these launches do not tell what it costs: it takes kv_cache_gib and "
            "max_concurrency of the four launches at one max_model_len and of one more "
            f"with --max-model-len {workload.length}, or --config config.json"
        )
    return reason + (
        f"the launches tell its cost at max_model_len {model.request_cost.lengths[0]:,} "
        f"only: launch once more with --max-model-len {workload.length}"
    )


def _recommend(pool: Pool) -> Recommended | None:
    seqs = pool.most_requests(pool.free_budget)
    if not seqs:
        return None
    budget = pool.free_budget(seqs)
    tokens = pool.whole_tokens(seqs, budget)
    return Recommended(
        seqs,
        budget,
        pool.model.pool(seqs, budget).n,
        tokens,
        None if tokens is None else pool.stderr(seqs, budget),
        pool.concurrency(seqs, budget),
    )


def _prices(pool: Pool):
    for budget in PRICED_BUDGETS:
        seqs = min(pool.most_requests(lambda _: budget), budget)
        at = max(seqs, 1)
        tokens = pool.whole_tokens(at, budget)
        yield Price(budget, pool.model.pool(at, budget).n, tokens and max(0, tokens), seqs)


def _scope(model: MemoryModel, workload: Workload):
    if workload.input_len > 4 * workload.output_len:
        yield Notice(
            "input_much_longer_than_output",
            f"Input ({workload.input_len:,}) is much longer than output "
            f"({workload.output_len:,}): the method is made for equal lengths and for "
            "short input with long output. Prefill sets the pace here; measure it.",
        )
    cost = model.request_cost
    if cost and len(cost.lengths) == 1 and workload.length < cost.lengths[0]:
        yield Notice(
            "request_cost_is_a_limit",
            f"Layers of several kinds share the pool. A request of {workload.length:,} "
            f"tokens is counted as one of {cost.lengths[0]:,}, which is an upper limit: "
            "more may fit. To know, launch once more with --max-model-len "
            f"{workload.length}.",
        )
    longest = _longest(model)
    if longest and workload.length > longest:
        yield Notice(
            "beyond_max_model_len",
            f"A request of {workload.length:,} tokens is longer than max_model_len "
            f"{longest:,} of the launches: vLLM would refuse it. Launch with "
            f"--max-model-len {workload.length}.",
        )


def _longest(model: MemoryModel, workload: Workload | None = None) -> int:
    """max_model_len of the launches, tokens; that of the requests where it is not given, else 0."""
    return max((f.launch.max_model_len or 0 for f in model.launches), default=0) or (
        workload.length if workload else 0
    )


def _limits(model: MemoryModel, workload: Workload, best: Recommended, point):
    if point[1].n < point[0].n:
        yield Notice(
            "mnbt_at_least_mns",
            "The branches meet at fewer tokens than requests, and vLLM refuses "
            "max_num_batched_tokens < max_num_seqs: solved on the edge where they are "
            "equal.",
        )
    steps = -(-workload.input_len // best.max_num_batched_tokens)
    if steps > MANY_STEPS:
        yield Notice(
            "prefill_in_many_steps",
            f"A prompt of {workload.input_len:,} tokens takes {steps} steps at "
            f"{best.max_num_batched_tokens:,} tokens a step, so its first token comes late. "
            "The price list says what a larger max_num_batched_tokens costs.",
        )
    for flag, value in (
        ("max_num_seqs", best.max_num_seqs),
        ("max_num_batched_tokens", best.max_num_batched_tokens),
    ):
        tried = [v for f in model.launches if (v := getattr(f.launch, flag))]
        if tried and not min(tried) <= value <= max(tried):
            yield Notice(
                "beyond_launches",
                f"{flag} {value:,} lies outside the launches ({min(tried):,} to "
                f"{max(tried):,}): extrapolated, so make a check launch there.",
            )
