"""Every formula once: the peak of the profile run, the closed forms, the bytes of a token."""

import numpy as np


def model_run(tokens, k1, a1):
    """a1 + K1*B, bytes: peak of the dummy run of the model on B = ``tokens`` tokens."""
    return a1 + k1 * tokens


def sampler_run(tokens, seqs, k2, a2, k, few=0):
    """a2 + K2*min(C, B) + k*B, bytes: peak of the sampler's dummy run on C = ``seqs`` requests.

    few: what each request of ``bend`` takes beside K2, where the sampler sorts.
    """
    requests = np.minimum(seqs, tokens)
    return few * bend(requests) + a2 + k2 * requests + k * tokens


def bend(requests):
    """Requests that the sorting sampler takes more than K2 for: S up to 64, none from 128 on.

    An A100 took 7.4, 7.2 and 3.7 MiB a request up to 32, 64 and 128 (vocabulary 151,936).
    """
    return np.maximum(0, np.minimum(requests, 128 - requests))


def peak_activation(tokens, seqs, k1, a1, k2, a2, k, few=0):
    """P(B, C) = max(a1 + K1*B, a2 + K2*min(C, B) + k*B), bytes; ``few`` of ``sampler_run``."""
    return np.maximum(model_run(tokens, k1, a1), sampler_run(tokens, seqs, k2, a2, k, few))


def four_launch_point(a, kappa, k1, k2, length):
    """(C*, B*) of the four-launch method: B* = A / (L*kappa*K1/K2 + K1), C* = B* * K1/K2.

    a: A, bytes left over by weights and driver; kappa: KV bytes of one token; k1, k2: bytes per
    token and per request; length: L, tokens of one request. Floats, arrays or uncertain numbers.

    >>> four_launch_point(a=60e9, kappa=131072, k1=150e3, k2=3e6, length=2048)
    (221.04702..., 4420.94049...)
    """
    tokens = a / (length * kappa * k1 / k2 + k1)
    return tokens * k1 / k2, tokens


def request_bytes(length, kappa, k2):
    """L*kappa + K2, bytes: one full request, its KV cache and its slice of the sampler.

    The memory left over, divided by it, is C* of ``four_launch_point``.

    >>> round(60e9 / request_bytes(length=2048, kappa=131072, k2=3e6), 5)
    221.04702
    """
    return length * kappa + k2


def four_launch_point_expanded(
    total_memory, utilization, m1, n1, kv1, kvs1, p1, p2, p3, p4, mns1, mns2, mnbt1, mnbt2, length
):
    """(C*, B*) from the figures of four launches in one expression, without intermediate slopes.

    B* = (TM*U - M1 - N1) / {L*(KV1/KVS1)*[(P4-P3)(mns2-mns1)/(P2-P1)/(mnbt2-mnbt1)]
         + (P4-P3)/(mnbt2-mnbt1)}
    """
    ratio = (p4 - p3) * (mns2 - mns1) / (p2 - p1) / (mnbt2 - mnbt1)
    tokens = (total_memory * utilization - m1 - n1) / (
        length * (kv1 / kvs1) * ratio + (p4 - p3) / (mnbt2 - mnbt1)
    )
    return tokens * ratio, tokens


def refined_point(pool_at_zero_tokens, pool_at_zero_requests, request, k1, k2, k):
    """(C*, B*) with intercepts and hidden states: the solution of the two balances

        K1*B + a1 = K2*C + k*B + a2    (the two branches meet)
        A - a1 - K1*B = request * C    (the pool holds C full requests)

    pool_at_zero_tokens = A - a1 and pool_at_zero_requests = A - a2, bytes; request: bytes of a full
    one, L*kappa. With a1 = a2 = k = 0 this is ``four_launch_point``. Both are below 0 where the
    pool is.

    >>> refined_point(60e9, 60e9, request=2048 * 131072, k1=150e3, k2=3e6, k=0)
    (221.04702..., 4420.94049...)
    """
    slope = k2 / (k1 - k)  # the first balance is B = offset + slope*C
    offset = (pool_at_zero_tokens - pool_at_zero_requests) / (k1 - k)
    seqs = (pool_at_zero_tokens - k1 * offset) / (request + k1 * slope)
    return seqs, offset + slope * seqs


def hidden_state_bytes(hidden_size: int, dtype_bytes: int) -> int:
    """k = hidden size x bytes of an element: one token's hidden state, kept while sampling."""
    return hidden_size * dtype_bytes


def penalty_state_bytes(vocab_size: int) -> int:
    """s = 4*V + 4*ceil(V/32): what runner V2 keeps of each request that it may run.

    >>> penalty_state_bytes(151936)  # 544.04 tokens of Qwen3 8B for 128 requests
    626736
    """
    return 4 * vocab_size + 4 * -(-vocab_size // 32)


def agrees(concurrency: float, tokens: int, length: int) -> bool:
    """Whether a printed concurrency is the pool's tokens over those of a request of ``length``.

    A request takes whole blocks, of 16 tokens to 256, times the decode context parallel size.
    """
    return any(
        abs(concurrency - tokens / (-(-length // block) * block))
        <= 0.0101 + concurrency / (length * 10)
        for block in (1, *(2**power for power in range(4, 12)))
    )


def heads_on_gpu(kv_heads: int, tensor_parallel_size: int) -> int:
    """KV heads that one tensor parallel rank holds: an equal share, or one that is replicated."""
    return max(1, kv_heads // tensor_parallel_size)


def kv_bytes_per_token(
    layers: int,
    kv_heads: int,
    head_dim: int,
    dtype_bytes: int,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
) -> int:
    """kappa = 2 * layers * kv_heads * head_dim * bytes on one GPU: keys and values of a token.

    Heads are split over tensor parallel ranks (at least one each), layers over pipeline stages.

    >>> kv_bytes_per_token(32, 8, 128, 2) // 1024, kv_bytes_per_token(80, 8, 128, 2) // 1024
    (128, 320)
    """
    stage = -(-layers // pipeline_parallel_size)
    return 2 * stage * heads_on_gpu(kv_heads, tensor_parallel_size) * head_dim * dtype_bytes
