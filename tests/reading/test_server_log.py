"""Server logs: our own fixtures, and real ones where they are at hand."""

import errno
import gzip
import io
import json
import os
import random
import re
from pathlib import Path

import pytest
from conftest import rows_of

from vllm_tuning.diagnosis.explanations import ABOUT_A_FIGURE, ABOUT_THE_ANSWER, notices
from vllm_tuning.reading.log import read_log
from vllm_tuning.reading.log_formats import formats
from vllm_tuning.reading.log_messages import messages
from vllm_tuning.reading.tables import parse_launches, write_launches
from vllm_tuning.report.contract import launch_json
from vllm_tuning.units import GIB, InputError

EXPLANATIONS = ABOUT_A_FIGURE | ABOUT_THE_ANSWER
ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "tests/data/logs"
FIXTURES = sorted(path.name for path in LOGS.glob("*.log"))
EXPECTED = json.loads((LOGS / "expected.json").read_text())
SHARED = Path(os.environ.get("VLLM_TUNING_SHARED", ROOT.parent / "shared"))
MUTATIONS = int(os.environ.get("VLLM_TUNING_MUTATIONS", 5000))


def read(text, name="x.log"):
    return read_log(io.BytesIO(text.encode() if isinstance(text, str) else text), name)


def figures(launch):
    return {name: value for name, value in launch_json(launch).items() if name != "source"}


# ---------------------------------------------------------------- the fixtures


@pytest.mark.parametrize("name", FIXTURES)
def test_fixture_gives_every_figure_that_it_prints(name):
    launches = read_log(LOGS / name)
    assert len(launches) == len(EXPECTED[name])
    for launch, expected in zip(launches, EXPECTED[name], strict=True):
        known = {key: value for key, value in figures(launch).items() if value not in (None, [])}
        assert known == expected


def test_every_row_of_the_table_stands_in_a_fixture():
    rows = {
        message.row
        for name in FIXTURES
        if (stream := (LOGS / name).open("rb"))
        for message in messages(stream.read)
        if not message.unreadable
    }
    missing = [row.anchor.pattern for row in formats() if row not in rows]
    assert not missing


def test_every_warning_of_the_fixtures_is_explained(tmp_path):
    seen = set()
    for name in FIXTURES:
        for launch in read_log(LOGS / name):
            seen.update(launch.warnings)
            assert len(notices([launch], EXPLANATIONS)) == len(launch.warnings)
    assert seen <= set(EXPLANATIONS) and all(len(text) > 60 for text in EXPLANATIONS.values())


def test_launches_of_a_log_survive_launches_csv(tmp_path):
    launches = [launch for name in FIXTURES for launch in read_log(LOGS / name)]
    write_launches(launches, tmp_path / "launches.csv")
    assert parse_launches((tmp_path / "launches.csv").read_text()) == launches


# ---------------------------------------------------------------- around the lines


def each_line(text, change):
    return "".join(change(line) + "\n" for line in text.splitlines())


def as_ray(line):
    return re.sub(r"\((Worker\w*) pid=(\d+)\)", r"(RayWorkerWrapper pid=\2, ip=10.0.0.2)", line)


def as_json(key):
    return lambda line: json.dumps({"time": "2026-04-22T01:36:26Z", "level": "info", key: line})


