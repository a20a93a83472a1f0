"""Samples of a running server's /metrics: http and https only, from the host named and no other."""

import http.client
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from urllib.parse import urlsplit

from ..reading import Scrape, ScrapeSeries, parse_scrapes, stamped
from ..units import InputError

TOKEN = "VLLM_TUNING_TOKEN"  # the environment variable of a bearer token
TIMEOUT = 5.0  # seconds to answer in
GIVE_UP = 5  # samples in a row without an answer
_LARGEST = 2**26  # bytes of an answer
_HINTS = {
    401: f"; give a token in the environment variable {TOKEN}",
    403: f"; is the token in {TOKEN} right?",
    404: "; the path is usually /metrics",
}


def samples(interval: float, duration: float) -> int:
    """How many fit: one at once, one after each interval."""
    return int(duration / interval + 1e-9) + 1


def is_url(text: str) -> bool:
    """Also what is meant as one, HOST:8000/metrics, and no file."""
    return "://" in text or (":" in text and not os.path.exists(text))


def sample(
    url: str,
    interval: float,
    duration: float,
    progress: Callable[[int], object] | None = None,
    kept: list[str] | None = None,
) -> ScrapeSeries:
    """Scrapes of ``url`` every ``interval`` seconds for ``duration`` seconds.

    An answer that takes longer than the interval leaves samples out. Ctrl-C ends it with what there
    is, and so does a server that is gone. progress: called with the number of samples that are
    over. kept: takes the text of each, with its time. Raises InputError where the first one fails.
    """
    request, where = _request(url), _shown(url)
    scrapes: list[Scrape] = []
    number, missed, in_a_row, problem = 0, 0, 0, ""
    start = time.monotonic()
    try:
        while number < samples(interval, duration) and in_a_row < GIVE_UP:
            time.sleep(max(0.0, start + number * interval - time.monotonic()))
            taken = time.monotonic() - start
            try:
                content = _fetch(request)
                scrapes += parse_scrapes(content, where, taken)
                in_a_row = 0
                if kept is not None:
                    kept.append(stamped(content, taken))
            except (OSError, http.client.HTTPException, ValueError) as error:
                problem = str(error) if isinstance(error, InputError) else _reason(error, where)
                if not scrapes:
                    raise InputError(problem) from None
                missed, in_a_row = missed + 1, in_a_row + 1
            over = max(number + 1, int((time.monotonic() - start) / interval))
            if progress:
                progress(over - number)
            number = over
    except KeyboardInterrupt:
        if not scrapes:
            raise
    return ScrapeSeries(tuple(scrapes), missed=missed, gone=problem if in_a_row else None)


def _request(url: str) -> urllib.request.Request:
    """With the token of the environment. Raises InputError for what is no URL of a server."""
    if "@" in url:
        raise InputError(
            "a name or a password in a URL ends up in logs; give a token in the "
            f"environment variable {TOKEN}"
        )
    try:
        parts = urlsplit(url)
        host = parts.hostname and f"{parts.hostname}:{parts.port}"  # a port that is no number
    except ValueError:
        raise InputError("the URL has no such form; expected http://HOST:8000/metrics") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(
            f"{url.split('?')[0]}: no file, and only http:// and https:// with a host "
            "are fetched, such as http://HOST:8000/metrics"
        )
    if not url.isascii() or any(character <= " " for character in url):
        raise InputError("the URL holds a space or a character outside ASCII")
    headers = {"Accept": "text/plain", "User-Agent": "vllm-tuning"}
    if token := os.environ.get(TOKEN, "").strip():
        if not token.isascii() or not token.isprintable():
            raise InputError(f"{TOKEN}: not a token (ASCII on one line)")
        headers["Authorization"] = f"Bearer {token}"
    return urllib.request.Request(url, headers=headers)


def _shown(url: str) -> str:
    """The URL without what may be secret: user, password, query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class _SameHost(urllib.request.HTTPRedirectHandler):
    max_redirections = 3

    def redirect_request(self, request, response, code, message, headers, target):
        old, new = urlsplit(request.full_url), urlsplit(target)
        if (old.scheme, old.netloc) != (new.scheme, new.netloc):
            raise InputError(
                f"{_shown(request.full_url)}: redirects to another host, "
                f"{_shown(target)}, which is not followed; name it yourself"
            )
        return super().redirect_request(request, response, code, message, headers, target)


def _fetch(request: urllib.request.Request) -> bytes:
    """The body within the time-out, which no time-out of a socket holds: that begins anew with each
    byte of a header or a body, and does not bound the search for the host's name."""
    answer: Future[bytes] = Future()

    def fetch() -> None:
        try:
            answer.set_result(_body(request))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=fetch, daemon=True).start()
    return answer.result(TIMEOUT)


def _body(request: urllib.request.Request) -> bytes:
    with urllib.request.build_opener(_SameHost).open(request, timeout=TIMEOUT) as response:
        body = response.read(_LARGEST)
        if len(body) == _LARGEST:
            raise InputError(f"{_shown(request.full_url)}: answers more than 64 MiB")
        if response.length:
            raise http.client.IncompleteRead(b"")
    return body


def _reason(error: Exception, where: str) -> str:
    cause = getattr(error, "reason", error)
    if isinstance(error, urllib.error.HTTPError):
        what = f"answers HTTP {error.code}{_HINTS.get(error.code, '')}"
    elif isinstance(cause, TimeoutError):
        what = f"does not answer within {TIMEOUT:g} s"
    elif isinstance(cause, http.client.IncompleteRead):
        what = "the answer was cut off"
    elif isinstance(cause, UnicodeError):
        what = "no such form of a host name"
    else:
        what = f"cannot be reached: {getattr(cause, 'strerror', None) or type(cause).__name__}"
    return f"{where}: {what}"
