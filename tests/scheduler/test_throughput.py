"""Throughput from load runs: worked by hand, against the simulation, and on real sweeps."""

import json
import math
import random
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT

from vllm_tuning.cli import main
from vllm_tuning.reading import LoadRun, read_load_runs
from vllm_tuning.scheduler import SchedulerConfig, SteadyState, StepTimes, throughput_curve
from vllm_tuning.scheduler.throughput import simulated
from vllm_tuning.units import InputError
from vllm_tuning.workload import Workload

WORK = Workload(512, 128)
RUNS = [LoadRun(8, 400), LoadRun(32, 1200), LoadRun(64, 1920)]
TIMES = StepTimes(RUNS, WORK)
SET = "llama-3-8b-2-layers"
LENGTHS = ["--input-len", "1024", "--output-len", "256"]


def server(**given):
    return SteadyState(**{"workload": WORK, "full": 64, "budget": 2048} | given)


def test_step_times_by_hand():
    """(8, 400), (32, 1200), (64, 1920): 20, 26.67 and 33.33 ms; lines between and beyond."""
    n = np.array([4, 8, 16, 32, 48, 64, 96, 128])
    milliseconds = [18.8889, 20, 22.2222, 26.6667, 30, 33.3333, 40, 46.6667]
    assert TIMES(n) * 1e3 == pytest.approx(milliseconds, abs=5e-5)
    x = [211.76, 400, 720, 1200, 1600, 1920, 2400, 2742.86]
    assert n / TIMES(n) == pytest.approx(x, abs=0.005)
    assert float(TIMES.seconds(159.75)) == pytest.approx(0.0266667, abs=1e-7)
    assert float(TIMES.seconds(2048)) == pytest.approx(0.105467, abs=1e-6)


def test_a_step_never_falls_far_below_the_smallest_run():
    steep = StepTimes([LoadRun(100, 1000), LoadRun(200, 500)])
    assert float(steep(1)) == pytest.approx(0.3 * 0.1)
    falling = StepTimes([LoadRun(10, 100), LoadRun(40, 4000)])
    assert float(falling(80)) == float(falling(40)) and float(falling(1)) == float(falling(10))


def test_the_steady_state_by_hand():
    throttled = server(budget=256).point(64, TIMES)
    assert (throttled.running, throttled.output_tokens_per_s) == pytest.approx(
        (51.2801, 1671.27), rel=1e-5
    )
    full = server(in_flight=100).point(1000, TIMES)  # 36 wait 2.4 s, then one step of prefill
    assert full.running == 64 and full.ttft_s == pytest.approx(2.4 + 1 / 30)
    # a prompt of 512 beside 64 running ones and a budget of 100 takes ceil(512 / 36) steps
    assert server(in_flight=64, budget=350).point(64, TIMES).ttft_s == pytest.approx(2 / 30)


def test_a_rate_below_and_above_what_the_server_puts_out():
    """n = r*o*t(n): at 9.375 requests a second 1,200 tokens/s, which 32 give."""
    assert server(rate=9.375).point(64, TIMES).running == pytest.approx(32)
    slow, fast = (throughput_curve(server(rate=rate), 64, TIMES).saturated for rate in (9.375, 16))
    assert (slow, fast) == (False, True)


def test_knee_target_and_budget_by_hand():
    found = throughput_curve(server(), 64, TIMES, longest_step=0.030)
    assert (found.knee, found.target, found.budget_needed) == (59, 48, 320)
    assert found.method == found.best and found.loss == 0
    assert [p.beyond_runs for p in found.points if p.max_num_seqs in (4, 8, 64)] == [
        True,
        False,
        False,
    ]
    assert found.method.low == pytest.approx(0.9 * 1920)


def test_the_closed_form_against_the_simulation():
    """Linear t, m <= C, random lengths: one step is t0 + c * tokens."""
    draw, off = random.Random(0), []
    for _ in range(6):
        work = Workload(*(round(64 * 2 ** draw.uniform(0, 5)) for _ in range(2)))
        full = 24
        blocks = full * work.blocks(16) + 1
        seqs = draw.choice([6, 12, 24])
        runs = [LoadRun(n, n / (0.02 + 2e-4 * n)) for n in (3, 12, 24)]
        times = StepTimes(runs, work)
        config = SchedulerConfig(seqs, 8192, blocks, block_size=16, max_model_len=work.length)
        exact = SteadyState(workload=work, full=full, budget=8192).point(seqs, times)
        seen = simulated(config, work, seqs, times)
        assert not seen.preempts
        off.append(abs(exact.output_tokens_per_s / seen.output_tokens_per_s - 1))
    assert np.median(off) <= 0.015 and max(off) <= 0.082


