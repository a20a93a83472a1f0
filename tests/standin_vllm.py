"""Starts as vLLM 0.32 does and prints its lines, by the law of data/llama-3-8b-2-layers, in
milliseconds. ``--behaviour NAME[@MNS]``, for all launches or for those at one max_num_seqs:

slow        waits before each line
oom         dies when its sampler warms up, after the pool was printed
dies        dies before it prints a figure
killed      gets a signal, as from the kernel's out-of-memory killer
hangs       never gets to its figures
compiles    the compiler runs at the first start with the flags, and takes 0.5 GiB of the profile
fails       its engine fails, and the server does not exit
stubborn    ignores SIGTERM
family      starts a process that starts a process, both of which outlive it
daemons     starts a process in a group of its own, which starts one in a session of its own
"""

import _socket
import os
import signal
import sys
import time

FIXED = 6442450944 - 2172062269  # TM*U - M - N of the simulated device, bytes
BLOCK = 32 * 8192  # bytes of KV cache
GIB = 2**30


def flag(name, default=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def say(text):
    time.sleep(0.1 * (behaviour == "slow"))
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def wait_for_ever():
    while True:
        time.sleep(1)


model = sys.argv[2]
seqs, tokens = int(flag("--max-num-seqs")), int(flag("--max-num-batched-tokens"))
behaviour, _, only = flag("--behaviour", "").partition("@")
behaviour = behaviour if not only or int(only) == seqs else ""
peak = max(147456 * tokens, 3094568 * seqs + 8192 * tokens)
compiled = f"{os.environ.get('STANDIN_OF', '.')}/compiled-{seqs}-{tokens}"
cold = behaviour == "compiles" and not os.path.exists(compiled)
peak += cold * GIB // 2
pool = FIXED - peak
blocks = pool // BLOCK
engine = "(EngineCore pid=32) INFO 11-30 03:50:30 "
worker = "(Worker pid=33) INFO 11-30 03:50:40 "
debug = os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"

if behaviour == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if behaviour == "family" and not os.fork():
    os.fork()
    wait_for_ever()
if behaviour == "daemons" and not os.fork():
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not os.fork():
        os.setsid()
    wait_for_ever()
if behaviour == "dies":
    sys.exit("vllm: error: unrecognized arguments: --no-such-flag")
try:
    listening = _socket.socket()
    listening.bind(("", int(flag("--port"))))
    listening.listen()
except OSError:
    sys.exit("OSError: [Errno 98] Address already in use")
say(
    "(APIServer pid=31) INFO 11-30 03:50:16 [api_utils.py:286] non-default args: "
    f"{{'model_tag': '{model}', 'model': '{model}', 'max_model_len': 2048, 'enforce_eager': True, "
    f"'block_size': 32, 'gpu_memory_utilization': 0.6, 'max_num_batched_tokens': {tokens}, "
    f"'max_num_seqs': {seqs}}}"
)
say(
    engine + f"[core.py:120] Initializing a V1 LLM engine (v0.32.0) with config: model='{model}', "
    "dtype=torch.bfloat16, max_seq_len=2048, tensor_parallel_size=1, pipeline_parallel_size=1, "
    "enforce_eager=True, kv_cache_dtype=auto, device_config=cuda, seed=0"
)
say(worker + "[gpu_model_runner.py:5089] Model loading took 1.96 GiB memory and 19.123479 seconds")
if cold:
    say(engine + f"[backends.py:393] Compiling a graph for compile range (1, {tokens})")
    open(compiled, "w").close()
elif behaviour == "compiles":
    say(engine + "[decorators.py:311] Directly load AOT compilation from path /cache/x")
if behaviour == "hangs":
    wait_for_ever()
if behaviour == "fails":
    say("(EngineCore pid=32) ERROR 11-30 03:50:41 [core.py:866] EngineCore failed to start.")
    say("(EngineCore pid=32) ERROR 11-30 03:50:41 [core.py:866] ValueError: no such attention")
    wait_for_ever()
if behaviour == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if debug:
    say(
        worker.replace("INFO", "DEBUG") + "[gpu_worker.py:520] Memory profiling takes 9.10 "
        f"seconds. Total non KV cache memory: {2.02 + peak / GIB:.2f}GiB; torch peak memory "
        f"increase: {peak / GIB:.2f}GiB; total consumed (from mem_get_info): 2.02GiB; weights "
        "memory: 1.96GiB."
    )
say(worker + f"[gpu_worker.py:759] Available KV cache memory: {round(pool / GIB, 2)} GiB")
if pool < 0:
    sys.exit(
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine."
    )
say(
    engine + f"[kv_cache_utils.py:2327] GPU KV cache size: {32 * blocks:,} tokens, Maximum "
    f"concurrency for 2,048 tokens per request: {32 * blocks / 2048:.2f}x"
)
if behaviour == "oom":
    sys.exit(
        f"RuntimeError: CUDA out of memory occurred when warming up sampler with {seqs} dummy "
        "requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when "
        "initializing the engine."
    )
say(
    worker + "[gpu_worker.py:1034] Free memory on device (9.8/10.0 GiB) on startup. Desired GPU "
    "memory utilization is (0.6, 6.0 GiB). Actual usage is 2.02 GiB for consumed memory (weights + "
    f"non-torch), {round(peak / GIB, 2)} GiB for peak activation, and 0.0 GiB for CUDAGraph "
    f"memory. Replace gpu_memory_utilization config with `--kv-cache-memory={pool - 150 * 2**20}` "
    f"({(pool - 150 * 2**20) / GIB:.2f} GiB) to fit into requested memory, or "
    "`--kv-cache-memory=7793022199` (7.26 GiB) to fully utilize gpu memory. Current kv cache "
    f"memory in use is {round(pool / GIB, 2)} GiB."
)
say(engine + "[core.py:402] init engine (profile, create kv cache, warmup model) took 10.60 s")
say("INFO:     Application startup complete.")
wait_for_ever()
