"""vLLM's own scheduler, run in process without a model, where ``import vllm`` works."""

import json
import os
import tempfile
import time

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
}


def steps_per_second(config, requests):
    """Steps a second of its schedule and update_from_output together, or None without vLLM.

    Requests arrive at once. Every sampled token is another one, as in the carried traces.
    """
    os.environ |= {
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    try:
        scheduler, make = _scheduler(config)
    except ImportError:
        return None
    for request in requests:
        scheduler.add_request(make(request))
    from vllm.v1.outputs import ModelRunnerOutput

    steps = sampled = 0
    seconds = 0.0
    while scheduler.has_unfinished_requests():
        start = time.perf_counter()
        scheduled = scheduler.schedule()
        seconds += time.perf_counter() - start
        names, tokens = list(scheduled.num_scheduled_tokens), []
        for name in names:
            request = scheduler.requests[name]
            done = request.num_computed_tokens >= request.num_tokens
            sampled += done
            tokens.append([1000 + sampled % 30000] if done else [])
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=tokens,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        start = time.perf_counter()
        scheduler.update_from_output(scheduled, output)
        seconds += time.perf_counter() - start
        steps += 1
    return steps / seconds


def _scheduler(config):
    import torch
    from vllm.config import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig, VllmConfig
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    init_none_hash(sha256)
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/config.json", "w") as file:
            json.dump(MODEL, file)
        model = ModelConfig(
            model=folder,
            dtype="float16",
            max_model_len=config.max_model_len,
            skip_tokenizer_init=True,
        )
    cache = CacheConfig(
        block_size=config.block_size,
        cache_dtype="auto",
        enable_prefix_caching=config.enable_prefix_caching,
    )
    whole = VllmConfig(
        model_config=model,
        cache_config=cache,
        parallel_config=ParallelConfig(),
        scheduler_config=SchedulerConfig(
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
            max_num_batched_tokens=config.max_num_batched_tokens,
            async_scheduling=False,
            is_encoder_decoder=False,
        ),
    )
    cache.block_size, cache.num_gpu_blocks = config.block_size, config.num_gpu_blocks
    spec = FullAttentionSpec(
        block_size=config.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    register_all_kvcache_specs(whole)
    scheduler = Scheduler(
        vllm_config=whole,
        block_size=config.block_size,
        log_stats=True,
        structured_output_manager=StructuredOutputManager(whole),
        kv_cache_config=KVCacheConfig(
            num_blocks=config.num_gpu_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
    )
    hasher = get_request_block_hasher(config.block_size, sha256)

    def make(request):
        sampling = SamplingParams(ignore_eos=True, max_tokens=request.max_tokens)
        sampling.update_from_generation_config({}, 50256)
        return Request(
            request_id=request.id,
            prompt_token_ids=list(request.prompt),
            sampling_params=sampling,
            pooling_params=None,
            mm_features=None,
            block_hasher=hasher,
        )

    return scheduler, make
