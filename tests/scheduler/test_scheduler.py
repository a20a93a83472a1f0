"""The scheduler against vLLM's own traces, worked examples, and what holds for any workload."""

import gzip
import json
import random

import pytest
from conftest import ROOT

from vllm_tuning.scheduler.config import Request, SchedulerConfig
from vllm_tuning.scheduler.kv_blocks import BlockPool
from vllm_tuning.scheduler.replay import read_workload
from vllm_tuning.scheduler.scheduler import Scheduler
from vllm_tuning.scheduler.simulation import simulate
from vllm_tuning.units import InputError

SHARED = ROOT.parent / "shared"
ORACLE = SHARED / "oracle/sched"
OWN = sorted((ROOT / "tests/data/scheduler").glob("*.json.gz"))


def tokens_of(requests, **flags):
    """What each step scheduled, {id: tokens}."""
    config = SchedulerConfig(**{"max_num_batched_tokens": 1000, "num_gpu_blocks": 1000} | flags)
    trace = simulate(config, requests, trace=True).trace
    return [trace.scheduled(step) for step in range(len(trace))]


# ---------------------------------------------------------------- traces of the real scheduler


def replayed(path):
    config, requests, document = read_workload(path)
    simulation = simulate(config, requests, trace=True)
    for ours, real in zip(simulation.trace.to_json(), document["steps"], strict=True):
        assert ours == real
    assert len(simulation.trace) == len(document["steps"])
    assert simulation.summary.to_dict().items() >= document["summary"].items()
    streamed = simulate(config, iter(sorted(requests, key=lambda request: request.at)))
    assert streamed.summary == simulation.summary


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_steps_are_those_of_the_real_scheduler(path):
    replayed(path)


@pytest.mark.skipif(not ORACLE.is_dir(), reason=f"no traces of the real scheduler in {ORACLE}")
def test_every_shared_trace_of_the_real_scheduler():
    paths = sorted(ORACLE.glob("*.json.gz"))
    assert len(paths) >= 20
    for path in paths:
        replayed(path)


def test_the_carried_traces_hold_every_rule():
    happened = set()
    for path in OWN:
        document = json.loads(gzip.decompress(path.read_bytes()))
        happened |= document["config"].keys()
        for step in document["steps"]:
            happened |= {name for name, value in step.items() if value}
    assert happened >= {
        "chunked",
        "prefix",
        "lpt",
        "reserve",
        "watermark",
        "new",
        "res",
        "pre",
        "fin",
        "hit",
    }


# ---------------------------------------------------------------- the worked examples


def test_continuous_batching_of_five_requests():
    """R1 to R5 take 4, 2, 1, 4, 3 tokens, three at a time."""
    requests = [Request(f"R{i}", 1, tokens) for i, tokens in enumerate((4, 2, 1, 4, 3), 1)]
    batches = [list(step) for step in tokens_of(requests, max_num_seqs=3)]
    assert batches == [
        ["R1", "R2", "R3"],
        ["R1", "R2", "R4"],
        ["R1", "R4", "R5"],
        ["R1", "R4", "R5"],
        ["R4", "R5"],
    ]


def block_tables(config, pool, requests):
    """The block table of each request after each step's scheduling, then the used blocks."""
    scheduler, tables = Scheduler(config, pool), []
    for request in requests:
        scheduler.add_request(request)
    while scheduler.running or scheduler.waiting:
        step = scheduler.schedule()
        tables.append({number: scheduler.block_table(number) for number in scheduler.running})
        scheduler.update_from_output(step)
    assert pool.used == 0
    return tables


def test_block_table_of_one_request():
    """ "The cat sat on" and 3 more tokens, blocks of 4, the free ones being 7 and 12."""
    config = SchedulerConfig(1, 16, 3, block_size=4)
    assert block_tables(config, BlockPool([7, 12]), [Request("cat", 4, 3)]) == [
        {0: [(7, 4)]},
        {0: [(7, 4), (12, 1)]},
        {0: [(7, 4), (12, 2)]},
    ]