WRAPPINGS = {
    "docker compose": lambda text: each_line(text, lambda line: "vllm-1  | " + line),
    "docker time": lambda text: each_line(
        text, lambda line: "2026-04-22T01:36:26.123456789Z " + line
    ),
    "kubernetes": lambda text: each_line(
        text, lambda line: "2026-04-22T01:36:26.1+00:00 stdout F " + line
    ),
    "kubernetes, long lines in parts": lambda text: each_line(
        text,
        lambda line: "\n".join(
            f"2026-04-22T01:36:26.1Z stdout {'F' if end else 'P'} {part}"
            for part, end in ((line[:90], False), (line[90:], True))
        ),
    ),
    "kubectl": lambda text: each_line(text, lambda line: "[pod/vllm-0/vllm] " + line),
    "json, message": lambda text: each_line(text, as_json("message")),
    "json, msg": lambda text: each_line(text, as_json("msg")),
    "docker's json": lambda text: each_line(
        text,
        lambda line: json.dumps(
            {"log": line + "\n", "stream": "stderr", "time": "2026-04-22T01:36:26.1Z"}
        ),
    ),
    "compose around json": lambda text: each_line(
        text, lambda line: "vllm-1  | " + as_json("message")(line)
    ),
    "brackets": lambda text: (
        text.replace("(Worker", "[Worker")
        .replace("(Engine", "[Engine")
        .replace("pid=444)", "pid=444]")
        .replace("pid=445)", "pid=445]")
    ),
    "ray": lambda text: each_line(text, as_ray),
    "colours": lambda text: each_line(
        text,
        lambda line: re.sub(r"(\(\w+ pid=\d+\))|(\d+\.\d+)", "\x1b[1;36m\\g<0>\x1b[0;0m", line),
    ),
    "colours without escape": lambda text: each_line(
        text, lambda line: "[0;36m" + line.replace(")", ")[0;0m", 1)
    ),
    "windows lines": lambda text: text.replace("\n", "\r\n"),
    "byte order mark": lambda text: "\ufeff" + text,
    "progress bars": lambda text: each_line(
        text,
        lambda line: (
            "Capturing CUDA graphs:  50%|#####     | 1/2 [00:01<00:01]\r"
            "Capturing CUDA graphs: 100%|##########| "
            "2/2 [00:02<00:00]\r" + line
        ),
    ),
    "progress bar glued": lambda text: each_line(
        text, lambda line: "100%|##########| 2/2 [00:02<00:00,  1.55it/s]" + line
    ),
    "terminal of 80 columns": lambda text: each_line(
        text, lambda line: "\n".join(line[i : i + 80] for i in range(0, len(line), 80)) or line
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        "v0.19-tp2-debug.log",
        "v0.19-pp2-debug.log",
        "v0.9.2-debug.log",
        "v0.7-v0.log",
        "v0.28-one-line.log",
    ],
)
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_whatever_collected_the_log(wrapping, name):
    text = (LOGS / name).read_text()
    (expected,) = read(text)
    (launch,) = read(WRAPPINGS[wrapping](text))
    assert figures(launch) == figures(expected)


def test_gzip_utf16_and_a_path_for_stdin(tmp_path, monkeypatch):
    text = (LOGS / "v0.9.2-debug.log").read_text()
    expected = figures(*read(text))
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(text.encode()))
    assert figures(*read_log(tmp_path / "a.log.gz")) == expected
    assert figures(*read(text.replace("\n", "\r\n").encode("utf-16"))) == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    (launch,) = read_log("-")
    assert figures(launch) == expected and launch.where == "-:1"


def test_soft_wrap_with_indentation():
    (launch,) = read(
        "INFO [worker.py:241] model weights take 14.99GiB; non_torch_memory takes 0.12GiB;\n"
        "        PyTorch activation peak memory takes 1.19GiB; the rest of the memory\n"
        "        reserved for KV Cache is 54.93GiB.\n"
    )
    assert (launch.non_torch, launch.kv_cache) == (0.12 * GIB, 54.93 * GIB)


@pytest.mark.parametrize(
    "cut, warning",
    [
        ("INFO 09-06 03:10:08 [a.py:1] # GPU blocks: 29", "unreadable_num_gpu_blocks"),
        (
            "INFO 09-06 03:10:08 [gpu_worker.py:276] Available KV cache memory: 5",
            "unreadable_kv_cache",
        ),
        (
            "INFO 09-06 03:10:08 [gpu_worker.py:276] Available KV cache memory: 54.",
            "unreadable_kv_cache",
        ),
        (
            "INFO 09-06 03:10:08 [kv_cache_utils.py:9] GPU KV cache size: 449,0",
            "unreadable_kv_cache_tokens",
        ),
    ],
)
def test_half_a_number_is_never_read(cut, warning):
    before = "INFO 09-06 03:10:07 [a.py:1] Model loading took 14.25GiB and 103.115380 seconds\n"
    (launch,) = read(before + cut)
    assert launch.kv_cache is launch.kv_cache_tokens is launch.num_gpu_blocks is None
    assert warning in launch.warnings
    assert "could not be read" in notices([launch], {})[0].text


# ---------------------------------------------------------------- look-alikes


