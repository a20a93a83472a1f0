"""Sampling a URL, against servers of this machine: good ones, and those that break."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner
from test_load_check import lengths, scrape

from vllm_tuning.cli import main
from vllm_tuning.load import sampling
from vllm_tuning.load.rules import check
from vllm_tuning.load.sampling import TOKEN, sample
from vllm_tuning.units import InputError


@contextmanager
def server(answer):
    """A server on a free port and its URL; ``answer(handler, number)`` each request, from 0."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked.append(self.headers.get("Authorization"))
            self.server.moments.append(time.monotonic())
            answer(self, len(self.server.asked) - 1)

        def log_message(self, *_):
            pass

        def handle(self):
            with suppress(OSError):  # the client has gone, as it should
                super().handle()

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.asked, http.moments, http.daemon_threads = [], [], True
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield http, f"http://127.0.0.1:{http.server_port}/metrics"
    finally:
        http.shutdown()
        http.server_close()


def send(handler, text, code=200, **headers):
    handler.send_response(code)
    for name, value in {"Content-Length": str(len(text)), **headers}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(text.encode())


def busy(handler, number):
    send(handler, scrape(0.3 + 0.1 * number, 4, 1, preempted=0, made=number))


def run(*args):
    done = CliRunner().invoke(main, ["check", *map(str, args)], catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


def test_samples_at_the_interval_and_gives_the_verdict():
    with server(busy) as (http, url):
        code, out, _ = run(url, "--interval", 0.5, "--duration", 2, "--json")
    answer = json.loads(out)
    assert len(http.asked) == answer["scrapes"] == 5
    assert 1.5 < http.moments[-1] - http.moments[0] < 20  # 2 on a machine without other work
    assert code == 0 and answer["healthy"] is True
    assert answer["kv_cache_usage_peak"] == pytest.approx(0.7)


def test_samples_that_are_kept_give_the_same_verdict(tmp_path):
    file = tmp_path / "load.prom"
    with server(
        lambda h, n: send(
            h,
            "# HELP x y\n" + scrape(0.1 * n, 4, 1, preempted=n, made=n, more=lengths(1000, 200, n)),
        )
    ) as (_, url):
        _, live, _ = run(url, "--interval", 0.5, "--duration", 1.5, "--json", "--keep", file)
    _, saved, _ = run(file, "--json")
    assert json.loads(saved) == json.loads(live) and json.loads(live)["scrapes"] == 4
    assert run(file, "--keep", file)[0] == 2


def test_unhealthy_is_exit_3():
    with server(lambda handler, n: send(handler, scrape(0.5, 4, preempted=n))) as (_, url):
        assert run(url, "--interval", 0.5, "--duration", 0.5)[0] == 3


def test_a_server_that_goes_away():
    with server(busy) as (http, url):

        def stop_after_three(_):
            if len(http.asked) == 3:
                http.shutdown()
                http.server_close()

        series = sample(url, 0.1, 60, stop_after_three)
    assert len(series.scrapes) == 3 and series.missed == sampling.GIVE_UP
    assert os.strerror(errno.ECONNREFUSED) in series.gone
    verdict = check(series)
    assert verdict.healthy is None and "server_gone" in verdict.to_dict()["warnings"]


def test_a_server_that_misses_one_sample():
    def answer(handler, number):
        send(handler, "<html>Bad Gateway</html>", 502) if number == 1 else busy(handler, number)

    with server(answer) as (_, url):
        code, out, _ = run(url, "--interval", 0.5, "--duration", 1.5, "--json")
    answer = json.loads(out)
    assert code == 0 and answer["scrapes"] == 3 and answer["warnings"] == ["samples_missed"]


def test_a_url_that_hangs(monkeypatch):
    monkeypatch.setattr(sampling, "TIMEOUT", 0.3)
    with server(lambda handler, n: time.sleep(60)) as (_, url):
        begun = time.monotonic()
        code, _, err = run(url)
    assert code == 1 and "does not answer within 0.3 s" in err and time.monotonic() - begun < 20


def test_a_slow_server_is_not_asked_faster_to_catch_up():
    def slow(handler, number):
        time.sleep(0.35)
        busy(handler, 0)

    with server(slow) as (_, url):
        assert len(sample(url, 0.1, 0.6).scrapes) <= 3


def test_a_server_that_turns_into_something_else():
    def answer(handler, number):
        busy(handler, number) if number < 2 else send(handler, "<html></html>")

    with server(answer) as (_, url):
        series = sample(url, 0.1, 60)
    assert len(series.scrapes) == 2 and "HTML page" in series.gone


def test_an_answer_that_trickles(monkeypatch):
    monkeypatch.setattr(sampling, "TIMEOUT", 0.3)

    def trickle(handler, number):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        for _ in range(600):
            handler.wfile.write(b"#")
            time.sleep(0.1)

    with server(trickle) as (_, url):
        code, _, err = run(url)
    assert code == 1 and "does not answer within 0.3 s" in err


@pytest.mark.parametrize("drip", [b"H", b"HTTP/1.1 200 OK\r\nX: "])
def test_a_header_that_trickles(drip, monkeypatch):
    monkeypatch.setattr(sampling, "TIMEOUT", 0.3)

    def trickle(handler, number):
        handler.wfile.write(drip)
        for _ in range(600):
            handler.wfile.write(b"a")
            handler.wfile.flush()
            time.sleep(0.1)

    with server(trickle) as (_, url):
        begun = time.monotonic()
        code, _, err = run(url)
    assert code == 1 and "does not answer within 0.3 s" in err and time.monotonic() - begun < 20


def test_a_body_without_end(monkeypatch):
    monkeypatch.setattr(sampling, "_LARGEST", 2**20)

    def pour(handler, number):
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b"#" * 2**16)

    with server(pour) as (_, url):
        code, _, err = run(url)
    assert code == 1 and "answers more than" in err