def test_block_tables_of_two_requests():
    """ "The cat sat", "Artificial Intelligence is", blocks of 4: 3, 7, 9, 12, 15, 21 are free."""
    pool = BlockPool([3, 7, 9, 12, 15, 21])
    config = SchedulerConfig(2, 16, 7, block_size=4)
    tables = block_tables(config, pool, [Request("A", 3, 2), Request("B", 3, 4)])
    assert tables == [
        {0: [(3, 3)], 1: [(7, 3)]},
        {0: [(3, 4)], 1: [(7, 4)]},  # A ends, and its block can be used again:
        {1: [(7, 4), (3, 1)]},
        {1: [(7, 4), (3, 2)]},
    ]


def test_chunked_prefill_of_50_tokens_with_40_a_step():
    """A and B decode while C comes with a prompt of 50 tokens."""
    requests = [Request("A", 1, 4), Request("B", 1, 4), Request("C", 50, 2, at=1)]
    assert tokens_of(requests, max_num_seqs=3, max_num_batched_tokens=40)[1:] == [
        {"A": 1, "B": 1, "C": 38},
        {"A": 1, "B": 1, "C": 12},
        {"A": 1, "B": 1, "C": 1},
    ]


def test_a_prompt_is_not_cut_without_chunked_prefill():
    requests = [Request("A", 30, 3), Request("B", 20, 1)]
    flags = {"max_num_seqs": 2, "max_num_batched_tokens": 40, "max_model_len": 40}
    assert tokens_of(requests, **flags)[0] == {"A": 30, "B": 10}
    assert tokens_of(requests, **flags, enable_chunked_prefill=False)[:2] == [
        {"A": 30},
        {"A": 1, "B": 20},
    ]


def test_a_shared_prefix_is_computed_once():
    """Ten shared tokens are two full blocks of 4; the second request skips 8."""
    shared = tuple(range(10))
    requests = [
        Request("A", 12, 1, prompt=(*shared, 90, 91)),
        Request("B", 12, 1, prompt=(*shared, 92, 93)),
    ]
    assert tokens_of(requests, max_num_seqs=2, block_size=4) == [{"A": 12, "B": 12}]
    assert tokens_of(requests, max_num_seqs=2, block_size=4, enable_prefix_caching=True) == [
        {"A": 12, "B": 4}
    ]


def test_the_last_token_of_a_known_prompt_is_computed_all_the_same():
    """8 known tokens in blocks of 4: a hit of 4, since 8 would leave nothing to compute."""
    requests = [Request(name, 8, 1, prompt=tuple(range(8))) for name in "AB"]
    assert tokens_of(requests, max_num_seqs=2, block_size=4, enable_prefix_caching=True) == [
        {"A": 8, "B": 4}
    ]


def test_a_long_prompt_is_cut_at_the_threshold_unless_it_is_alone():
    flags = {"max_num_seqs": 2, "long_prefill_token_threshold": 10}
    assert tokens_of([Request("A", 30, 1)], **flags) == [{"A": 30}]
    assert tokens_of([Request("A", 25, 1), Request("B", 3, 2)], **flags) == [
        {"A": 10, "B": 3},
        {"A": 10, "B": 1},
        {"A": 5},
    ]


def test_the_last_one_is_preempted_and_computes_again():
    """Four blocks of 4, two requests of 4 + 8: B gives way in step 5, comes back with 8 + 1."""
    requests = [Request("A", 4, 8), Request("B", 4, 8)]
    config = SchedulerConfig(2, 100, 5, block_size=4)
    simulation = simulate(config, requests, trace=True)
    steps = list(simulation.trace.to_json())
    assert [step["used"] for step in steps[:6]] == [2, 4, 4, 4, 4, 3]
    assert steps[5]["pre"] == ["B"] and steps[5]["sched"] == [["A", 1]] and steps[5]["wait"] == 1
    assert steps[7]["fin"] == ["A"] and steps[7]["wait"] == 1
    assert steps[8]["res"] == ["B"] and steps[8]["sched"] == [["B", 9]]
    assert [step["fin"] for step in steps[9:]] == [[], ["B"]]
    summary = simulation.summary
    assert (summary.n_preempt, summary.recomputed_tokens) == (1, 8)
    assert summary.sched_tokens == 2 * 11 + 8 == sum(n for s in steps for _, n in s["sched"])


