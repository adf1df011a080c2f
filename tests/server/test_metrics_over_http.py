"""Every figure that an operator rates over a window, from a live server's /metrics, in all and by tenant."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

KEYS = """
[tenants.alice]
keys = ["sk-alice"]
[tenants.bob]
keys = ["sk-bob"]
"""


@pytest.fixture(scope="module")
def worked(start_server, qwen_path: Path, tmp_path_factory) -> Iterator[Any]:
    """A server that has evicted, preempted, refused and reused for two tenants. 512 slots, one more may wait."""
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(KEYS)
    made = start_server(
        *(str(qwen_path), "--threads", "1", "--api-keys", str(path), "--admission", "optimistic"),
        *("--kv-cache-memory-bytes", "128KiB", "--max-num-seqs", "2", "--max-queued-requests", "1"),
    )

    def ask(who: str, prompt: list[int], most: int = 2) -> int:
        body = {"prompt": prompt, "max_tokens": most, "ignore_eos": True}
        return made.http.post("/v1/completions", json=body, headers={"authorization": f"Bearer sk-{who}"}).status_code

    for who, first in (("alice", 10), ("bob", 60)):
        for number in range(5):
            assert ask(who, [first + number % 3] * 170) == 200
    found: set[int] = set()
    with ThreadPoolExecutor(8) as pool:
        # Until two answers met that the slots do not hold together, which a fast server may have over too soon.
        for _ in range(30):
            found.update(pool.map(lambda number: ask("alice", [100 + number] * 100, 390), range(8)))
            if {200, 429} <= found and made.metric("num_preemptions_total"):
                break
    assert {200, 429} <= found
    yield made
    assert made.stop() == 0, "".join(made.log)


def values(server, name: str) -> dict[tuple[str, ...], float]:
    """A family's samples of this name, by all labels but the model's."""
    return {
        tuple(value for label, value in sorted(sample.labels.items()) if label != "model_name"): sample.value
        for family in text_string_to_metric_families(server.http.get("/metrics").text)
        for sample in family.samples
        if sample.name == f"pageinn:{name}"
    }


@pytest.mark.parametrize(
    ("total", "by_tenant"),
    [
        ("prefix_cache_queries_total", "tenant_prefix_cache_queries_total"),
        ("prefix_cache_hits_total", "tenant_prefix_cache_hits_total"),
        ("prompt_tokens_cached_total", "tenant_prompt_tokens_cached_total"),
        ("prompt_tokens_computed_total", "tenant_prompt_tokens_computed_total"),
        ("evicted_blocks_total", "tenant_evicted_blocks_total"),
        ("num_preemptions_total", "tenant_num_preemptions_total"),
        ("preemptions_by_way_total", "tenant_preemptions_by_way_total"),
        ("requests_refused_total", "tenant_requests_refused_total"),
    ],
)
def test_counters_by_tenant_add_up(worked, total: str, by_tenant: str) -> None:
    found = values(worked, by_tenant)
    assert {"alice", "bob"} <= {tenant for labels in found for tenant in labels}
    assert sum(found.values()) == sum(values(worked, total).values()) > 0


def test_the_queue_is_shown_by_tenant(start_server, tmp_path: Path, comes_true) -> None:
    """With a model that takes its time: a tiny one's answers would be over before anybody looks."""
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    made = start_server("--api-keys", str(path), "--kv-cache-memory-bytes", "64MiB", "--max-num-seqs", "2")
    headers = {"authorization": "Bearer sk-bob"}
    body = {"prompt": [70] * 40, "max_tokens": 1}
    long = {"max_tokens": 1200, "ignore_eos": True, "stream": True}
    with ThreadPoolExecutor(1) as pool, ExitStack() as seats:
        for first in (71, 72):
            request = {**body, **long, "prompt": [first] * 40}
            answer = seats.enter_context(made.http.stream("POST", "/v1/completions", json=request, headers=headers))
            next(seats.enter_context(closing(answer.iter_lines())))
        waits = pool.submit(made.http.post, "/v1/completions", json=body, headers=headers)
        assert comes_true(lambda: made.metric("tenant_queued_tokens", tenant="bob") == 40)
        assert made.metric("tenant_queued_requests", tenant="bob") == 1
        assert made.metric("tenant_queued_requests", tenant="alice") == 0
        seats.close()
        assert waits.result().status_code == 200
    for name in ("tenant_queued_requests", "tenant_queued_tokens"):
        assert comes_true(lambda name=name: made.metric(name, tenant="bob") == 0)
    assert made.metric("queued_tokens") == 0
    assert made.stop() == 0, "".join(made.log)


def test_active_and_reusable_are_apart(worked, comes_true) -> None:
    """Field case F7."""
    assert comes_true(lambda: worked.metric("kv_blocks", state="in_use") == 0)
    assert worked.metric("kv_blocks", state="kept") > 0


@pytest.mark.parametrize("name", ["lifetime", "idle_before_evict"])
def test_each_evicted_block_is_in_the_histograms(worked, name: str) -> None:
    assert worked.metric(f"kv_block_{name}_seconds_count") == worked.metric("evicted_blocks_total") > 0
    assert worked.metric(f"kv_block_{name}_seconds_sum") > 0


def test_the_other_histograms_are_filled(worked) -> None:
    for name in ("time_to_first_token", "inter_token_latency", "kv_block_reuse_gap"):
        assert worked.metric(f"{name}_seconds_bucket", le="+Inf") == worked.metric(f"{name}_seconds_count") > 0
