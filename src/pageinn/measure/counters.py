"""What providers and engines said of their caches, beside what the traffic would have allowed."""

from __future__ import annotations

from typing import NamedTuple

from pageinn.measure.collect import Collected
from pageinn.measure.paths import per_request
from pageinn.traffic.report import Sample

#: Points of a rate over time.
_POINTS = 60


class Counted(NamedTuple):
    """Providers' counts over the requests that carry them. possible: the share that repeats, by our own tokens."""

    requests: int
    prompt: int
    cached: int
    written: int
    possible: float | None

    @property
    def share(self) -> float | None:
        """Of all prompt tokens, cached or not; None of no tokens."""
        return self.cached / self.prompt if self.prompt else None


class Point(NamedTuple):
    """A hit rate over some lines: by tokens where they count them, else the mean. seconds: since the log's first."""

    seconds: float | None
    rate: float


class Observed(NamedTuple):
    """An engine's own hit rates. weighted: cached of all prompt tokens, where the lines count them. series: the rate
    over time, over equal numbers of lines.
    """

    engine: str
    tier: str
    samples: int
    first: float | None
    last: float | None
    lowest: float | None
    highest: float | None
    weighted: float | None
    seconds: float | None
    series: list[Point]


def counted(log: Collected) -> Counted | None:
    """The providers' counts; None where the log has none."""
    said = log.reported[log.reported[:, 0] >= 0]
    if len(said) == 0:
        return None
    prompt, cached, written = (int(total) for total in said.sum(axis=0))
    possible = None
    if log.paths is not None:
        has = log.columns.reported[:, 0] >= 0
        tokens = int(log.paths.tokens[has].sum())
        repeated = int(per_request(log.paths, log.paths.segments.tokens)[has].sum())
        possible = repeated / tokens if tokens else None
    return Counted(len(said), prompt, cached, written, possible)


def observed(samples: list[Sample]) -> list[Observed]:
    """One entry for each engine and tier, in the order of the log."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.engine, sample.tier), []).append(sample)
    return [_observed(engine, tier, group) for (engine, tier), group in groups.items()]


def _observed(engine: str, tier: str, group: list[Sample]) -> Observed:
    rates = [sample.rate for sample in group if sample.rate is not None]
    times = [sample.time for sample in group if sample.time is not None]
    return Observed(
        engine,
        tier,
        len(group),
        rates[0] if rates else None,
        rates[-1] if rates else None,
        min(rates, default=None),
        max(rates, default=None),
        _weighted(group),
        max(times) - min(times) if times else None,
        _series(group),
    )


def _weighted(group: list[Sample]) -> float | None:
    new = sum(sample.new or 0 for sample in group)
    cached = sum(sample.cached or 0 for sample in group)
    return cached / (new + cached) if new + cached else None


def _series(group: list[Sample]) -> list[Point]:
    together = -(-len(group) // _POINTS)
    points = []
    for place in range(0, len(group), together):
        part = group[place : place + together]
        rates = [sample.rate for sample in part if sample.rate is not None]
        rate = _weighted(part)
        if rate is None and rates:
            rate = sum(rates) / len(rates)
        start, now = group[0].time, part[0].time
        if rate is not None:
            points.append(Point(now - start if now is not None and start is not None else None, rate))
    return points