PLAIN = "INFO 09-06 03:10:08 [gpu_worker.py:276] Available KV cache memory: 54.8 GiB\n"


@pytest.mark.parametrize(
    "line",
    [
        "INFO 09-06 03:11:08 [logger.py:39] Received request cmpl-1: prompt: "
        "'Available KV cache memory: 1.0 GiB', params: None",
        "INFO 09-06 03:11:08 [logger.py:39] Received request: prompt: "
        '"INFO 01-13 11:35:21 [a.py:1] Available KV cache memory: 1.0 GiB"',
        '    logger.info("Available KV cache memory: 1.0 GiB")',
        "I wonder why it says Available KV cache memory: 1.0 GiB",
        "(Worker pid=1) DEBUG 04-22 01:35:55 [gpu_worker.py:284] worker init memory snapshot: "
        "torch_peak=1.0GiB, free_memory=2.0GiB, total_memory=79.19GiB, cuda_memory=1.53GiB, "
        "torch_memory=0.02GiB, "
        "non_torch_memory=1.0GiB",
        "INFO 09-06 03:10:07 [base_loader.py:70] Peak GPU memory after loading weights: 1.0 GiB",
        "INFO 09-06 03:11:08 [loggers.py:259] Engine 000: Running: 1 reqs, GPU KV cache "
        "usage: 1.0%",
        "INFO 09-06 03:10:07 [weight_utils.py:849] Checkpoint size: 1.0 GiB. Available RAM: "
        "1.0 GiB.",
    ],
)
def test_look_alikes_are_passed_over(line):
    (launch,) = read(PLAIN + line + "\n")
    assert launch.kv_cache == 54.8 * GIB and launch.status == "ok"
    assert launch.model_weights is launch.non_torch is launch.peak_activation is None


def test_a_prompt_about_a_failure_is_no_failure():
    (launch,) = read(
        PLAIN + "INFO 09-06 03:11:08 [logger.py:39] Received request a: prompt: 'ValueError: "
        "No available memory for the cache blocks.'\n"
    )
    assert launch.status == "ok"


# ---------------------------------------------------------------- starts, ranks, engines


def test_restarts_are_launches_of_their_own():
    names = [
        "v0.19-tp2-debug.log",
        "v0.19-sampler-oom.log",
        "v0.19-pp2-debug.log",
        "v0.10.2-summary.log",
        "v0.8-info.log",
        "v0.9.2-debug.log",
        "v0.6.4-results.log",
    ]
    serving = (
        '(APIServer pid=1) INFO:     10.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK\n' * 50
    )
    text, wanted, line = "", [], 1
    for day, name in enumerate(names, 21):
        part = (LOGS / name).read_text().replace("04-22 01:", f"04-{day} 01:") + serving
        wanted += [
            (figures(launch), line + int(launch.where.rpartition(":")[2]) - 1)
            for launch in read_log(LOGS / name)
        ]
        text, line = text + part, line + part.count("\n")
    launches = read(text)
    assert [
        (figures(launch), int(launch.where.rpartition(":")[2])) for launch in launches
    ] == wanted


def test_the_same_server_again_is_another_launch():
    text = (LOGS / "v0.19-tp2-debug.log").read_text()
    again = text.replace("04-22 01:", "04-23 05:")
    assert [launch.where for launch in read(text + again)] == [
        "x.log:1",
        f"x.log:{text.count(chr(10)) + 1}",
    ]
    crash = text.partition("Model loading took")[0].rpartition("\n")[0] + "\n"
    assert len(read(crash + again + text.replace("04-22", "04-24"))) == 3


def test_several_ranks_say_which_one_limits_and_that_they_differ():
    (launch,) = read_log(LOGS / "v0.19-pp2-debug.log")
    assert launch.kv_cache == 65.63 * GIB and launch.peak_activation == 2.01 * GIB
    assert {"ranks_differ", "derived_kv_cache"} <= set(launch.warnings)


def test_data_parallel_engines_are_launches_of_one_start():
    first, second = read_log(LOGS / "v0.19-dp2.log")
    assert (first.kv_cache_tokens, second.kv_cache_tokens) == (476000, 476016)
    assert first.max_num_seqs == second.max_num_seqs == 1024 and first.where != second.where