def test_above_the_pool_requests_are_preempted_and_more_is_no_gain():
    config = SchedulerConfig(24, 2048, 24 * 40 + 1, block_size=16, max_model_len=640)
    times = StepTimes([LoadRun(n, n / (0.02 + 2e-4 * n)) for n in (3, 12, 24)], WORK)
    found = throughput_curve(server(full=24), 24, times, scheduler=config)
    above = [point for point in found.points if point.max_num_seqs > 24]
    assert len(above) == 3 and all(point.preempts for point in above)
    assert above[-1].running < above[-1].max_num_seqs


def test_the_figures_show_the_point_the_runs_and_what_is_not_measured():
    from vllm_tuning.figures import throughput as figures

    found = throughput_curve(server(), 64, TIMES)
    ax = figures.output_tokens(found, RUNS)
    drawn = {line.get_label(): line.get_xydata() for line in ax.lines}
    assert drawn["the method's point"].tolist() == [[64, 1920]]
    assert drawn["load run, at its running requests"].tolist() == [[8, 400], [32, 1200], [64, 1920]]
    assert "not measured" in drawn and "simulated: preemptions" not in drawn
    time = {line.get_label(): line.get_xydata() for line in figures.token_time(found).lines}
    assert time["the method's point"][0] == pytest.approx([64, 33.3333], abs=1e-4)


# ---------------------------------------------------------------- real sweeps


def test_real_sweeps_between_their_runs():
    sys.path.append(str(ROOT / "tests/benchmarks"))
    from bench_throughput import score

    for name, median, high in (("h100", 0.03, 0.08), ("a10g", 0.04, 0.12)):
        errors, regrets = score(ROOT / f"data/throughput/{name}.csv")
        assert np.median(abs(errors)) <= median and np.percentile(abs(errors), 90) <= high
        assert name != "h100" or np.mean(abs(errors) <= 0.1) >= 0.9
        assert name != "h100" or np.percentile(regrets, 90) <= 0.03


def test_real_servers_that_preempt_by_the_simulation():
    sys.path.append(str(ROOT / "tests/benchmarks"))
    from bench_throughput import preempting

    errors, lost = preempting()
    assert len(errors) == 16
    assert np.median(abs(errors)) <= 0.06 and np.percentile(abs(errors), 90) <= 0.15
    assert abs(np.mean(errors)) <= 0.06 and np.median(abs(lost)) <= 0.2


# ---------------------------------------------------------------- what load runs are read from


BENCH = {
    "model_id": "meta/x",
    "completed": 100,
    "failed": 0,
    "total_input_tokens": 51200,
    "total_output_tokens": 25600,
    "request_throughput": 2.5,
    "output_throughput": 640.0,
    "mean_ttft_ms": 200.0,
    "mean_tpot_ms": 24.0,
}
GUIDELLM = {
    "benchmarks": [
        {
            "metrics": {
                "request_concurrency": {"successful": {"mean": 15.8}},
                "output_tokens_per_second": {"successful": {"mean": 640.0}},
                "prompt_token_count": {"successful": {"mean": 512.0}},
                "output_token_count": {"successful": {"mean": 256.0}},
            }
        }
    ]
}
AIPERF = {
    "request_throughput": {"unit": "requests/sec", "avg": 2.5},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 640.0},
    "time_to_first_token": {"unit": "ms", "avg": 200.0},
    "inter_token_latency": {"unit": "ms", "avg": 24.0},
    "input_sequence_length": {"avg": 512.0},
    "output_sequence_length": {"avg": 256.0},
}


@pytest.mark.parametrize("record", [BENCH, GUIDELLM, AIPERF], ids=["bench", "guidellm", "aiperf"])
@pytest.mark.parametrize("form", ["one", "list", "lines"])
def test_results_of_three_tools_by_littles_law(record, form, tmp_path):
    """2.5 requests a second of 0.2 + 255 * 0.024 s: 15.8 at once."""
    text = {
        "one": json.dumps(record, indent=2),
        "list": json.dumps([record]),
        "lines": json.dumps(record) + "\n",
    }[form]
    (tmp_path / "r.json").write_text(text)
    (run,) = read_load_runs([tmp_path / "r.json"])
    assert (run.running, run.output_tokens_per_s) == pytest.approx((15.8, 640))
    assert (run.input_len, run.output_len) == (512, 256)


