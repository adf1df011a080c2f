"""What an operator sees of the cache: cached tokens in usage, counters, gauges, the answer to a reset."""

from __future__ import annotations

import json
from contextlib import closing
from http.client import HTTPConnection

import pytest

PREFIX = " ".join(f"Item {i} on the list is worth {i * 7} crowns." for i in range(40))


def cached(server, prompt: object, **fields: object) -> int:
    usage = server.complete(prompt, max_tokens=2, **fields)["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


def test_salts_do_not_share_and_each_hits_its_own(server) -> None:
    """Field case C2: B repeats A's prompt, 0 cached; A's own repeat, more than 0."""
    prompt = "C2. " + PREFIX
    assert cached(server, prompt, cache_salt="a") == 0
    assert cached(server, prompt, cache_salt="b") == 0
    assert cached(server, prompt) == 0
    assert cached(server, prompt, cache_salt="a") > 0
    assert cached(server, prompt, cache_salt="b") > 0


def test_a_second_turn_hits_the_first_ones_answer(server) -> None:
    talk = [{"role": "user", "content": "Second turn. " + PREFIX}]
    first = server.http.post("/v1/chat/completions", json={"messages": talk, "max_tokens": 24, "temperature": 0}).json()
    talk += [first["choices"][0]["message"], {"role": "user", "content": "And now?"}]
    second = server.http.post("/v1/chat/completions", json={"messages": talk, "max_tokens": 2}).json()
    computed = first["usage"]["prompt_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > computed


def test_a_short_prompt_is_below_the_granularity(server) -> None:
    """Field case F4: shorter than one block is counted as such, and reads 0 cached."""
    before = server.metric("prefix_cache_below_granularity_total")
    cached(server, "F4 hi")
    assert server.metric("prefix_cache_below_granularity_total") == before + 1


def test_counters_agree_with_usage(server) -> None:
    names = ["prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_total", "generation_tokens_total"]
    before = [server.metric(name) for name in names]
    first = server.complete("Counters. " + PREFIX, max_tokens=3)["usage"]
    again = server.complete("Counters. " + PREFIX, max_tokens=3)["usage"]
    hits = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in (first, again))
    assert hits >= first["prompt_tokens"] - 1
    prompts = 2 * first["prompt_tokens"]
    expected = [prompts, hits, prompts, first["completion_tokens"] + again["completion_tokens"]]
    assert [server.metric(name) - old for name, old in zip(names, before, strict=True)] == expected
    assert server.metric("prefix_cache_hit_rate_window") > 0


def test_an_idle_server_shows_kept_blocks_as_reusable(server, comes_true) -> None:
    """Field case F7 (and A1): idle means 0 in use, kept blocks of their own, usage 0."""
    cached(server, "F7. " + PREFIX)
    assert comes_true(lambda: server.blocks()["in_use"] == 0)
    assert server.blocks()["kept"] > 0
    assert server.metric("kv_cache_usage_perc") == 0
    assert server.metric("num_requests_running") == 0


def test_a_reset_says_what_it_did(server, comes_true) -> None:
    """Field case F6: blocks freed, blocks still in use, idle and while a request runs."""
    cached(server, "F6. " + PREFIX)
    assert comes_true(lambda: server.blocks()["in_use"] == 0)
    kept = server.blocks()["kept"]
    assert kept > 0
    assert server.http.post("/reset_prefix_cache").json() == {"blocks_freed": kept, "blocks_in_use": 0}
    assert server.blocks()["kept"] == 0
    assert cached(server, "F6. " + PREFIX) == 0
    body = {"prompt": "F6 runs. " + PREFIX, "max_tokens": 400, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body) as got:
        lines = got.iter_lines()  # kept, for its end would close the stream
        next(lines)
        report = server.http.post("/reset_prefix_cache").json()
        assert report["blocks_freed"] > 0
        assert report["blocks_in_use"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_disconnects_frees_its_blocks(server, comes_true, stream: bool) -> None:
    """Field case G1: long before the answer would have ended, and counted as an abort."""
    assert comes_true(lambda: server.blocks()["in_use"] == 0)
    aborts = server.metric("request_success_total", finished_reason="abort") or 0
    generated = server.metric("generation_tokens_total")
    body = {"prompt": "G1. " + PREFIX, "max_tokens": 1500, "ignore_eos": True, "stream": stream}
    with closing(HTTPConnection(server.http.base_url.host, server.http.base_url.port, timeout=60)) as leaving:
        leaving.request("POST", "/v1/completions", json.dumps(body))
        assert comes_true(lambda: server.metric("num_requests_running") == 1)
        if stream:
            leaving.getresponse().readline()
    # On a slow machine the step that began with the request may not have ended yet, and the figures be those before it.
    assert comes_true(lambda: server.metric("request_success_total", finished_reason="abort") == aborts + 1)
    assert comes_true(lambda: server.blocks()["in_use"] == 0)
    assert server.metric("generation_tokens_total") - generated < 1000


def test_a_normal_finish_is_no_abort(server) -> None:
    """Field case G1's other half."""
    aborts = server.metric("request_success_total", finished_reason="abort")
    body = {"prompt": "G1 again", "max_tokens": 4, "stream": True, "temperature": 0}
    lines = server.http.post("/v1/completions", json=body).text.split("\n\n")
    assert json.loads(lines[-3].removeprefix("data: "))["choices"][0]["finish_reason"] in ("length", "stop")
    assert server.metric("request_success_total", finished_reason="abort") == aborts


def test_blocks_sum_to_the_pool(server) -> None:
    """Field case A8 from outside."""
    (info,) = [line for line in server.http.get("/metrics").text.splitlines() if "cache_config_info{" in line]
    total = int(info.split('num_blocks="')[1].split('"')[0])
    assert sum(server.blocks().values()) == total
    assert 'block_size="16"' in info