@pytest.mark.parametrize(
    "answer, problem",
    [
        (lambda h, n: send(h, "<html>hello</html>"), "an HTML page"),
        (lambda h, n: send(h, "no", 401), TOKEN),
        (lambda h, n: send(h, "no", 404), "the path is usually /metrics"),
        (lambda h, n: send(h, scrape(0.5)[:50], **{"Content-Length": "900"}), "cut off"),
        (lambda h, n: send(h, "", 302, Location="http://localhost:1/metrics"), "another host"),
        (lambda h, n: send(h, "", 302, Location="file:///etc/hosts"), "HTTP 302"),
        (lambda h, n: send(h, "", 302, Location="/metrics"), "HTTP 302"),
    ],
)
def test_answers_that_are_no_metrics(answer, problem):
    with server(answer) as (_, url):
        code, out, err = run(url)
    assert code == 1 and out == "" and len(err.splitlines()) == 1 and problem in err


def test_a_redirect_on_the_same_host_is_followed():
    def answer(handler, number):
        if handler.path == "/metrics":
            send(handler, "", 307, Location="/metrics/")
        else:
            busy(handler, 0)

    with server(answer) as (_, url):
        assert run(url, "--duration", 0)[0] == 0


def test_the_token_comes_from_the_environment_and_is_not_shown(monkeypatch):
    monkeypatch.setenv(TOKEN, "s3cret")
    with server(lambda h, n: send(h, "", 302, Location="http://localhost:1/x?key=s3cret")) as (
        http,
        url,
    ):
        code, out, err = run(url + "?key=s3cret")
    assert http.asked == ["Bearer s3cret"] and code == 1 and "s3cret" not in out + err


@pytest.mark.parametrize(
    "url, problem",
    [
        ("ftp://host/metrics", "only http"),
        ("file:///etc/passwd", "only http"),
        ("http://", "with a host"),
        ("http://user:s3cret@host/metrics", TOKEN),
        ("http://host:port/metrics", "no such form"),
        ("http://[::1/metrics", "no such form"),
        ("http://host/a b", "a space"),
        ("http://user:12?s3cret@host/", TOKEN),
        ("user:s3cret@host:8000/metrics", TOKEN),
        ("localhost:8000/metrics", "only http"),
        ("http://a..b/", "no such form of a host"),
    ],
)
def test_urls_that_are_refused(url, problem):
    code, _, err = run(url)
    assert code == 1 and problem in err and "s3cret" not in err and len(err.splitlines()) == 1


def test_one_url_or_files():
    assert run("http://localhost:1/metrics", "file.prom")[0] == 2
    with pytest.raises(InputError, match="cannot be reached"):
        sample("http://localhost:1/metrics", 1, 1)


def test_ctrl_c_gives_the_verdict_on_what_there_is():
    with server(lambda handler, n: send(handler, scrape(0.5, 4, preempted=n))) as (http, url):
        process = subprocess.Popen(
            [sys.executable, "-m", "vllm_tuning", "check", url, "--interval", "0.1", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"NO_PROXY": "127.0.0.1"},
        )
        end = time.monotonic() + 120
        while len(http.asked) < 4 and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 3 and err == ""
    assert json.loads(out)["preemptions"] >= 2