def test_a_preempted_request_hits_what_is_left_of_its_own_blocks():
    """As above, with prefix caching: A took B's second block, the first is still there."""
    requests = [Request("A", 4, 8), Request("B", 4, 8)]
    config = SchedulerConfig(2, 100, 5, block_size=4, enable_prefix_caching=True)
    simulation = simulate(config, requests, trace=True)
    steps = list(simulation.trace.to_json())
    assert steps[8]["res"] == ["B"] and steps[8]["sched"] == [["B", 5]]
    assert steps[8]["hit"] == {"B": 4}
    summary = simulation.summary
    assert (summary.recomputed_tokens, summary.hit_tokens) == (4, 4)
    assert summary.sched_tokens == 2 * 11 + 4


def test_the_watermark_holds_an_admission_back_only_while_something_runs():
    """Of 9 usable blocks A has 4, B needs 4; 0.2 * 10 = 2 must stay free, the null block counts."""
    requests = [Request("A", 14, 2), Request("B", 14, 2)]
    flags = {"max_num_seqs": 2, "num_gpu_blocks": 10, "block_size": 4}
    assert tokens_of(requests, **flags)[0] == {"A": 14, "B": 14}
    assert tokens_of(requests, **flags, watermark=0.19)[0] == {"A": 14, "B": 14}
    assert tokens_of(requests, **flags, watermark=0.2)[:3] == [{"A": 14}, {"A": 1}, {"B": 14}]


def test_a_request_is_admitted_when_the_whole_of_it_fits():
    """A has 4 of 7 blocks; the first chunk of B would fit, all 5 blocks of it do not."""
    requests = [Request("A", 13, 3), Request("B", 20, 2)]
    flags = {"max_num_seqs": 2, "max_num_batched_tokens": 20, "num_gpu_blocks": 8, "block_size": 4}
    assert tokens_of(requests, **flags)[0] == {"A": 13}
    assert tokens_of(requests, **flags, scheduler_reserve_full_isl=False)[0] == {"A": 13, "B": 7}


# ---------------------------------------------------------------- any workload