def test_an_engine_that_does_not_print_its_config_has_its_neighbours():
    text = (LOGS / "v0.19-dp2.log").read_text()
    own = [line for line in text.splitlines() if "DP1" in line and "Initializing" in line]
    second = read(text.replace(own[0] + "\n", ""))[1]
    assert second.model == "meta-llama/Llama-3.1-8B-Instruct" and second.tensor_parallel_size == 1


def test_a_line_of_a_compose_service_may_be_wrapped():
    line = "vllm-1  | " + (LOGS / "v0.28-one-line.log").read_text().splitlines()[2]
    (launch,) = read("\n".join(line[i : i + 60] for i in range(0, len(line), 60)) + "\n")
    assert (launch.kv_cache_tokens, launch.max_concurrency) == (222822, 1.7)


def test_charged_graphs_are_taken_out_of_the_peak_that_holds_them():
    (launch,) = read(
        "INFO 09-06 03:10:08 [a.py:1] Model loading took 14.26 GiB memory and 17.888750 seconds\n"
        "INFO 09-06 03:10:08 [a.py:1] Estimated CUDA graph memory: 0.40 GiB total\n"
        "INFO 09-06 03:10:08 [a.py:1] CUDA graph memory profiling is enabled (default since "
        "v0.21.0).\n"
        "INFO 09-06 03:10:08 [a.py:1] Available KV cache memory: 7.08 GiB\n"
        + (LOGS / "v0.28-one-line.log").read_text().splitlines()[-1]
        + "\n"
    )
    assert launch.peak_activation == 0.69 * GIB and launch.cuda_graph_charged is True
    assert "derived_peak_activation" in launch.warnings
    assert "balance_does_not_close" not in launch.warnings


def test_a_balance_that_does_not_close_is_said():
    (launch,) = read((LOGS / "v0.9.2-debug.log").read_text().replace("27.56", "26.56"))
    assert "balance_does_not_close" in launch.warnings


# ---------------------------------------------------------------- not a log


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        bytes(range(256)) * 50,
        b"\x7fELF\x02\x01\x01" + b"\0" * 4096,
        b"\x1f\x8b\x08\x00garbage",
        b"\xff\xfe" + b"\x00\xd8" * 50,
        b"{}\n[]\n",
        b"2026-01-01 [INFO] server_args=ServerArgs(model_path='a', mem_fraction_static=0.88)\n"
        b"KV Cache is allocated. #tokens: 401234, K size: 20.1 GB, V size: 20.1 GB\n",
        b"llama_kv_cache: size = 256.00 MiB\nmain: server is listening on http://127.0.0.1:8080\n",
        b'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: no\n',
        b"Run vllm serve MODEL --max-num-seqs 64 to start.\n",
        b'INFO:     10.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK\n',
        b"max_num_seqs,kv_cache_gib\n16,3.9\n",
    ],
    ids=range(13),
)
def test_what_is_no_vllm_log_gets_one_line(content):
    with pytest.raises(InputError, match=r"^x\.log: .+") as caught:
        read(content)
    assert "\n" not in str(caught.value)


