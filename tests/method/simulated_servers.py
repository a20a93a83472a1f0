"""Servers that start as real ones do, to see whether "95 %" is true.

A server has a shape, a card and a law of its own; ``print_launch`` writes down what its log would
print of a start, rounded as vLLM rounds, after the scenario has moved the pool of that start:

    pool(C, B) = TM*U - M - N - G(C) - s*C - max(a1 + K1*B, a2 + K2*min(C, B) + k*B)

Nothing of the package enters the truth but the shape of the law. K1 is 6*(hidden + MLP) bytes
without the compiler (every other server), and 0.2 to 1 of that with it, at least 2*k. K2 is 15.1
bytes x vocabulary (0.19), 14 x (later, V1), and under runner V2 2 x (9.11 x in 0.33) beside
s = 4*V + 4*ceil(V/32). Where the sampler sorts (0.15) it takes what an A100 showed: 51.8 x up to 64
requests, 25.6 x from there to 128, 38.7 x beyond. a1 and a2 are up to 33 MiB apart. G is 9 MiB for
each size captured.
"""

import copy
import json
import math
import random
from dataclasses import dataclass, field, replace

from vllm_tuning import InputError, Launch, Workload, find_optimum, fit_memory_model
from vllm_tuning.kv_cache.layout import read_shape

MIB, GIB = 2**20, 2**30
README = [(128, 512), (512, 512), (16, 2048), (16, 8192)]
SIX = [*README, (256, 512), (16, 4096)]
WARN_ANYTHING = {  # names that say that the law may be broken, or that nothing checks it
    "no_spare_launch", "poor_fit", "intercepts_differ", "off_the_line", "sampler_bends",
    "branches_uncertain", "repeats_differ", "non_torch_differs", "balance_does_not_close",
    "memory_per_request_unknown", "cold_start", "cold_starts_left_out",
}  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """How starts differ from the law; bytes. ``holds``: whether the law holds all the same.

    jitter: standard deviation of N from start to start; step: P is a multiple of it; workspace:
    taken from some budget between 6,000 and 8,192 tokens on; other: another process in one launch;
    group: the first group's mns; repeats: each launch so many times; cold: share of first starts.
    """

    name: str
    version: str = "0.19.0"
    runner: str = "V1"
    jitter: float = 0.0
    step: float = 0.0
    workspace: float = 0.0
    other: float = 0.0
    graphs: bool = False
    hidden_graphs: bool = False
    group: tuple[int, int] = (128, 512)
    repeats: int = 1
    cold: float | None = None
    holds: bool = True


SCENARIOS = [
    Scenario("ideal rounding"),
    Scenario("one segment of 2 MiB", step=2 * MIB),
    Scenario("N jitters by 2 MiB", jitter=2 * MIB),
    Scenario("N jitters by 5 MiB", jitter=5 * MIB),
    Scenario("P in steps of 20 MiB", step=20 * MIB),
    Scenario("graphs in the table", version="0.25.0", graphs=True),
    Scenario("graphs not in the table", version="0.25.0", graphs=True, hidden_graphs=True),
    Scenario("sorting sampler, group 1 at 64/128", version="0.15.0", group=(64, 128), holds=False),
    Scenario("a workspace of 64 MiB", workspace=64 * MIB, holds=False),
    Scenario("a workspace of 256 MiB", workspace=256 * MIB, holds=False),
    Scenario("another process of 300 MiB", other=300 * MIB, holds=False),
    Scenario("each launch twice", repeats=2, jitter=2 * MIB),
    Scenario("each launch four times", repeats=4, jitter=2 * MIB),
    Scenario("each launch eight times", repeats=8, jitter=2 * MIB),
    Scenario("V2 of 0.32, warm", version="0.32.0", runner="V2", cold=0.0),
    Scenario("V2 of 0.33, warm", version="0.33.0", runner="V2", cold=0.0),
    Scenario("V2 of 0.32, cold", version="0.32.0", runner="V2", cold=1.0, holds=False),
    Scenario("V2 of 0.33, cold and warm", version="0.33.0", runner="V2", cold=0.5),
]


