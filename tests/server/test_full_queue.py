"""A server with one seat and one place to wait: what it says to whom comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

LONG = {"prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True, "stream": True}
SHORT = {"prompt": "Hello", "max_tokens": 1}


@pytest.fixture(scope="module")
def busy(start_server) -> Iterator:
    made = start_server(
        *("--kv-cache-memory-bytes", "64MiB", "--max-num-seqs", "1", "--max-queued-requests", "1"),
        *("--queue-timeout", "30", "--admission", "guaranteed"),
    )
    yield made
    assert made.stop() == 0, "".join(made.log)


@contextmanager
def occupied(http: httpx.Client) -> Iterator[None]:
    """While the only seat is taken."""
    with http.stream("POST", "/v1/completions", json=LONG) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()  # held: dropping it would close the connection
        next(lines)
        yield


def test_one_more_than_may_wait_gets_429(busy, comes_true: Callable[..., bool]) -> None:
    with ThreadPoolExecutor(1) as pool, occupied(busy.http):
        waits = pool.submit(busy.http.post, "/v1/completions", json=SHORT)
        assert comes_true(lambda: busy.metric("num_requests_waiting") == 1)
        assert busy.metric("queued_tokens") == 1
        for stream in (False, True):
            got = busy.http.post("/v1/completions", json={**SHORT, "stream": stream})
            assert got.status_code == 429, got.text
            assert 1 <= int(got.headers["retry-after"]) <= 600
            error = got.json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
            assert f"try again in {got.headers['retry-after']} s" in error["message"]
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        assert busy.http.post("/v1/chat/completions", json=chat).status_code == 429
    assert waits.result().status_code == 200, "it waited for the seat and got it"
    assert busy.metric("requests_refused_total", reason="max_queued_requests") == 3
    assert busy.metric("requests_refused_total", reason="max_queued_tokens") == 0


def test_a_request_may_say_how_long_it_waits(busy) -> None:
    with occupied(busy.http):
        got = busy.http.post("/v1/completions", json={**SHORT, "queue_timeout": 0.2})
    assert got.status_code == 503
    assert int(got.headers["retry-after"]) >= 1
    assert got.json()["error"]["code"] == "queue_timeout"
    assert busy.metric("requests_refused_total", reason="queue_timeout") == 1
    assert busy.complete("Hello", max_tokens=1)["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("value", [0, -1, "5", 1e9])
def test_a_wait_that_means_nothing(busy, value: object) -> None:
    got = busy.http.post("/v1/completions", json={**SHORT, "queue_timeout": value})
    assert got.status_code == 400
    assert got.json()["error"]["param"] == "queue_timeout"


def test_what_is_larger_than_the_pool_is_refused_and_the_next_one_served(busy) -> None:
    """Field case D1, over HTTP."""
    got = busy.http.post("/v1/completions", json={"prompt": [5] * 4000, "max_tokens": 1})
    assert got.status_code == 400
    assert busy.complete("Hello", max_tokens=1)["usage"]["completion_tokens"] == 1


def test_the_families_for_memory_pressure_are_there(busy) -> None:
    assert busy.metric("thrashing") == 0
    assert busy.metric("preemptions_by_way_total", way="recompute") == busy.metric("num_preemptions_total") == 0
    assert busy.metric("preemptions_by_way_total", way="swap") == 0
