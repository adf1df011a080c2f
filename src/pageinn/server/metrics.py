"""The engine's counters as Prometheus families, read when they are asked for.

Names are vLLM's with the prefix `pageinn:` where the meaning is the same: dashboards carry over by a rename.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from pageinn.engine.messages import BusyReason
from pageinn.engine.stats import Stats
from pageinn.memory.ages import Histogram
from pageinn.server.disk_metrics import disk_families
from pageinn.server.served import Served


def registry_of(served: Served) -> CollectorRegistry:
    """A registry with everything this server measures."""
    registry = CollectorRegistry()
    registry.register(_Engine(served))
    return registry


class _Engine(Collector):
    def __init__(self, served: Served) -> None:
        self._served = served

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        stats = self._served.client.stats()
        model = self._served.model_name
        yield from _counters(stats, model)
        yield from _gauges(stats, model)
        yield from _latencies(stats, model)
        if stats.disk is not None:
            yield from disk_families(stats.disk, model)
        info = InfoMetricFamily("pageinn:cache_config", "How the cache is set up; the value is always 1.", labels=[])
        blocks = {"block_size": str(stats.block_size), "num_blocks": str(stats.blocks_total)}
        info.add_metric([], {**blocks, **self._served.cache_config})
        yield info


def _counters(stats: Stats, model: str) -> Iterator[Metric]:
    rows = [
        ("prefix_cache_queries", stats.prefix_cache_queries, "Prompt tokens looked up in the prefix cache."),
        (
            "prefix_cache_hits",
            stats.prefix_cache_hits,
            "Prompt tokens found there, which were not computed again.",
        ),
        (
            "prefix_cache_bypassed",
            stats.prefix_cache_bypassed,
            "Those of the queries whose request does not read the cache: it asks how likely its own prompt is.",
        ),
        (
            "prefix_cache_below_granularity",
            stats.below_granularity,
            "Requests shorter than one block, of which no block can be shared; not a sign of a broken cache.",
        ),
        ("prompt_tokens", stats.prompt_tokens, "Prompt tokens of the requests received."),
        ("prompt_tokens_cached", stats.prefix_cache_hits, "Prompt tokens taken from the cache."),
        ("prompt_tokens_computed", stats.prompt_tokens_computed, "Prompt tokens computed."),
        (
            "recomputed_tokens",
            stats.recomputed_tokens,
            "Tokens computed a second time after a preemption; never counted as hits or queries.",
        ),
        ("generation_tokens", stats.generation_tokens, "Tokens generated."),
        ("num_preemptions", stats.preemptions, "Requests put back to the queue because the blocks ran out."),
        ("num_swaps", stats.swaps, "Those of the preemptions whose blocks were swapped out to host memory."),
        ("swapped_out_blocks", stats.swapped_out_blocks, "Blocks copied to host memory by preemptions."),
        ("swapped_in_blocks", stats.swapped_in_blocks, "Blocks copied back when a swapped request went on."),
        ("demoted_blocks", stats.demoted_blocks, "Evicted blocks kept in host memory."),
        ("promoted_blocks", stats.promoted_blocks, "Blocks copied back from host memory, swapped ones included."),
        ("dropped_host_blocks", stats.dropped_host_blocks, "Blocks dropped from host memory to make room there."),
        ("failed_stores", stats.failed_stores, "Blocks that could not be copied to host memory: each a miss."),
        ("evicted_blocks", stats.evicted_blocks, "Kept blocks given up for new ones."),
        (
            "kv_cache_saturated_values",
            stats.saturated_values,
            "Elements of keys and values beyond the largest number of the cache's dtype, which was stored for them.",
        ),
        ("engine_steps", stats.steps, "Steps of the engine's loop."),
    ]
    for name, value, help_text in rows:
        counter = CounterMetricFamily(f"pageinn:{name}", help_text, labels=["model_name"])
        counter.add_metric([model], value)
        yield counter
    success = CounterMetricFamily(
        "pageinn:request_success", "Choices finished, by reason.", labels=["model_name", "finished_reason"]
    )
    for reason, count in sorted(stats.finished.items()):
        success.add_metric([model, reason], count)
    yield success
    yield from _tenant_counters(stats, model)
    retentions = CounterMetricFamily(
        "pageinn:prefix_retentions",
        "Prefixes that were to be kept for a time or pinned, by what became of them.",
        labels=["model_name", "outcome"],
    )
    for outcome, count in sorted(stats.retentions.items()):
        retentions.add_metric([model, outcome], count)
    yield retentions


def _tenant_counters(stats: Stats, model: str) -> Iterator[Metric]:
    """By tenant: those of the file of keys, what is public, and all others together."""
    families = [
        ("tenant_prefix_cache_queries", "prefix_cache_queries", "Prompt tokens looked up, by tenant."),
        ("tenant_prefix_cache_hits", "prefix_cache_hits", "Prompt tokens found there, by tenant."),
        ("tenant_prompt_tokens_cached", "prefix_cache_hits", "Prompt tokens taken from the cache, by tenant."),
        ("tenant_prompt_tokens_computed", "prompt_tokens_computed", "Prompt tokens computed, by tenant."),
        ("tenant_evicted_blocks", "evicted_blocks", "Kept blocks given up for new ones, by whose they were."),
        ("tenant_num_preemptions", "preemptions", "Requests put back to the queue, by tenant."),
    ]
    for name, field, help_text in families:
        counter = CounterMetricFamily(f"pageinn:{name}", help_text, labels=["model_name", "tenant"])
        for tenant, figures in stats.tenants.items():
            counter.add_metric([model, tenant], getattr(figures, field))
        yield counter
    refused = CounterMetricFamily(
        "pageinn:requests_refused",
        "Requests that never started: the queue was full, or their time in it over. By the limit they met.",
        labels=["model_name", "reason"],
    )
    for reason in BusyReason:
        refused.add_metric([model, reason.value], stats.refused.get(reason.value, 0))
    yield refused
    ways = CounterMetricFamily(
        "pageinn:preemptions_by_way",
        "Preemptions by how what was computed comes back: computed again, or swapped in from the host.",
        labels=["model_name", "way"],
    )
    for way, count in sorted(stats.preemptions_by_way.items()):
        ways.add_metric([model, way], count)
    yield ways
    yield from _tenant_kinds(stats, model)


def _tenant_kinds(stats: Stats, model: str) -> Iterator[Metric]:
    """By tenant, and by way or reason."""
    ways = CounterMetricFamily(
        "pageinn:tenant_preemptions_by_way",
        "Preemptions by tenant, and by how what was computed comes back.",
        labels=["model_name", "tenant", "way"],
    )
    refused = CounterMetricFamily(
        "pageinn:tenant_requests_refused",
        "Requests that never started, by tenant and by the limit they met.",
        labels=["model_name", "tenant", "reason"],
    )
    for tenant, figures in stats.tenants.items():
        for way, count in figures.preemptions_by_way.items():
            ways.add_metric([model, tenant, way], count)
        for reason in BusyReason:
            refused.add_metric([model, tenant, reason.value], figures.refused.get(reason.value, 0))
    yield ways
    yield refused


def _gauges(stats: Stats, model: str) -> Iterator[Metric]:
    in_use = stats.blocks_in_use / stats.blocks_total if stats.blocks_total else 0.0
    rows = [
        ("queued_tokens", float(stats.queued_tokens), "Tokens of the prompts of requests that have not started."),
        (
            "thrashing",
            float(stats.thrashing),
            "1 while memory in use stays high, the queue grows and preemptions become more frequent.",
        ),
        ("num_requests_running", float(stats.running), "Requests being computed now."),
        ("num_requests_waiting", float(stats.waiting), "Requests waiting for room."),
        (
            "kv_cache_usage_perc",
            in_use,
            "Blocks held by running requests, as a share of all (1 is full); kept blocks are reusable.",
        ),
        ("kv_blocks_retained", float(stats.blocks_retained), "Blocks of prefixes kept for a time or pinned."),
    ]
    for name, value, help_text in rows:
        gauge = GaugeMetricFamily(f"pageinn:{name}", help_text, labels=["model_name"])
        gauge.add_metric([model], value)
        yield gauge
    yield _by_state(
        "kv_blocks",
        "Blocks by state: free, kept for reuse after their request finished, in use. They sum to all blocks.",
        model,
        {"free": stats.blocks_free, "kept": stats.blocks_kept, "in_use": stats.blocks_in_use},
    )
    yield _by_state(
        "kv_host_blocks",
        "Blocks of host memory by state: free, kept for reuse, held for swapped requests. They sum to all of them.",
        model,
        {"free": stats.host_blocks_free, "kept": stats.host_blocks_kept, "held": stats.host_blocks_held},
    )
    tenants = GaugeMetricFamily(
        "pageinn:tenant_kv_blocks",
        "Blocks by tenant and state: kept for reuse, in use.",
        labels=["model_name", "tenant", "state"],
    )
    for tenant, figures in stats.tenants.items():
        tenants.add_metric([model, tenant, "in_use"], figures.blocks.active)
        tenants.add_metric([model, tenant, "kept"], figures.blocks.kept)
    yield tenants
    for name, field, help_text in (
        ("tenant_queued_requests", "queued_requests", "Requests that have not started, by tenant."),
        ("tenant_queued_tokens", "queued_tokens", "Tokens of their prompts, by tenant."),
    ):
        queued = GaugeMetricFamily(f"pageinn:{name}", help_text, labels=["model_name", "tenant"])
        for tenant, figures in stats.tenants.items():
            queued.add_metric([model, tenant], getattr(figures, field))
        yield queued
    yield _by_state(
        "kv_slots",
        "Token slots of the blocks in use: stored, reserved for tokens still to be computed, lost in last blocks.",
        model,
        {"stored": stats.slots_stored, "reserved": stats.slots_reserved, "lost": stats.slots_lost},
    )
    saved = GaugeMetricFamily(
        "pageinn:kv_slots_saved",
        "Token slots that running requests would need besides if each had its own copy of what they share.",
        labels=["model_name"],
    )
    saved.add_metric([model], stats.slots_saved)
    yield saved
    if stats.preemption_watermark is not None:
        watermark = GaugeMetricFamily(
            "pageinn:preemption_watermark_seqs",
            "Running sequences below which preemption does not start: advice for --max-num-seqs.",
            labels=["model_name"],
        )
        watermark.add_metric([model], stats.preemption_watermark)
        yield watermark
    if stats.window_queries:
        rate = GaugeMetricFamily(
            "pageinn:prefix_cache_hit_rate_window",
            "Hits by queries of the last minute, in tokens; absent when there were no queries.",
            labels=["model_name"],
        )
        rate.add_metric([model], stats.window_hits / stats.window_queries)
        yield rate


def _by_state(name: str, help_text: str, model: str, states: dict[str, int]) -> Metric:
    """A gauge with one value for each state."""
    gauge = GaugeMetricFamily(f"pageinn:{name}", help_text, labels=["model_name", "state"])
    for state, count in states.items():
        gauge.add_metric([model, state], count)
    return gauge


def _latencies(stats: Stats, model: str) -> Iterator[Metric]:
    rows = [
        (
            "time_to_first_token_seconds",
            stats.time_to_first_token,
            "From arrival to the first token, in seconds.",
        ),
        (
            "inter_token_latency_seconds",
            stats.time_per_output_token,
            "Between two tokens of one choice, in seconds.",
        ),
        (
            "e2e_request_latency_seconds",
            stats.request_latency,
            "From arrival to the end of a request, in seconds.",
        ),
    ]
    rows += [
        (
            "kv_block_lifetime_seconds",
            stats.block_lifetime,
            "From a block's being taken to its eviction, in seconds. Every block is counted.",
        ),
        (
            "kv_block_idle_before_evict_seconds",
            stats.block_idle,
            "From the end of a block's last use to its eviction, in seconds.",
        ),
        (
            "kv_block_reuse_gap_seconds",
            stats.block_reuse_gap,
            "From a block's last use to a request that finds it, in seconds.",
        ),
    ]
    for name, histogram, help_text in rows:
        family = HistogramMetricFamily(f"pageinn:{name}", help_text, labels=["model_name"])
        family.add_metric([model], _buckets(histogram), histogram.total)
        yield family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Prometheus wants each bucket to count what lies below its bound, smaller buckets included."""
    bounds = [*(str(bound) for bound in histogram.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))