def random_workload(draw):
    prefix, block_size = draw.random() < 0.4, draw.choice([1, 2, 3, 4, 8])
    requests, at = [], 0
    for number in range(draw.randint(1, 9)):
        at += draw.choice([0, 0, 0, 1, 4])
        length = draw.randint(1, 20)
        prompt = tuple(draw.choice([5, 6]) for _ in range(length)) if prefix else None
        requests.append(Request(f"r{number}", length, draw.randint(1, 12), at, prompt))
    needed = max(-(-(r.prompt_len + r.max_tokens - 1) // block_size) for r in requests)
    seqs, chunked = draw.randint(1, 6), draw.random() < 0.8
    threshold = draw.choice([0, 0, 1, 5])
    return requests, SchedulerConfig(
        seqs,
        draw.randint(seqs, 40) if chunked else 32,
        needed + 1 + draw.randint(0, needed),
        block_size,
        32,
        chunked,
        prefix,
        threshold,
        draw.random() < 0.7,
        draw.choice([0, 0, 0.2]),
    )


def check_blocks(scheduler):
    """Each block is free once, or in the tables of as many requests as it counts."""
    pool, held = scheduler.block_pool, {}
    for sequence in scheduler.running.values():
        assert len(set(sequence.blocks)) == len(sequence.blocks)
        assert len(sequence.blocks) == scheduler.config.blocks(scheduler.computed_tokens(sequence))
        for block in sequence.blocks:
            held[block] = held.get(block, 0) + 1
    free = [*pool.reusable, *pool.evictable]
    assert len(set(free)) == len(free) and held.keys().isdisjoint(free)
    assert len(held) == pool.used == pool.num_blocks - pool.num_free_blocks
    assert len(held) + len(free) <= pool.num_blocks  # the others were not used yet
    if pool.enable_caching:
        assert held == pool.references
    else:
        assert set(held.values()) <= {1}
    assert pool.evictable.keys() <= pool.hash_of.keys()


def check_order(scheduler, step):
    """First come, first served: who runs came before who waits, and nobody overtakes."""
    unfinished = [*scheduler.running, *(sequence.number for sequence in scheduler.waiting)]
    assert unfinished == sorted(unfinished)
    assert not (step.preempted and (step.new or step.resumed))


def test_2000_random_workloads():
    draw, preempted, hits = random.Random(2), 0, 0
    for _ in range(2000):
        requests, config = random_workload(draw)
        scheduler, pending, computed = Scheduler(config), list(requests), {}
        while pending or scheduler.running or scheduler.waiting:
            while pending and pending[0].at <= scheduler.now:
                scheduler.add_request(pending.pop(0))
            step = scheduler.schedule()
            check_blocks(scheduler)
            check_order(scheduler, step)
            assert step.tokens <= config.max_num_batched_tokens
            assert len(scheduler.running) <= config.max_num_seqs
            assert all(tokens > 0 for tokens in step.chunks.values())
            assert step.tokens or not (scheduler.running or scheduler.waiting)
            computed |= dict.fromkeys(step.preempted, 0) | step.hits
            for number in scheduler.running:
                computed[number] = computed.get(number, 0) + step.chunks.get(number, 1)
            scheduler.update_from_output(step)
            for number in step.finished:
                request = requests[number]
                assert computed.pop(number) == request.prompt_len + request.max_tokens - 1
            preempted, hits = preempted + len(step.preempted), hits + len(step.hits)
        assert not computed and scheduler.arrived == len(requests)
        assert scheduler.block_pool.used == 0 and not scheduler.prefilling
    assert preempted > 500 and hits > 500


def test_the_same_workload_gives_the_same_steps():
    draw = random.Random(5)
    for _ in range(20):
        requests, config = random_workload(draw)
        first, second = (simulate(config, requests, trace=True) for _ in range(2))
        assert list(first.trace.to_json()) == list(second.trace.to_json())


# ---------------------------------------------------------------- what vLLM would refuse


@pytest.mark.parametrize(
    "flags, reason",
    [
        ({"max_num_batched_tokens": 7}, "below max_num_seqs 8"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"num_gpu_blocks": 1}, "null block"),
        ({"block_size": 0}, "block_size is 0"),
        ({"enable_chunked_prefill": False, "max_model_len": 65}, "below max_model_len 65"),
        ({"watermark": 1.0}, "watermark is 1"),
        ({"watermark": float("nan")}, "watermark is nan"),
        ({"watermark": -0.1}, "watermark is -0.1"),
        ({"max_num_seqs": float("nan")}, "max_num_seqs is nan; it must be a whole number"),
        ({"max_num_seqs": 2.5}, "max_num_seqs is 2.5"),
        ({"block_size": True}, "block_size is True"),
        ({"num_gpu_blocks": float("inf")}, "num_gpu_blocks is inf"),
        ({"max_model_len": 10**9}, "at most 100,000,000 tokens"),
        ({"long_prefill_token_threshold": -1}, "threshold is -1"),
        ({"long_prefill_token_threshold": 8193}, "max_model_len 8192"),
    ],
)
def test_a_server_that_vllm_refuses(flags, reason):
    with pytest.raises(InputError, match=reason):
        SchedulerConfig(
            **{"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_gpu_blocks": 5} | flags
        )


@pytest.mark.parametrize(
    "request_, reason",
    [
        (Request("x", 10, 0), "each must be at least 1"),
        (Request("x", 0, 10), "at least 1"),
        (Request("x", 64, 37), "101 tokens are more than max_model_len 100"),
        (Request("x", 64, 2), "65 tokens of KV cache need 5 blocks of 16, and the pool has 4"),
        (Request("x", 1, 1, at=float("nan")), "at is nan; it must be a whole number"),
        (Request("x", 1, 1, at=-1), "at is -1"),
        (Request("x", 1, 1, at=0.5), "at is 0.5"),
        (Request("x", 1.5, 1), "prompt_len is 1.5"),
        (Request("x", 1, float("inf")), "is inf"),
        (Request("x", 3, 1, prompt=(1, 2)), "prompt has 2 tokens, prompt_len is 3"),
    ],
)
def test_an_impossible_request_stops_before_the_first_step(request_, reason):
    config = SchedulerConfig(8, 64, 5, max_model_len=100)
    done = []
    with pytest.raises(InputError, match=f"request x: .*{reason}"):
        simulate(config, [Request("a", 1, 1), request_], progress=done.append)
    assert not done


def test_a_request_that_just_fits_is_served():
    simulation = simulate(SchedulerConfig(8, 64, 5, max_model_len=65), [Request("x", 64, 1)])
    assert (simulation.summary.n_steps, simulation.summary.max_used) == (1, 4)