def test_scrapes_of_one_run():
    """The carried run at 8 requests, which ends with fewer."""
    (run,) = read_load_runs([ROOT / "data/load/mns8.prom"])
    assert run.running == pytest.approx(8, abs=0.5) and run.output_tokens_per_s > 0
    with pytest.raises(InputError, match=r"mns24.prom: \d+ preemptions; expected"):
        read_load_runs([ROOT / "data/load/mns24.prom"])


@pytest.mark.parametrize(
    "text, said",
    [
        (json.dumps(BENCH | {"failed": 3}), "3 requests failed"),
        (json.dumps({"completed": 5}), "no total_output_tokens"),
        ("{", "not JSON"),
        ('{"benchmarks": [1]}', "no request_concurrency"),
        ('{"output_token_throughput": {"avg": []}}', "no output_sequence_length"),
        ("[1]", "no JSON object"),
        ("a,b\n1,2\n", "no running and output_tokens_per_s"),
        ("running,output_tokens_per_s\n1,x\n", ":2: running '1', output_tokens_per_s 'x'"),
        ("running,output_tokens_per_s\n-1,5\n", "running is -1"),
        ("running,output_tokens_per_s\nnan,5\n", "running is nan"),
    ],
)
def test_what_is_no_run_is_one_line(text, said, tmp_path):
    (tmp_path / "runs").write_text(text)
    with pytest.raises(InputError, match="expected") as caught:
        read_load_runs([tmp_path / "runs"])
    assert said in str(caught.value) and "\n" not in str(caught.value)


# ---------------------------------------------------------------- the command


def run(tmp_path, rows, *args):
    table = tmp_path / "runs.csv"
    table.write_text("running,output_tokens_per_s\n" + "\n".join(rows) + "\n")
    given = ["throughput", SET, *LENGTHS, "--load-runs", str(table), *args]
    return CliRunner().invoke(main, given)


ROWS = ["38,2400", "155,6000", "309,8000"]


def test_the_command_gives_the_curve(tmp_path):
    done = run(tmp_path, ROWS, "--target-tpot", "0.03", "--json")
    found = json.loads(done.stdout)
    assert found["method"]["max_num_seqs"] == 310
    assert found["budget_needed"] == math.ceil(310 * 1279 / 256)
    assert {"points", "method", "best", "knee", "target", "budget_needed", "warnings"} <= set(found)
    times = StepTimes([LoadRun(*map(float, row.split(","))) for row in ROWS])
    assert float(times(found["target"])) <= 0.03 < float(times(found["target"] + 1))
    for point in found["points"]:
        if not point["preempts"]:
            n = point["running"]
            assert point["output_tokens_per_s"] == pytest.approx(n / float(times(n)))
    text = run(tmp_path, ROWS).stdout
    assert "the method's point, mns 310" in text and max(map(len, text.splitlines())) <= 80


def test_without_runs_the_three_to_make():
    done = CliRunner().invoke(main, ["throughput", SET, *LENGTHS])
    for load in (38, 155, 310):
        assert f"--max-concurrency {load} --num-prompts {8 * load} " in done.stdout
    found = json.loads(CliRunner().invoke(main, ["throughput", SET, *LENGTHS, "--json"]).stdout)
    assert found["in_flight"] == [38, 155, 310] and len(found["commands"]) == 3


@pytest.mark.parametrize(
    "rows, said",
    [
        (["38,2400"], "the runs had 38 requests running; expected two or more"),
        (["38,2400", "40,2450"], "the largest at least 1.5 times"),
        (["38,2400", "400,9000"], "400.0 requests ran at once, and the pool holds 310.0 full ones"),
    ],
)
def test_runs_that_tell_nothing_are_refused(rows, said, tmp_path):
    done = run(tmp_path, rows)
    assert done.exit_code == 1 and said in done.stderr and done.stderr.count("\n") == 1


def test_a_run_of_another_model_is_refused(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(BENCH))
    done = CliRunner().invoke(main, ["throughput", SET, *LENGTHS, "--load-runs", str(path)])
    assert done.exit_code == 1 and "a run of meta/x; expected one of" in done.stderr


def test_other_lengths_and_a_point_beyond_the_runs_are_told(tmp_path):
    paths = []
    for load, rate in ((1, 2.5), (4, 6.0)):
        path = tmp_path / f"{load}.json"
        record = BENCH | {"model_id": None, "request_throughput": rate}
        path.write_text(json.dumps(record | {"output_throughput": 256 * rate}))
        paths += ["--load-runs", str(path)]
    done = CliRunner().invoke(main, ["throughput", SET, *LENGTHS, *paths, "--json"])
    assert json.loads(done.stdout)["warnings"] == ["other_lengths", "beyond_runs"]
