"""The verdict under load: real runs of a server, scrapes made by hand, and what is no scrape."""

import errno
import json
import os
import random
import time
from collections import Counter

import pytest
from click.testing import CliRunner
from conftest import ROOT, rows_of

from vllm_tuning import Workload, find_optimum, model_of
from vllm_tuning.cli import main
from vllm_tuning.load.rules import check
from vllm_tuning.reading.metrics import parse_scrapes, read_scrapes
from vllm_tuning.reading.scrape_series import ScrapeSeries
from vllm_tuning.reading.sources import read_source
from vllm_tuning.units import InputError

ORACLE = ROOT.parent / "shared/oracle/load"
DATA = ROOT / "data/load"
RUNS = {row["run"]: row for row in rows_of(DATA / "runs.csv")}
needs_oracle = pytest.mark.skipif(not ORACLE.is_dir(), reason="needs ../shared/oracle/load")


def scrape(
    kv=None,
    running=0,
    waiting=0,
    preempted=None,
    made=0,
    engine="0",
    blocks=1001,
    more="",
    size=16,
    kv_name="kv_cache_usage_perc",
):
    """A scrape of one engine as vLLM writes it."""
    labels = f'{{engine="{engine}",model_name="m"}}'
    lines = [
        f'vllm:cache_config_info{{block_size="{size}",engine="{engine}",'
        f'num_gpu_blocks="{blocks}"}} 1.0',
        f"vllm:num_requests_running{labels} {running}",
        f"vllm:num_requests_waiting{labels} {waiting}",
        f"vllm:generation_tokens_total{labels} {made}",
    ]
    lines += [f"vllm:{kv_name}{labels} {kv}"] * (kv is not None)
    lines += [f"vllm:num_preemptions_total{labels} {preempted}"] * (preempted is not None)
    return "\n".join(lines) + "\n" + more


def lengths(prompt, output, count=100):
    """Histograms of ``count`` requests of one length, with vLLM's buckets."""
    text = ""
    for name, length in (("prompt", prompt), ("generation", output)):
        for bound in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 10**5, "+Inf"):
            held = count if bound == "+Inf" or length <= bound else 0
            text += f'vllm:request_{name}_tokens_bucket{{engine="0",le="{bound}"}} {held}\n'
        text += (
            f'vllm:request_{name}_tokens_sum{{engine="0"}} {count * length}\n'
            f'vllm:request_{name}_tokens_count{{engine="0"}} {count}\n'
        )
    return text


def verdict(*texts, launches=None):
    """The verdict on scrapes and, with the name of launches, on what these say of the server."""
    series = ScrapeSeries(
        tuple(one for i, text in enumerate(texts) for one in parse_scrapes(text.encode(), f"s{i}"))
    )
    return check(series, read_source(launches), model_of([launches])) if launches else check(series)


def rules(found):
    return {rule.name: rule for rule in found.rules}