@dataclass
class Server:
    draw: random.Random
    scenario: Scenario
    shape: dict = field(default_factory=dict)

    def __post_init__(self):
        draw, v = self.draw, self.scenario.version
        hidden = draw.choice([2048, 3584, 4096, 5120, 8192])
        heads = draw.choice([4, 8])
        self.shape = {
            "model_type": "llama",
            "hidden_size": hidden,
            "intermediate_size": int(hidden * draw.uniform(2.5, 4)) // 64 * 64,
            "num_hidden_layers": draw.choice([28, 32, 40]),
            "num_attention_heads": 32,
            "num_key_value_heads": heads,
            "head_dim": 128,
            "vocab_size": draw.choice([32000, 65536, 128256, 151936, 262144]),
            "max_position_embeddings": 32768,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }
        vocabulary = self.shape["vocab_size"]
        self.kappa = 2 * self.shape["num_hidden_layers"] * heads * 128 * 2
        self.k = 2 * hidden
        self.compiled = draw.random() < 0.5
        less = draw.uniform(0.2, 1) if self.compiled else draw.uniform(0.9, 1.2)
        self.k1 = max(2 * self.k, 6 * (hidden + self.shape["intermediate_size"]) * less)
        self.workspace_from = draw.uniform(6000, 8192)
        per_entry = 15.1 if v < "0.20" else 14.0
        if v < "0.17":
            per_entry = 38.7
        if self.scenario.runner == "V2":
            per_entry = 2.0 if v < "0.33" else 9.11
        self.k2 = per_entry * vocabulary * draw.uniform(0.97, 1.03)
        self.s = 0.0
        if self.scenario.runner == "V2":
            self.s = 4 * vocabulary + 4 * -(-vocabulary // 32)
        self.a1, self.a2 = (draw.uniform(0, 33) * MIB for _ in range(2))
        self.total, self.share = draw.choice([23.5, 44.4, 79.2, 139.8]), draw.choice([0.9, 0.92])
        self.weights = round(draw.uniform(0.3, 0.65) * self.total, 2)
        self.non_torch = draw.uniform(0.1, 0.3) * GIB
        floor = draw.uniform(0.9, 1.0)
        self.floor = floor * GIB  # what the compiler takes

    def graph_bytes(self, seqs):
        if not self.scenario.graphs:
            return 0.0
        largest = min(2 * seqs, 512)
        sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
        return 9 * MIB * sum(size <= largest for size in sizes)

    def peak(self, seqs, tokens, cold=False):
        rows = min(seqs, tokens)
        sampler = self.k2 * rows
        if self.scenario.version < "0.17":  # sorts: two steps of other slopes up to 128 requests
            bent = 51.8 * min(rows, 64) + 25.6 * min(max(rows - 64, 0), 64) - 38.7 * min(rows, 128)
            sampler += self.k2 / 38.7 * bent
        model = self.a1 + self.k1 * tokens
        model += self.scenario.workspace * (tokens >= self.workspace_from)
        peak = max(model, self.a2 + sampler + self.k * tokens, self.floor if cold else 0.0)
        step = self.scenario.step
        return math.ceil(peak / step) * step if step else peak

    def pool(self, seqs, tokens, cold=False):
        """True bytes of the pool at these flags, at this start."""
        left = self.total * GIB * self.share - self.weights * GIB - self.non_torch
        jitter = self.draw.gauss(0, self.scenario.jitter)
        taken = self.graph_bytes(seqs) + self.s * seqs + self.peak(seqs, tokens, cold)
        return left - taken - jitter

    def launch(self, seqs, tokens, cold=None, other=0.0):
        """A start as its log prints it: GiB to 0.01, tokens a floor to blocks of 16."""
        pool = self.pool(seqs, tokens, bool(cold)) - other
        graphs = self.graph_bytes(seqs)
        printed = graphs and not self.scenario.hidden_graphs
        return Launch(
            vllm_version=self.scenario.version,
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            max_model_len=8192,
            total_memory=self.total * GIB,
            gpu_memory_utilization=self.share,
            model_weights=self.weights * GIB,
            cuda_graph_estimated=round(graphs / GIB, 2) * GIB if printed else None,
            cuda_graph=None if graphs else 0.6 * GIB * self.compiled,
            kv_cache=round(pool / GIB, 2) * GIB,
            kv_cache_tokens=int(pool // (16 * self.kappa)) * 16,
            block_size=16,
            cold_start=cold,
            model_runner=self.scenario.runner,
        )

    def launches(self, flags):
        scenario, made = self.scenario, []
        bad = self.draw.randrange(len(flags)) if scenario.other else -1
        for number, (seqs, tokens) in enumerate(flags):
            cold = None
            if scenario.cold is not None:
                cold = self.draw.random() < scenario.cold
            other = scenario.other if number == bad else 0.0
            repeats = range(scenario.repeats)
            made += [self.launch(seqs, tokens, cold, other) for _ in repeats]
            if cold and scenario.cold < 1:  # started once more
                made.append(self.launch(seqs, tokens, False))
        return made

    def workload(self):
        left = self.total * GIB * self.share - self.weights * GIB - 2 * GIB
        while True:
            length = int(64 * 2 ** self.draw.uniform(0, 6.5))
            if 8 <= left / (length * self.kappa) <= 1000:
                return Workload(max(1, length // 2), max(1, length - length // 2))

    def best(self, workload, cold=False):
        """The most requests that fit in truth at the smallest budget that vLLM takes."""
        seqs = 1
        while self.fits(seqs + 1, max(seqs + 1, 256), workload, cold):
            seqs += 1
        return seqs

    def point(self, length):
        """C* of the two balances, requests, counted in whole tokens."""
        left = self.total * GIB * self.share - self.weights * GIB - self.non_torch
        left -= self.scenario.step / 2  # what rounding up takes on the whole
        slope, gap = self.k2 / (self.k1 - self.k), (self.a2 - self.a1) / (self.k1 - self.k)
        charged, tried = 1, []
        while charged not in tried:
            tried.append(charged)
            rest = left - self.a1 - self.graph_bytes(charged) - self.k1 * gap
            charged = int(rest / (length * self.kappa + self.s + self.k1 * slope))
        return rest / (length * self.kappa + self.s + self.k1 * slope)

    def fits(self, seqs, tokens, workload, cold=False):
        blocks = self.pool(seqs, tokens, cold) // (16 * self.kappa)
        return blocks - 1 >= seqs * workload.blocks(16)


@dataclass
class Score:
    """What became of the answers of one scenario."""

    scenario: Scenario
    answers: int = 0
    bound: int = 0
    none: int = 0
    not_fitting: int = 0
    unwarned: int = 0
    covered: list = field(default_factory=list)
    point: list = field(default_factory=list)
    small: list = field(default_factory=list)

    @property
    def coverage(self):
        return within_two(self.covered)

    @property
    def smallness(self):
        return sorted(self.small)[len(self.small) // 2] if self.small else math.nan


def within_two(errors):
    return sum(abs(z) <= 2 for z in errors) / max(1, len(errors))


def judge(scenario, folder, servers=200, seed=1, config=True, flags=None) -> Score:
    """Answers for so many servers, against the truth."""
    score = Score(scenario)
    for number in range(servers):
        draw = random.Random(f"{scenario.name} {seed} {number}")
        server = Server(draw, scenario)
        chosen = flags or (SIX if number % 2 else README)
        low, high = scenario.group
        chosen = [({128: low, 512: high, 256: (low + high) // 2}.get(c, c), b) for c, b in chosen]
        path = folder / "config.json"
        path.write_text(json.dumps(server.shape))
        shape = read_shape(path) if config else None
        work = server.workload()
        try:
            answer = find_optimum(fit_memory_model(server.launches(chosen), shape), work)
        except InputError:  # launches that contradict each other are refused
            score.none += 1
            continue
        best, cold = answer.recommended, scenario.cold == 1.0
        if best is None:
            score.none += 1
            continue
        score.answers += 1
        score.bound += best.basis == "bound"
        at = best.max_num_seqs, best.max_num_batched_tokens
        names = {notice.name for notice in answer.notices}
        if not server.fits(*at, work, cold):
            score.not_fitting += 1
            score.unwarned += not names & WARN_ANYTHING
        if best.basis == "fit" and best.kv_cache_tokens_stderr:
            truth = int(server.pool(*at, cold) // (16 * server.kappa)) * 16
            score.covered.append((truth - best.kv_cache_tokens) / best.kv_cache_tokens_stderr)
        if answer.max_num_seqs is not None and answer.max_num_seqs.s:
            off = answer.max_num_seqs.n - server.point(work.length)
            score.point.append(off / answer.max_num_seqs.s)
        most = calm(server).best(work, cold)
        score.small.append((most - best.max_num_seqs) / most)
    return score


def calm(server: Server) -> Server:
    """The same server, each start alike."""
    same = copy.copy(server)
    same.scenario = replace(server.scenario, jitter=0.0)
    return same
