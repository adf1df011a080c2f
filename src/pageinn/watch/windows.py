"""Samples cut in windows, and what happened in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from pageinn.watch.sample import Sample

#: A window lasts this long at least, seconds, and holds so many requests, unless that takes too long.
SHORTEST, LONGEST = 20.0, 600.0
REQUESTS = 20


class Window(NamedTuple):
    """Samples from one edge to the next, both included."""

    samples: Sequence[Sample]

    @property
    def seconds(self) -> float:
        """How long it lasts."""
        return self.samples[-1].time - self.samples[0].time

    def change(self, name: str) -> float | None:
        """How much a counter grew; one that falls was reset by a restart. None where it is not counted."""
        values = [getattr(sample, name) for sample in self.samples]
        if any(value is None for value in values):
            return None
        return sum(grown(before, after) for before, after in pairwise(values))

    def refused(self) -> dict[str, float]:
        """Requests refused, by reason."""
        found: dict[str, float] = {}
        for before, after in pairwise(self.samples):
            for reason, count in after.refused.items():
                new = grown(before.refused.get(reason, 0.0), count)
                if new:
                    found[reason] = found.get(reason, 0.0) + new
        return found

    def greatest(self, name: str) -> float | None:
        """The greatest value of a gauge; None where there is none."""
        values = [value for sample in self.samples if (value := getattr(sample, name)) is not None]
        return max(values, default=None)

    @property
    def hit_rate(self) -> float | None:
        """Hits by queries; the mean of the engine's gauge where it does not count them. None without queries."""
        queries, hits = self.change("queries"), self.change("hits")
        if queries is not None and hits is not None:
            return hits / queries if queries > 0 else None
        if not self.change("prompt_tokens"):
            return None
        rates = [sample.hit_rate for sample in self.samples if sample.hit_rate is not None]
        return sum(rates) / len(rates) if rates else None

    @property
    def first_token(self) -> float | None:
        """Mean time to first token, seconds."""
        seconds, count = self.change("first_token"), self.change("first_tokens")
        return seconds / count if seconds is not None and count else None


def grown(before: float, after: float) -> float:
    """How much a counter grew between two readings."""
    return after - before if after >= before else after


def last(samples: Sequence[Sample], seconds: float) -> Window:
    """The latest samples that span at least so many seconds; all of them if they span less."""
    start = len(samples) - 1
    while start > 0 and samples[-1].time - samples[start].time < seconds:
        start -= 1
    return Window(samples[max(0, start) :])


def cut(samples: Sequence[Sample]) -> list[Window]:
    """Windows that end with the latest sample, oldest first. What is too short for one at the beginning is left out.

    A window is long enough after SHORTEST seconds and REQUESTS requests, and after LONGEST in any case.
    """
    found: list[Window] = []
    end = len(samples) - 1
    while end > 0:
        start, requests = end, 0.0
        while start > 0:
            start -= 1
            requests += _answered(samples[start], samples[start + 1])
            span = samples[end].time - samples[start].time
            if span >= LONGEST or (span >= SHORTEST and requests >= REQUESTS):
                found.append(Window(samples[start : end + 1]))
                break
        else:
            break
        end = start
    return found[::-1]


def _answered(before: Sample, after: Sample) -> float:
    if before.requests is None or after.requests is None:
        return REQUESTS
    return grown(before.requests, after.requests)


def shares(window: Window) -> Mapping[str, float]:
    """Numbers of a window for people and programs; what is not known is left out."""
    per_second = {"prompt_tokens": "prompt_tokens", "generated_tokens": "generated", "requests": "requests"}
    found = {}
    if window.seconds > 0:
        for key, name in per_second.items():
            change = window.change(name)
            if change is not None:
                found[f"{key}_per_second"] = change / window.seconds
    named = {"hit_rate": window.hit_rate, "time_to_first_token": window.first_token}
    for key in ("preemptions", "recomputed", "evicted", "below_granularity"):
        named[key] = window.change(key)
    return found | {key: value for key, value in named.items() if value is not None}