def run(*args):
    done = CliRunner().invoke(main, ["check", *map(str, args)], catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


# ---------------------------------------------------------------- real runs


@needs_oracle
@pytest.mark.parametrize("name", RUNS)
def test_real_runs_before_during_and_after(name):
    """Preemptions to the digit, the scraped peak to the digit, and the verdict that follows."""
    folder = ORACLE / name
    files = [folder / f"metrics_{moment}.prom" for moment in ("before", "during", "after")]
    code, out, _ = run(*files, "--launches", folder / "server.log", "--json")
    answer, figures = json.loads(out), {}
    measured = next(
        one for one in json.loads((ORACLE / "results.json").read_text()) if one["name"] == name
    )
    for line in files[1].read_text().splitlines():
        if line.startswith("vllm:kv_cache_usage_perc{"):
            figures["peak"] = float(line.split()[-1])
    assert answer["preemptions"] == measured["preemptions"] == int(RUNS[name]["preemptions"])
    assert answer["kv_cache_usage_peak"] == figures["peak"]
    assert answer["max_num_seqs"] == measured["mns"] and answer["engines"] == 1
    healthy = measured["preemptions"] == 0 and figures["peak"] < 0.9
    assert answer["healthy"] is healthy and code == (0 if healthy else 3)
    assert rules_of(answer)["waiting"]["verdict"] == "unknown"  # one busy scrape


def rules_of(answer):
    return {rule["name"]: rule for rule in answer["rules"]}


@needs_oracle
@pytest.mark.parametrize("name", [name for name in RUNS if name.startswith("fix")])
def test_the_limit_predicted_is_where_preemptions_begin(name):
    """4,096 tokens / (128 + 128) = 16: the histograms, the pool and the log alone tell it."""
    folder = ORACLE / name
    _, out, _ = run(
        *(folder / f"metrics_{moment}.prom" for moment in ("before", "after")),
        "--launches",
        folder / "server.log",
        "--json",
    )
    rule = rules_of(json.loads(out))["max_num_seqs"]
    assert rule["limit"] == 16
    assert (
        (rule["verdict"] == "fail")
        == (int(RUNS[name]["preemptions"]) > 0)
        == (rule["measured"] > 16)
    )


@pytest.mark.parametrize("name, code", [("mns8", 0), ("mns16", 3), ("mns24", 3)])
def test_carried_scrapes_tell_what_the_runs_measured(name, code):
    measured = RUNS[f"fix_{name}_mnbt2048"]
    done, out, _ = run(DATA / f"{name}.prom", "--launches", DATA / f"{name}.csv", "--json")
    answer = json.loads(out)
    assert done == code
    assert answer["preemptions"] == int(measured["preemptions"])
    assert answer["kv_cache_usage_peak"] == pytest.approx(
        float(measured["kv_cache_usage_peak"]), abs=5e-4
    )
    assert answer["waiting_peak"] == int(measured["waiting_peak"])
    assert answer["running_peak"] == int(measured["running_peak"])
    assert rules_of(answer)["waiting"]["verdict"] == "pass"  # a burst queues and drains


@needs_oracle
@pytest.mark.parametrize("name", ["mns8", "mns16", "mns24"])
def test_carried_scrapes_are_the_timeline_of_the_run(name):
    real = json.loads((ORACLE / f"fix_{name}_mnbt2048/run.json").read_text())
    series = ScrapeSeries(tuple(read_scrapes([DATA / f"{name}.prom"])))
    for ours, theirs in (
        ("running", "running"),
        ("waiting", "waiting"),
        ("preemptions", "pre"),
        ("kv_cache_usage", "kv"),
        ("generation_tokens", "gen"),
    ):
        assert series.total(ours)[:-1] == pytest.approx(
            [point[theirs] for point in real["timeline"]], abs=1e-6
        )
    assert series.histogram("steps").count == real["result"]["steps"]


# ---------------------------------------------------------------- what to change, and by how much


def test_by_how_much_by_hand():
    """1,000 blocks of 16; a request of 1,000 + 360 = 1,360 tokens takes 85 blocks: 11 fit."""
    found = verdict(
        scrape(0.0, preempted=0),
        scrape(0.5, 12, preempted=3),
        scrape(0.0, preempted=5, more=lengths(1000, 360)),
    )
    assert found.healthy is False and rules(found)["preemptions"].measured == 5
    change = rules(found)["preemptions"].change
    assert "--max-num-seqs to 11 or less" in change and "1,360 tokens" in change
    assert "16,000 tokens" in change


def test_both_flags_and_the_utilization_where_the_launches_tell_them(tmp_path):
    """With four launches the model knows how the pool moves: its own answer for that length."""
    launches = ROOT / "data/llama-3-8b-2-layers/launches.csv"
    served = rows_of(launches)[0]
    pool = {"blocks": int(served["num_gpu_blocks"]), "size": 32}
    best = find_optimum(model_of([launches]), Workload(9000, 99_000)).recommended
    found = verdict(
        scrape(0.0, preempted=0, **pool),
        scrape(0.5, 12, preempted=5, more=lengths(9000, 99_000), **pool),
        launches=launches,
    )
    change = rules(found)["preemptions"].change
    assert f"--max-num-seqs {best.max_num_seqs} --max-num-batched-tokens" in change
    assert found.server.max_num_seqs == 16 == int(served["max_num_seqs"])
    fit = (16001 * 32) // 108_000  # 4 of the 16 that are admitted: 12 * 3,375 blocks are missing
    assert f"from 16 to {fit}:" in change
    gib = (16 * 3375 - 16001) * 32 * 3.91 / 512064
    assert f"({gib:.2f} GiB: more than utilization can give" in change


def test_launches_that_would_admit_more_are_not_named():
    """The launches of another server: their 794 requests are no cure for 24 that preempt."""
    found = verdict((DATA / "mns24.prom").read_text(), launches="llama-3-8b-2-layers")
    change = rules(found)["preemptions"].change
    assert "to 16 or less" in change and "by the launches" not in change


def test_a_full_pool_by_hand():
    """20 requests hold 95 %: 18 hold 85.5 %, 19 hold 90.25 %. 950 blocks / 0.9 = 1,055.6."""
    found = verdict(scrape(0.95, 20, preempted=0), scrape(0.4, 9, preempted=0, made=9))
    change = rules(found)["kv_cache_usage_peak"].change
    assert "--max-num-seqs to 18" in change and f"add {(1056 - 1000) * 16:,} tokens" in change
    assert found.healthy is False


@pytest.mark.parametrize("peak, healthy", [(0.8999, True), (0.9, False)])
def test_ninety_per_cent_is_full(peak, healthy):
    assert verdict(scrape(peak, 3, preempted=0), scrape(0.1, 1, preempted=0)).healthy is healthy


# ---------------------------------------------------------------- over time


def test_a_restart_in_the_middle_counts_both_stretches():
    found = verdict(*(scrape(0.5, 2, preempted=count) for count in (10, 14, 3, 5)))
    assert found.to_dict()["preemptions"] == 4 + 3 + 2
    assert found.to_dict()["restarts"] == 1 and "restarted" in found.to_dict()["warnings"]


def test_a_restart_that_overtakes_the_old_count_is_told_by_its_start():
    def text(count, start):
        return scrape(0.5, 2, preempted=count) + f"process_start_time_seconds {start}\n"

    assert verdict(text(5, 1.7e9), text(7, 1.8e9)).to_dict()["preemptions"] == 7


def test_lengths_over_a_restart_are_of_both_stretches():
    found = verdict(
        scrape(0, preempted=0, more=lengths(100, 10, 50)),
        scrape(0, preempted=0, more=lengths(100, 10, 80)),
        scrape(0, preempted=0, more=lengths(100, 10, 20)),
    )
    assert found.series.histogram("prompt_length").count == 30 + 20


def test_two_engines_apart_and_together():
    first = scrape(0.2, 1, 3, 0) + scrape(0.3, 2, 4, 5, engine="1")
    last = scrape(0.6, 5, 6, 1, made=9) + scrape(0.4, 2, 0, 8, made=9, engine="1")
    answer = verdict(first, last).to_dict()
    assert answer["engines"] == 2 and answer["preemptions"] == 1 + 3
    assert answer["kv_cache_usage_peak"] == 0.6 and answer["waiting_peak"] == 7
    assert [one["preemptions"] for one in answer["per_engine"]] == [1, 3]
    assert [one["kv_cache_usage_peak"] for one in answer["per_engine"]] == [0.6, 0.4]
    assert rules_of(answer)["preemptions"]["change"].startswith("engine 1: ")


@pytest.mark.parametrize(
    "queue, expected",
    [([0, 5, 9], "fail"), ([9, 5, 0], "pass"), ([4, 4, 4], "pass"), ([0, 40], "unknown")],
)
def test_a_queue_that_grows(queue, expected):
    found = verdict(
        *(scrape(0.5, 10, waiting, preempted=0, made=i) for i, waiting in enumerate(queue))
    )
    assert rules(found)["waiting"].verdict == expected
    assert found.healthy is True, "a queue alone never makes a server unhealthy"


def test_a_load_between_two_idle_scrapes():
    """Counters tell that there was traffic and no preemption; the peak was not scraped."""
    found = verdict(scrape(0.0, preempted=2), scrape(0.0, preempted=2, made=500))
    assert found.healthy is True
    assert rules(found)["kv_cache_usage_peak"].verdict == "unknown"


def test_without_traffic_nothing_is_known():
    found = verdict(scrape(0.0, preempted=4), scrape(0.0, preempted=4))
    assert found.healthy is None and found.to_dict()["preemptions"] == 0


def test_a_lone_scrape_with_preemptions_tells_no_interval():
    found = verdict(scrape(0.5, 3, preempted=60))
    assert found.healthy is None and found.to_dict()["preemptions"] is None
    assert "60 preemptions" in rules(found)["preemptions"].why
    assert verdict(scrape(0.5, 3, preempted=0)).healthy is True


@needs_oracle
def test_scrapes_in_the_order_of_their_names_are_refused():
    """after, before, during: the counters fall, and the server was not restarted."""
    code, _, err = run(*sorted((ORACLE / "fix_mns24_mnbt2048").glob("*.prom")))
    assert code == 1 and "metrics_before.prom" in err and "time order" in err


def test_two_servers_behind_one_address_are_refused(tmp_path):
    """A start that moves back is another server, or another order; forward it is a restart."""
    for i, start in enumerate((1.7e9, 1.8e9, 1.7e9)):
        (tmp_path / f"{i}.prom").write_text(
            scrape(0.5, 3, preempted=100 - i) + f"process_start_time_seconds {start}\n"
        )
    code, _, err = run(tmp_path)
    assert code == 1 and "2.prom: older than" in err and "another server" in err
    assert run(tmp_path / "0.prom", tmp_path / "1.prom")[0] == 3


def test_a_restart_with_other_buckets():
    """100 of 900 tokens, a restart with a longer model length, 50 of 15,000: 150, in the ends that
    both starts have."""

    def text(start, held):
        ends = [
            f'vllm:request_prompt_tokens_bucket{{engine="0",le="{end}"}} {count}'
            for end, count in held
        ]
        total = {1: 900, 2: 15_000}[start] * held[-1][1]
        return scrape(
            0.1,
            1,
            preempted=0,
            more="\n".join(
                (
                    *ends,
                    f'vllm:request_prompt_tokens_sum{{engine="0"}} {total}',
                    f"process_start_time_seconds {start}",
                    "",
                )
            ),
        )

    found = verdict(
        text(1, [(1000, 0), (10_000, 0), ("+Inf", 0)]),
        text(1, [(1000, 100), (10_000, 100), ("+Inf", 100)]),
        text(2, [(1000, 0), (10_000, 0), (20_000, 50), ("+Inf", 50)]),
    )
    histogram = found.series.histogram("prompt_length")
    assert histogram.buckets == {1000: 100, 10_000: 100, float("inf"): 150}
    assert histogram.mean == (100 * 900 + 50 * 15_000) / 150


def test_an_hour_of_scrapes_is_judged_at_once():
    one = parse_scrapes(
        (
            scrape(0.5, 3, preempted=0, more=lengths(100, 20)) + "process_start_time_seconds 1\n"
        ).encode(),
        "s",
    )
    begun = time.process_time()
    check(ScrapeSeries(tuple(one * 3600))).to_dict()
    assert time.process_time() - begun < 5


def test_times_that_begin_anew_are_no_time_line():
    """Two files of --keep, each from 0 s: no seconds over both, so no rate either."""
    text = "".join(f"vllm:num_requests_running 3 {moment}\n" for moment in (0, 1000, 2000))
    assert verdict(text).series.seconds == pytest.approx([0, 1, 2])
    assert verdict(text, text).series.seconds is None


# ---------------------------------------------------------------- other releases


def test_a_cache_without_the_engine_that_the_other_metrics_name():
    """0.8 labels the metrics of a data-parallel rank, not its cache_config_info."""
    cache, rest = scrape(0.5, 3, preempted=0, engine="1").split("\n", 1)
    text = cache.replace('engine="1",', "") + "\n" + rest
    answer = verdict(text, text)
    assert answer.to_dict()["engines"] == 1 and answer.healthy is True
    assert answer.server.pool(answer.series).blocks == 1001


def test_the_name_of_0_8_and_both_names_at_once():
    old = scrape(0.95, 3, preempted=0, kv_name="gpu_cache_usage_perc")
    assert verdict(old, old).to_dict()["kv_cache_usage_peak"] == 0.95
    both = old + 'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.95\n'
    assert verdict(both, both).to_dict()["kv_cache_usage_peak"] == 0.95


def test_a_release_without_engine_labels():
    """0.6: one engine, of which the metrics name the model only."""
    old = scrape(0.5, 3, preempted=1, kv_name="gpu_cache_usage_perc").replace('engine="0",', "")
    answer = verdict(old, old.replace('total{model_name="m"} 1', 'total{model_name="m"} 4'))
    assert answer.to_dict()["engines"] == 1 and answer.to_dict()["preemptions"] == 3
    assert answer.server.pool(answer.series).blocks == 1001


def test_two_engines_of_which_one_restarts():
    """Engine 0: 7 - 5. Engine 1: 9, then 1 and 2 after its restart: 2."""

    def text(*engines):
        return "".join(
            scrape(0.3, 2, preempted=count, engine=str(i))
            + (f'vllm:num_preemptions_created{{engine="{i}",model_name="m"}} {start}\n')
            for i, (count, start) in enumerate(engines)
        )

    answer = verdict(
        text((5, 1e9), (9, 1e9)), text((6, 1e9), (1, 2e9)), text((7, 1e9), (2, 2e9))
    ).to_dict()
    assert [one["preemptions"] for one in answer["per_engine"]] == [2, 2]
    assert answer["restarts"] == 1 and answer["preemptions"] == 4


def test_histograms_only():
    found = verdict(lengths(100, 10, 5), lengths(100, 10, 9))
    assert found.healthy is None
    assert {rule.verdict for rule in found.rules} == {"unknown"}
    assert "vllm:kv_cache_usage_perc is not among" in rules(found)["kv_cache_usage_peak"].why


def test_a_release_without_the_counter():
    found = verdict(scrape(0.5, 3), scrape(0.4, 3))
    assert found.healthy is None and "not among" in rules(found)["preemptions"].why


def test_a_metric_that_one_scrape_lacks_is_no_pass():
    found = verdict(scrape(0.5, 3, preempted=0), scrape(0.4, 3, preempted=0), scrape(0.4, 3))
    assert rules(found)["preemptions"].verdict == "unknown"


@pytest.mark.parametrize("label", ['kv_cache_size_tokens="9000"', 'sliding_window="1024"'])
def test_hybrid_pool_is_not_counted_in_tokens(label):
    text = scrape(0.5, 3, preempted=0).replace("num_gpu", f"{label},num_gpu")
    assert verdict(text).server.pool(verdict(text).series) is None


# ---------------------------------------------------------------- no scrape

GOOD = scrape(0.5, 3, preempted=0)


@pytest.mark.parametrize(
    "content, problem",
    [
        (b"<html><body>502 Bad Gateway</body></html>", "HTML page"),
        (b'{"detail": "Not Found"}', "JSON"),
        (b"", "empty"),
        (b"\x00\x01\x02", "not a text"),
        (b"\xfe\x80", "not a text"),
        (b"\xff\xfe", "empty"),
        (GOOD[:-9].encode(), "middle of a line"),
        (GOOD.encode() + b"vllm:x{\n", "not Prometheus"),
        (b"up 1\n", "no metric of vLLM"),
        ((GOOD + GOOD).encode(), "twice"),
        (scrape(45.0, 1).encode(), "share from 0 to 1"),
        (scrape(0.5, -1).encode(), "0 or more"),
    ],
)
def test_what_is_no_scrape_is_one_sentence(content, problem, tmp_path):
    file = tmp_path / "metrics.prom"
    file.write_bytes(content)
    code, out, err = run(file)
    assert code == 1 and out == "" and len(err.splitlines()) == 1
    assert problem in err and str(file) in err


def test_a_bad_file_is_told_before_the_sampling(tmp_path):
    url = "http://localhost:1/metrics"
    assert "cannot be read" in run(url, "--baseline", tmp_path / "none")[2]
    assert "no such" in run(url, "--launches", tmp_path / "none")[2]
    assert os.strerror(errno.ENOENT) in run(url, "--keep", tmp_path / "no/b.prom")[2]


def test_files_that_are_not_there(tmp_path):
    assert run(tmp_path / "no.prom")[0] == 1
    assert "no *.prom" in run(tmp_path)[2]
    assert run()[0] == 2


def test_mutated_scrapes_are_a_verdict_or_one_sentence():
    draw = random.Random(8)
    pieces = ["NaN", "-1", "+Inf", "", '"', "{", "}", "\n", " ", "=", "\0", "engine", "1e400", "#"]
    told = Counter()
    for _ in range(300):
        texts = [
            scrape(0.2, 3, preempted=0, more=lengths(100, 20, 5)),
            scrape(0.95, 3, preempted=2, more=lengths(100, 20, 9)),
        ]
        for _ in range(draw.randint(1, 3)):
            which, start = draw.randrange(2), draw.randrange(len(texts[0]))
            text = texts[which]
            texts[which] = text[:start] + draw.choice(pieces) + text[start + draw.randrange(9) :]
        try:
            answer = verdict(*texts).to_dict()
            json.dumps(answer, allow_nan=False)
            told[answer["healthy"]] += 1
        except InputError as error:
            assert len(str(error).splitlines()) == 1
            told["bad input"] += 1
    assert told[False] and told["bad input"]


# ---------------------------------------------------------------- baseline


def test_an_earlier_verdict_is_compared(tmp_path):
    """60 preemptions with mns 24, none with 8; of both 16 fit, so that limit does not differ."""
    file = tmp_path / "baseline.json"
    file.write_text(run(DATA / "mns24.prom", "--launches", DATA / "mns24.csv", "--json")[1])
    args = DATA / "mns8.prom", "--launches", DATA / "mns8.csv", "--baseline", file
    code, out, _ = run(*args, "--json")
    changes = {
        change["name"]: (change["then"], change["now"]) for change in json.loads(out)["baseline"]
    }
    assert code == 0 and changes["preemptions"] == (60, 0) and changes["max_num_seqs"] == (24, 8)
    assert changes["healthy"] == (False, True) and changes["running_peak"] == (24, 8)
    assert {"engines", "restarts", "max_num_seqs_limit", "preemptions_limit"}.isdisjoint(changes)
    assert "max_num_seqs" in run(*args)[1]


def test_what_the_other_verdict_does_not_hold_is_null(tmp_path):
    file = tmp_path / "baseline.json"
    with_launch = [DATA / "mns8.prom", "--launches", DATA / "mns8.csv", "--json"]
    file.write_text(run(DATA / "mns8.prom", "--json")[1])
    assert json.loads(run(*with_launch, "--baseline", file)[1])["baseline"] == [
        {"name": "max_num_seqs", "then": None, "now": 8},
        {"name": "max_num_seqs_limit", "then": None, "now": 16},
    ]
    file.write_text(run(*with_launch)[1])
    assert json.loads(run(DATA / "mns8.prom", "--json", "--baseline", file)[1])["baseline"] == [
        {"name": "max_num_seqs", "then": 8, "now": None},
        {"name": "max_num_seqs_limit", "then": 16, "now": None},
    ]
    assert json.loads(run(*with_launch, "--baseline", file)[1])["baseline"] == []


def test_text_keeps_to_eighty_columns():
    for name in ("mns8", "mns16", "mns24"):
        _, out, _ = run(DATA / f"{name}.prom", "--launches", DATA / f"{name}.csv")
        assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    "name, value",
    [
        ("preemptions", [1]),
        ("preemptions", {}),
        ("waiting_peak", float("nan")),
        ("waiting_peak", 10**400),
    ],
)
def test_a_baseline_that_was_changed(name, value, tmp_path):
    file = tmp_path / "baseline.json"
    saved = json.loads(run(DATA / "mns8.prom", "--json")[1])
    file.write_text(json.dumps(saved | {name: value}))
    for args in ((), ("--json",)):
        code, out, err = run(DATA / "mns8.prom", "--baseline", file, *args)
        assert code == 1 and out == "" and f"{name} is" in err


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "nope",
        '{"baseline_of": "vllm-tuning check", "load": {"healthy": true}}',
        '{"healthy": true, "rules": 1}',
        '{"healthy": true, "rules": [1]}',
        '{"healthy": true, "rules": []}\n{}',
    ],
)
def test_files_that_are_no_baseline(text, tmp_path):
    (tmp_path / "B.json").write_text(text)
    code, out, err = run(DATA / "mns8.prom", "--baseline", tmp_path / "B.json")
    assert code == 1 and out == "" and len(err.splitlines()) == 1
    assert "B.json" in err and "check --json" in err


@pytest.mark.parametrize(
    "option, instead",
    [("--recommendation", "check --launches"), ("--save-baseline", "check --json > FILE")],
)
def test_options_that_went_name_what_takes_their_place(option, instead, tmp_path):
    code, out, err = run(DATA / "mns8.prom", option, tmp_path / "R.json")
    assert code == 2 and out == "" and len(err.splitlines()) == 1 and instead in err
    assert option not in run("--help")[1]


def test_where_no_sample_can_be_kept_is_told_before_the_sampling(tmp_path):
    url = "http://localhost:1/metrics"
    assert "a directory" in run(url, "--keep", tmp_path)[2]
    (tmp_path / "locked").mkdir(mode=0o500)
    if not os.access(tmp_path / "locked", os.W_OK):  # root writes everywhere
        assert os.strerror(errno.EACCES) in run(url, "--keep", tmp_path / "locked/b.prom")[2]


@pytest.mark.parametrize("option", ["--interval", "--duration"])
def test_nan_is_no_time(option):
    assert run("http://localhost:1/metrics", option, "nan")[0] == 2
