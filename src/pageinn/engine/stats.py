"""Counters and gauges of the engine, as plain numbers. The server turns them into Prometheus families."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pageinn.memory.ages import AGE_BOUNDS, Histogram


class Blocks(NamedTuple):
    """Blocks that running sequences use, and those that are kept."""

    active: int
    kept: int


class TenantStats(NamedTuple):
    """A tenant's part of the figures of the same name."""

    prefix_cache_queries: int
    prefix_cache_hits: int
    prompt_tokens_computed: int
    preemptions_by_way: dict[str, int]
    evicted_blocks: int
    queued_requests: int
    queued_tokens: int
    refused: dict[str, int]
    blocks: Blocks

    @property
    def preemptions(self) -> int:
        """Preemptions, whatever the way."""
        return sum(self.preemptions_by_way.values())


LATENCY_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True)
class DiskStats:
    """Counters, and blocks and bytes as they are now. queries, hits and declined are in tokens.

    declined: found on disk, but computing was cheaper. late: loads given up. dropped_writes: blocks that were not
    written because the disk was behind, or refused them.
    """

    queries: int = 0
    hits: int = 0
    declined: int = 0
    late: int = 0
    errors: int = 0
    dropped_writes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    blocks: int = 0
    nbytes: int = 0


@dataclass
class Stats:
    """Counters only grow; gauges say how things stand after the last step. Prefix-cache counts are in tokens."""

    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    prefix_cache_bypassed: int = 0
    """The part of the queries whose requests do not read the cache."""
    below_granularity: int = 0
    """Requests whose prompt is shorter than one block, so that no block can be shared."""
    prompt_tokens: int = 0
    prompt_tokens_computed: int = 0
    recomputed_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    swaps: int = 0
    """Those of the preemptions whose blocks went to the host."""
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    demoted_blocks: int = 0
    promoted_blocks: int = 0
    """Blocks evicted to the host, and all blocks loaded from there, swapped ones included."""
    dropped_host_blocks: int = 0
    failed_stores: int = 0
    evicted_blocks: int = 0
    saturated_values: int = 0
    """Elements of keys and values beyond the largest number of the cache's dtype, which was stored for them."""
    steps: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    """Choices finished, by reason."""
    refused: dict[str, int] = field(default_factory=dict)
    """Requests that never started because the queue was full or their time in it was over, by reason."""
    preemptions_by_way: dict[str, int] = field(default_factory=dict)
    queued_tokens: int = 0
    """Tokens of the prompts of requests that have not started."""
    thrashing: bool = False
    preemption_watermark: int | None = None
    """Running choices below which preemption does not start; None while too few were seen."""
    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_free: int = 0
    blocks_kept: int = 0
    blocks_in_use: int = 0
    host_blocks_free: int = 0
    host_blocks_kept: int = 0
    host_blocks_held: int = 0
    block_size: int = 16
    slots_stored: int = 0
    slots_reserved: int = 0
    slots_lost: int = 0
    slots_saved: int = 0
    """Of the blocks in use: filled slots, slots for tokens still to be computed, empty ones of last blocks; and slots
    that would be needed besides if nothing were shared."""
    window_queries: int = 0
    window_hits: int = 0
    """Queries and hits of the last minute; no queries means that there is no rate."""
    tenants: dict[str, TenantStats] = field(default_factory=dict)
    """By label: the configured tenants, what is public, and all others together."""
    blocks_retained: int = 0
    """Blocks held for prefixes that are kept for a time or pinned."""
    retentions: dict[str, int] = field(default_factory=dict)
    """Prefixes that were to be kept, by what became of them."""
    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS))
    time_per_output_token: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS))
    request_latency: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS))
    block_lifetime: Histogram = field(default_factory=lambda: Histogram(AGE_BOUNDS))
    block_idle: Histogram = field(default_factory=lambda: Histogram(AGE_BOUNDS))
    block_reuse_gap: Histogram = field(default_factory=lambda: Histogram(AGE_BOUNDS))
    """Of blocks: their lives up to their eviction, the time unused before it, and the time between two uses."""
    disk: DiskStats | None = None
    """None without a disk cache."""