def test_a_directory_a_missing_file_and_a_forbidden_one(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="directory"):
        read_log(tmp_path)
    with pytest.raises(InputError, match=f"cannot be read: {os.strerror(errno.ENOENT)}"):
        read_log(tmp_path / "none.log")

    def forbidden(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", forbidden)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        read_log(tmp_path / "secret.log")


def test_a_gzip_that_ends_early(tmp_path):
    data = gzip.compress(os.urandom(5000) + (LOGS / "v0.19-tp2-debug.log").read_bytes())
    with pytest.raises(InputError, match="cannot be read"):
        read(data[:-100])


# ---------------------------------------------------------------- mutated logs


NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
PREFIXES = (
    "",
    "vllm-1  | ",
    "2026-04-22T01:36:26.123Z ",
    "2026-04-22T01:36:26.1Z stdout F ",
    "[pod/vllm-0/vllm] ",
)


def mutated(draw, lines):
    """A damaged log, and the same without the wraps and colours (its numbers are whole)."""
    lines = list(lines)
    for _ in range(draw.randrange(4)):
        if len(lines) > 1:
            del lines[draw.randrange(len(lines))]
    for _ in range(draw.randrange(3)):
        lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines))
    if draw.random() < 0.3:  # another interleaving of the writers
        writers = {}
        for line in lines:
            writers.setdefault(line.partition(")")[0] if line[:1] == "(" else "", []).append(line)
        order = [key for key, written in writers.items() for _ in written]
        draw.shuffle(order)
        lines = [writers[key].pop(0) for key in order]
    if draw.random() < 0.1:
        draw.shuffle(lines)
    prefix = draw.choice(PREFIXES)
    lines = [prefix + line for line in lines]
    plain = "\n".join(lines) + "\n"
    if draw.random() < 0.4:
        plain = plain[: draw.randrange(len(plain) + 1)]
    text = plain
    if draw.random() < 0.3:
        text = re.sub(
            r"\(\w+ pid=\d+\)|\b(?:INFO|DEBUG)\b|\d+\.\d+GiB",
            lambda match: f"\x1b[0;36m{match[0]}\x1b[0m" if draw.random() < 0.5 else match[0],
            text,
        )
    elif draw.random() < 0.4:
        width = draw.randrange(24, 200)
        text = "\n".join(
            line[i : i + width]
            for line in text.split("\n")
            for i in range(0, max(len(line), 1), width)
        )
    return text, plain


def supported(launch, plain, whole):
    """The figures of a launch that the text does not hold and no stated rule gives."""
    edge = len(plain) if plain == whole or plain.endswith("\n") else len(plain) - 1
    numbers = {
        float(match[0].replace(",", "")) for match in NUMBER.finditer(plain) if match.end() <= edge
    }
    numbers |= {2048.0} if "2K" in plain else set()

    def differences(less):
        return {round(number - less, 2) for number in numbers}

    gib = {
        name: value / GIB
        for name, value in (
            (name, getattr(launch, name))
            for name in (
                "total_memory",
                "model_weights",
                "non_torch",
                "peak_activation",
                "kv_cache",
                "cuda_graph",
                "cuda_graph_estimated",
            )
        )
        if value is not None
    }
    weights, estimate = gib.get("model_weights", 0), gib.get("cuda_graph_estimated", 0)
    used = numbers | {
        sum(gib.get(name, 0) for name in ("model_weights", "non_torch", "peak_activation"))
    }
    used |= {a + b for a in numbers for b in numbers if b < a < 1e3}  # consumed and peak
    derived = {
        "non_torch": differences(weights),
        "peak_activation": differences(weights)
        | differences(estimate)
        | {round(a - b, 2) for a in numbers for b in numbers},  # non-KV total and consumed
        "kv_cache": {
            round(a - b - c, 2)
            for a in numbers
            if a < 1e3
            for b in used
            if b < a
            for c in (0, estimate)
        }
        if "derived_kv_cache" in launch.warnings
        else set(),
        "total_memory": {
            round(number / (launch.gpu_memory_utilization or 1), 2) for number in numbers
        },
    }
    exact = {number / GIB for number in numbers} | {
        (number + 150 * 2**20) / GIB for number in numbers
    }
    for name, value in gib.items():
        if name == "cuda_graph" and not value and re.search("eager|NONE", "".join(whole.split())):
            continue  # an eager server captures none
        if abs(value) in numbers or (
            value in exact and (name == "kv_cache" or "exact_figures" in launch.warnings)
        ):
            continue
        if f"derived_{name}" not in launch.warnings or value not in derived[name]:
            yield name, value
    for name in (
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "kv_cache_tokens",
        "num_gpu_blocks",
        "max_concurrency",
        "gpu_memory_utilization",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "block_size",
    ):
        value = getattr(launch, name)
        if value is None or value in numbers:
            continue
        assumed = {"max_num_seqs": (256, 1024), "gpu_memory_utilization": (0.9, 0.92)}.get(name, ())
        if "defaults_assumed" in launch.warnings and value in assumed:
            continue
        if "derived_kv_cache_tokens" in launch.warnings and (
            (name == "kv_cache_tokens" and value == launch.num_gpu_blocks * launch.block_size)
            or (name == "block_size" and value in (8, 16, 32, 64, 128, 256))
        ):
            continue
        yield name, value


