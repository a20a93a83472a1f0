"""Peaks of vLLM 0.32's own profile run over (mnbt, mns), as launches of a device would print them.

One grid is carried (``data/vllm-0.32-profile-grid``); those of five models under three samplers lie
in ``../shared/oracle/P``, where that is there.
"""

import gzip
import json
import math
import random
from dataclasses import dataclass

from conftest import ROOT, rows_of

from vllm_tuning import GIB, InputError, Launch, Workload, find_optimum, fit_memory_model
from vllm_tuning.budget.capacity import capacity
from vllm_tuning.kv_cache.layout import read_shape
from vllm_tuning.measure.plan import plan_launches

SHARED = ROOT.parent / "shared/oracle/P/meta.jsonl.gz"
REQUESTS = Workload(1024, 256)
DEVICE = {"utilization": 1.0, "max_model_len": 2048}


@dataclass(frozen=True)
class Grid:
    """``peaks``: (mns, mnbt) -> bytes; ``shape``: layers, hidden, MLP, heads, KV heads, head size,
    vocabulary. The device leaves room for about 200 requests."""

    name: str
    shape: tuple
    peaks: dict

    def config(self, folder):
        names = (
            "num_hidden_layers",
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "vocab_size",
        )
        path = folder / "config.json"
        path.write_text(
            json.dumps(
                {
                    "model_type": "llama",
                    "tie_word_embeddings": False,
                    "max_position_embeddings": 16384,
                    **dict(zip(names, self.shape, strict=True)),
                }
            )
        )
        return path

    @property
    def kappa(self):
        layers, _, _, _, kv_heads, head, _ = self.shape
        return 2 * layers * kv_heads * head * 2

    @property
    def left_over(self):
        return 200 * (REQUESTS.length * self.kappa + 24 * self.shape[-1])

    @property
    def launchable(self):
        """Flags that vLLM accepts and that leave a pool for one request."""
        return [
            flags
            for flags, peak in self.peaks.items()
            if flags[0] <= flags[1] and self.left_over - peak > REQUESTS.length * self.kappa
        ]

    def launch(self, flags, tokens=True):
        """As printed: GiB to 0.01, tokens a floor to blocks of 16."""
        pool = self.left_over - self.peaks[flags]
        return Launch(
            max_num_seqs=flags[0],
            max_num_batched_tokens=flags[1],
            peak_activation=round(self.peaks[flags] / GIB, 2) * GIB,
            kv_cache=round(pool / GIB, 2) * GIB,
            block_size=16,
            max_model_len=2048,
            kv_cache_tokens=int(pool // (16 * self.kappa)) * 16 if tokens else None,
        )

    def optimum(self, flags, config, tokens=True, requests=REQUESTS):
        return find_optimum(
            fit_memory_model([self.launch(each, tokens) for each in flags], read_shape(config)),
            requests,
        )

    def planned(self, config):
        """The planner's four, each at the point of the grid next to it."""
        empty = capacity(config, gpu_memory=1000 * GIB, **DEVICE).budget
        activation = next(p.value for p in empty.parts if p.name == "activation")
        taken = empty.total_memory - empty.pool.value - activation
        plan = plan_launches(config, REQUESTS, gpu_memory=self.left_over + taken, **DEVICE)
        wanted = [(launch.max_num_seqs, launch.max_num_batched_tokens) for launch in plan.launches]
        return [
            min(
                self.launchable,
                key=lambda flags: sum(
                    abs(math.log(each / value)) for each, value in zip(flags, launch, strict=True)
                ),
            )
            for launch in wanted
        ]

    def error(self, flags, config):
        """How far C* or B* is from that of all rows, the larger; inf without an answer."""
        whole = self.optimum(self.launchable, config)
        try:
            part = self.optimum(flags, config)
        except InputError:
            return math.inf
        if part.max_num_seqs is None:
            return math.inf
        return max(
            abs(getattr(part, name).n / getattr(whole, name).n - 1)
            for name in ("max_num_seqs", "max_num_batched_tokens")
        )

    def random_plans(self, count, seed=1):
        rng = random.Random(seed)
        return [rng.sample(self.launchable, 4) for _ in range(count)]


def carried():
    return Grid(
        "llama-4-layers, allocator",
        (4, 256, 1024, 8, 2, 32, 32000),
        {
            (int(row["max_num_seqs"]), int(row["max_num_batched_tokens"])): round(
                float(row["peak_activation_gib"]) * GIB
            )
            for row in rows_of(ROOT / "data/vllm-0.32-profile-grid/launches.csv")
        },
    )


def grids():
    found = {}
    if SHARED.exists():
        with gzip.open(SHARED, "rt") as file:
            for row in map(json.loads, file):
                key = f"{row['model']}, {row['ops']}, {row['sampler']}", tuple(row["shape"])
                found.setdefault(key, {})[row["mns"], row["mnbt"]] = row["P"]
    return [carried(), *(Grid(*key, peaks) for key, peaks in found.items())]
