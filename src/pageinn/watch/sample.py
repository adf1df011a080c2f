"""What is known of a server at one moment, in one vocabulary for all engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


class SampleError(ValueError):
    """A saved sample is not one."""


@dataclass(frozen=True)
class Sample:
    """Counters since the server's start and gauges of the moment; None for what an engine does not say.

    time: seconds since 1970. queries, hits: prompt tokens looked up and found. hit_rate: the engine's own gauge, used
    where there are no counters. computed, recomputed, generated: tokens. evicted: tokens given up. requests: answered.
    below_granularity: requests too short to share anything. refused: requests by reason. usage, kept: shares of the
    cache, 0 to 1, that running requests hold and that is kept for reuse. first_token: sum of seconds, and count.
    buckets: time to first token, upper bounds and cumulative counts.
    """

    engine: str
    time: float
    queries: float | None = None
    hits: float | None = None
    hit_rate: float | None = None
    prompt_tokens: float | None = None
    computed: float | None = None
    recomputed: float | None = None
    generated: float | None = None
    evicted: float | None = None
    preemptions: float | None = None
    requests: float | None = None
    below_granularity: float | None = None
    refused: Mapping[str, float] = field(default_factory=dict)
    usage: float | None = None
    kept: float | None = None
    running: float | None = None
    waiting: float | None = None
    thrashing: float | None = None
    first_token: float | None = None
    first_tokens: float | None = None
    buckets: tuple[tuple[float, float], ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


def to_json(sample: Sample) -> dict[str, Any]:
    """For a line of a history file."""
    return {key: value for key, value in asdict(sample).items() if value not in (None, {}, ())}


def from_json(row: object) -> Sample:
    """Back from such a line. Raises SampleError."""
    names = {one.name for one in fields(Sample)}
    if not isinstance(row, dict) or not {"engine", "time"} <= set(row) <= names:
        raise SampleError("not a sample of this program")
    buckets = tuple((float(bound), float(count)) for bound, count in row.get("buckets", ()))
    return Sample(**{**row, "buckets": buckets})
