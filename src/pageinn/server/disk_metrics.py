"""The disk cache's counters as Prometheus families."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pageinn.engine.stats import DiskStats


def disk_families(stats: DiskStats, model: str) -> Iterator[Metric]:
    """One family each. Prompt tokens that the disk supplied count as hits of the prefix cache too."""
    counters = [
        ("queries", stats.queries, "Prompt tokens looked up on disk: those of whole blocks that memory lacked."),
        ("hits", stats.hits, "Prompt tokens loaded from disk; the other queries are misses."),
        ("declined", stats.declined, "Prompt tokens on disk that were computed instead, because that was faster."),
        ("late_loads", stats.late, "Loads that took longer than computing would have, and were given up."),
        ("errors", stats.errors, "Reads and writes that failed, damaged blocks among them; each is a miss at most."),
        ("dropped_writes", stats.dropped_writes, "Blocks not written, because the disk was behind or refused them."),
        ("read_bytes", stats.bytes_read, "Bytes of blocks read."),
        ("written_bytes", stats.bytes_written, "Bytes of blocks written."),
    ]
    for name, value, help_text in counters:
        counter = CounterMetricFamily(f"pageinn:disk_cache_{name}", help_text, labels=["model_name"])
        counter.add_metric([model], value)
        yield counter
    gauges = [
        ("blocks", stats.blocks, "Blocks on disk."),
        ("bytes", stats.nbytes, "Bytes of the disk that they occupy."),
    ]
    for name, value, help_text in gauges:
        gauge = GaugeMetricFamily(f"pageinn:disk_cache_{name}", help_text, labels=["model_name"])
        gauge.add_metric([model], value)
        yield gauge