def test_mutated_logs_never_give_a_number_of_their_own():
    sources = [(LOGS / name).read_text().splitlines() for name in FIXTURES if "wrapped" not in name]
    draw = random.Random(MUTATIONS)
    read_well = 0
    for count in range(MUTATIONS):
        text, plain = mutated(draw, draw.choice(sources))
        try:
            launches = read(text)
        except InputError:
            continue
        for launch in launches:
            assert not list(supported(launch, plain, text)), (count, text)
            figures(launch)
            read_well += launch.kv_cache is not None
    assert read_well > MUTATIONS / 3


# ---------------------------------------------------------------- real logs, where they are at hand


NAMES = {
    "model": "model",
    "version": "vllm_version",
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "mns": "max_num_seqs",
    "mnbt": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
    "total_gib": "total_memory_gib",
    "utilization": "gpu_memory_utilization",
    "weights_gib": "model_weights_gib",
    "non_torch_gib": "non_torch_gib",
    "peak_activation_gib": "peak_activation_gib",
    "kv_cache_gib": "kv_cache_gib",
    "kv_cache_tokens": "kv_cache_tokens",
    "max_concurrency": "max_concurrency",
    "cuda_graph_gib": "cuda_graph_gib",
    "cuda_graph_estimated_gib": "cuda_graph_estimated_gib",
    "gpu_blocks": "num_gpu_blocks",
    "vllm_version": "vllm_version",
    "kv_cache_dtype": "kv_cache_dtype",
    "TM": "total_memory_gib",
    "U": "gpu_memory_utilization",
    "M": "model_weights_gib",
    "N": "non_torch_gib",
    "P": "peak_activation_gib",
    "KV": "kv_cache_gib",
    "KVS": "kv_cache_tokens",
    "status": "status",
}
WRONG = {
    ("L166", "model"): "the log's engine line names another model; expected is the name of its file"
}


def compared(launch, expected):
    """Names, expected and read values that differ: floats by their printed digits."""
    found = launch_json(launch)
    for key, name in NAMES.items():
        value = expected.get(key)
        if value is None or key in expected.get("known_but_not_printed", ()):
            continue
        if (expected.get("id"), key) in WRONG or (value == 0 and found[name] is None):
            continue  # no blocks and no tokens are blank in launches.csv
        if isinstance(value, float):
            digits = len(repr(value).partition(".")[2])
            same = found[name] is not None and abs(found[name] - value) <= 0.5000001 * 10 ** -max(
                2, digits
            )
        else:
            same = found[name] == value or (
                key == "model" and (found[name] or "").rstrip("/").endswith(value)
            )
        if not same:
            yield key, value, found[name]


def shared(*parts):
    path = SHARED.joinpath(*parts)
    return path if path.exists() else None


@pytest.mark.skipif(not shared("cases", "logs"), reason=f"no real excerpts in {SHARED}")
def test_real_excerpts():
    for path in sorted(shared("cases", "logs").glob("*.log")):
        expected = json.loads(path.with_suffix(".expected.json").read_text())
        (launch,) = read_log(path)
        assert not list(compared(launch, expected)), path.name
        assert (launch.status == "failed") == bool(expected.get("error")), path.name
        assert set(expected.get("warn", ())) <= set(launch.warnings), path.name


@pytest.mark.skipif(not shared("logs", "expected.json"), reason=f"no real logs in {SHARED}")
def test_real_logs():
    for expected in json.loads(shared("logs", "expected.json").read_text()):
        (launch,) = read_log(shared("logs", expected["log"]))
        assert not list(compared(launch, expected)), expected["log"]


@pytest.mark.skipif(
    not shared("oracle", "logs", "launches.jsonl"), reason=f"no exact launches in {SHARED}"
)
def test_exact_bytes_of_launches_made_with_known_memory():
    exact = [
        json.loads(line)
        for line in shared("oracle", "logs", "launches.jsonl").read_text().splitlines()
    ]
    matched = 0
    for path in sorted(shared("oracle", "logs").glob("fakegpu_[lv]*.log")):
        (launch,) = read_log(path)
        for record in exact:
            if (
                record["model"] == launch.model
                and record["mns"] == launch.max_num_seqs
                and record["mnbt"] == launch.max_num_batched_tokens
                and record["peak_activation"]
                and record["util"] == launch.gpu_memory_utilization
            ):
                assert launch.kv_cache == record["kv_bytes"]
                assert launch.peak_activation == pytest.approx(
                    record["peak_activation"], abs=0.0051 * GIB
                )
                matched += 1
    assert matched >= 11


