"""Why a start failed, wherever the cause is buried: the sentence that tells what to change."""

import io

import pytest

from vllm_tuning.reading.log import read_log

ENGINE = "Initializing a V1 LLM engine (v0.12.0) with config: model='m/x', max_seq_len=8192"
LAST = (
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {'EngineCore_DP0': 1}"
)


def logged(process, source, *lines):
    return [f"{process} ERROR 01-13 11:36:00 [{source}] {line}" for line in lines]


TRACEBACK = "Traceback (most recent call last):"
CAUSES = {
    "a worker's method": (
        [
            *logged(
                "",
                "multiproc_worker_utils.py:238",
                "Exception in worker VllmWorkerProcess while processing method initialize_cache.",
            ),
            *logged(
                "(VllmWorkerProcess pid=321)",
                "multiproc_worker_utils.py:238",
                TRACEBACK,
                '  File "/opt/vllm/worker/worker.py", line 284, in initialize_cache',
                "ValueError: The model's max seq len (32768) is larger than the maximum number of "
                "tokens that can be stored in KV cache (7344). Try decreasing `max_model_len`.",
            ),
        ],
        "ValueError: The model's max seq len (32768) is larger",
    ),
    "a worker's compiler": (
        [
            *logged(
                "(Worker_TP1 pid=12)",
                "multiproc_executor.py:822",
                "WorkerProc hit an exception.",
                TRACEBACK,
                "torch._inductor.exc.InductorError: OutOfMemoryError: CUDA out of memory. Tried to "
                "allocate 448.00 MiB. GPU 1 has a total capacity of 23.52 GiB.",
            ),
            *logged(
                "(EngineCore_DP0 pid=9)",
                "core.py:843",
                "EngineCore failed to start.",
                TRACEBACK,
                "RuntimeError: Worker failed with error 'CUDA out of memory', please check the "
                "stack trace above for the root cause",
            ),
        ],
        "torch._inductor.exc.InductorError: OutOfMemoryError: CUDA out of memory. Tried to",
    ),
    "a kernel": (
        logged(
            "(EngineCore_DP0 pid=9)",
            "core.py:843",
            "EngineCore failed to start.",
            TRACEBACK,
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: "
            "131072, Hardware limit: 101376. Reducing block sizes may help.",
        ),
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072",
    ),
    "the graphs": (
        ["[rank0] memory allocation failed with OOM on device 0 while trying to allocate 2097152"],
        "memory allocation failed with OOM on device 0",
    ),
    "the sampler": (
        logged(
            "(EngineCore_DP0 pid=9)",
            "core.py:1201",
            TRACEBACK,
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 594.00 MiB.",
            "The above exception was the direct cause of the following exception:",
            TRACEBACK,
            "RuntimeError: CUDA out of memory occurred when warming up sampler with 512 dummy "
            "requests. Please try lowering `max_num_seqs`.",
        ),
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 512 dummy",
    ),
}


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_is_named(name):
    lines, cause = CAUSES[name]
    first = f"(EngineCore_DP0 pid=9) INFO 01-13 11:35:21 [core.py:77] {ENGINE}"
    text = "\n".join([first, *lines, LAST, ""])
    (launch,) = read_log(io.BytesIO(text.encode()), "x.log")
    assert launch.status == "failed" and launch.error.startswith(cause)


def test_what_a_running_server_survives_is_no_cause():
    lines, _ = CAUSES["the graphs"]
    served = "(APIServer pid=1) INFO:     Application startup complete."
    text = "\n".join(
        [
            f"INFO 01-13 11:35:21 [core.py:77] {ENGINE}",
            "INFO 01-13 11:35:31 [gpu_worker.py:298] Available KV cache memory: 5.5 GiB",
            "INFO 01-13 11:35:31 [kv_cache_utils.py:9] GPU KV cache size: 40,048 tokens",
            served,
            *lines,
            "",
        ]
    )
    (launch,) = read_log(io.BytesIO(text.encode()), "x.log")
    assert launch.status == "ok" and launch.error is None