GOOD = (LOGS / "v0.25-charged.log").read_text()


def quoted(start):
    """A line of vLLM in the text of a request, behind more words than a prefix is looked for in."""
    line = "INFO 05-01 10:00:00 [kv_cache_utils.py:1] GPU KV cache size: 1,008 tokens"
    return f"{start}Please explain this. {'word ' * 160}{line}', params: SamplingParams(n=1)\n"


@pytest.mark.parametrize(
    "after",
    [
        quoted("INFO 04-22 02:05:00 [logger.py:39] Received request chatcmpl-1: prompt: '"),
        quoted('curl -d \'{"prompt": "'),
    ],
)
def test_a_request_that_quotes_a_log_changes_nothing(after):
    (plain,) = read(GOOD)
    (launch,) = read(GOOD + after)
    assert figures(launch) == figures(plain)


def test_a_closed_standard_input_is_told(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InputError, match="-: cannot be read: standard input is closed"):
        read_log("-")


GPU_LOGS, STUDY = SHARED / "data/gpu-logs", SHARED / "data/a10g-qwen2.5-7b"


@pytest.mark.skipif(not GPU_LOGS.exists(), reason="needs ../shared/data/gpu-logs")
def test_the_table_of_real_gpus_that_was_read_by_hand():
    """Cold and warm starts of V1 and V2: P as it was charged, graphs taken after the pool."""
    names = {
        "vllm_version": "release",
        "model_runner": "runner",
        "max_num_seqs": "mns",
        "max_num_batched_tokens": "mnbt",
        "gpu_memory_utilization": "U",
        "kv_cache_gib": "KV_GiB",
        "kv_cache_tokens": "tokens",
        "model_weights_gib": "weights",
        "peak_activation_gib": "P_less_G",
        "non_torch_gib": "N",
        "cuda_graph_gib": "graphs_taken",
        "cuda_graph_estimated_gib": "graphs_estimated",
    }
    for row in rows_of(GPU_LOGS / "table.csv"):
        (launch,) = read_log(GPU_LOGS / row["file"])
        known = figures(launch)
        for name, column in names.items():
            given, value = row[column].split(" ")[0], known[name]
            if value is None and column == "release":  # cut off
                continue
            if value is None or isinstance(value, str):
                assert (value or "") == given, (row["file"], name)
            else:
                assert value == pytest.approx(float(given), abs=0.005), (row["file"], name)
        if launch.vllm_version:
            assert launch.cold_start is {"cold": True, "warm": False, "-": None}[row["cold_warm"]]
    assert len(read_log(GPU_LOGS / "l40s-probe-B-default.raw-double.log")) == 1


@pytest.mark.skipif(not STUDY.exists(), reason="needs ../shared/data/a10g-qwen2.5-7b")
def test_the_starts_of_one_a10g():
    """What the study says of each start; those that compile do so in the profile."""
    study = {row["experiment"]: row for row in rows_of(STUDY / "runs.csv")}
    starts = {path.name[1:3].lstrip("0"): read_log(path) for path in STUDY.glob("logs/*.gz")}
    for number, (launch,) in starts.items():
        eager = launch.cold_start is None
        assert launch.model_runner == "V1" and not launch.hybrid
        assert (launch.cuda_graph == 0) == eager == (launch.cuda_graph_estimated is None)
        row, known = study.get(number, {}), figures(launch)
        for name, column in (
            *((name, name) for name in ("max_num_seqs", "max_num_batched_tokens", "block_size")),
            ("gpu_memory_utilization", "gpu_memory_utilization"),
            ("kv_cache_tokens", "kv_tokens"),
            ("kv_cache_gib", "kv_gib"),
            ("cuda_graph_estimated_gib", "cudagraph_gib"),
        ):
            if given := row.get(column):
                assert known[name] == pytest.approx(float(given), abs=1e-4), (number, name)
    assert len(starts) == 43
    assert sum(launch.cold_start is None for (launch,) in starts.values()) == 20
