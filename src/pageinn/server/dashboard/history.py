"""What the last two hours were like: samples of the engine's figures, and the alarms that they raised."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from pageinn.engine.messages import BusyReason
from pageinn.engine.stats import Stats
from pageinn.watch.alarms import Alarm, alarms
from pageinn.watch.sample import Sample
from pageinn.watch.windows import Window, grown

#: Seconds between two samples, as `pageinn watch` takes them, and how many samples apart alarms are looked for.
INTERVAL, LOOK_EVERY = 5.0, 3
#: Seconds that are remembered.
KEPT = 2 * 3600.0
#: Points of the two series that are drawn, and samples a point of the longer one: ten minutes, and two hours.
RECENT, LONG, STEP = 120, 120, 12
#: Alarms that are over and still listed, at most.
_REMEMBERED = 50


class Event(NamedTuple):
    """An alarm, from when it stood and until when; None while it stands. Seconds since 1970."""

    alarm: Alarm
    since: float
    until: float | None


class History:
    """Samples, oldest first, and alarms, newest first."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.events: list[Event] = []
        self._added = 0
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._long: deque[dict[str, Any]] = deque(maxlen=LONG)

    def add(self, sample: Sample) -> None:
        """Take a sample; now and then look for alarms, a few milliseconds with two hours of samples."""
        self.samples.append(sample)
        while sample.time - self.samples[0].time > KEPT:
            del self.samples[0]
        self._added += 1
        if len(self.samples) > 1:
            self._recent.append(point(Window(self.samples[-2:])))
        if len(self.samples) > STEP and self._added % STEP == 1:
            self._long.append(point(Window(self.samples[-STEP - 1 :])))
        if self._added % LOOK_EVERY == 0:
            self._look(sample.time)

    def series(self, latest: Sample) -> dict[str, dict[str, list[Any]]]:
        """Columns to draw, up to the latest sample, which is not remembered; None: nothing known.

        `time`: a point's end. The others are over the time since the point before: preemptions and refusals a minute,
        tokens a second.
        """
        recent, before = list(self._recent), self.samples[-1:]
        if before and latest.time - before[0].time < INTERVAL / 2:
            # Rates over an instant would jump.
            del recent[-1:]
            before = self.samples[-2:-1]
        live = [point(Window([*before, latest]))] if before else []
        return {"recent": _columns([*recent, *live][-RECENT:]), "long": _columns(list(self._long))}

    def _look(self, now: float) -> None:
        standing = {alarm.key: alarm for alarm in alarms(self.samples)}
        kept = []
        for event in self.events:
            alarm = None if event.until is not None else standing.pop(event.alarm.key, None)
            kept.append(event._replace(alarm=alarm) if alarm else event._replace(until=event.until or now))
        new = [Event(alarm, now, None) for alarm in standing.values()]
        self.events = [*new, *kept][:_REMEMBERED]


def sample_of(stats: Stats, now: float, facts: Mapping[str, str]) -> Sample:
    """What a watcher would read from the metrics that are made of the same figures."""
    first = stats.time_to_first_token
    total = stats.blocks_total
    return Sample(
        engine="pageinn",
        time=now,
        queries=stats.prefix_cache_queries,
        hits=stats.prefix_cache_hits,
        prompt_tokens=stats.prompt_tokens,
        computed=stats.prompt_tokens_computed,
        recomputed=stats.recomputed_tokens,
        generated=stats.generation_tokens,
        evicted=stats.evicted_blocks * stats.block_size,
        preemptions=stats.preemptions,
        requests=sum(first.counts),
        below_granularity=stats.below_granularity,
        refused={reason.value: stats.refused.get(reason.value, 0) for reason in BusyReason},
        usage=stats.blocks_in_use / total if total else 0.0,
        kept=stats.blocks_kept / total if total else None,
        running=stats.running,
        waiting=stats.waiting,
        thrashing=float(stats.thrashing),
        first_token=first.total,
        first_tokens=sum(first.counts),
        buckets=tuple(zip([*first.bounds, float("inf")], map(float, accumulate(first.counts)), strict=True)),
        facts=facts,
    )


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def point(window: Window) -> dict[str, Any]:
    """The figures of a window; times in seconds."""
    latest, seconds = window.samples[-1], window.seconds
    return {
        "time": round(latest.time, 1),
        "hit_rate": _rounded(window.hit_rate),
        "first_token": _rounded(window.first_token),
        "first_token_p95": _rounded(percentile(window, 0.95)),
        "running": latest.running,
        "waiting": latest.waiting,
        "preemptions": _rate(window.change("preemptions"), seconds / 60),
        "refused": _rate(sum(window.refused().values()), seconds / 60),
        "evicted": _rate(window.change("evicted"), seconds),
        "prompt_rate": _rate(window.change("prompt_tokens"), seconds),
        "generated_rate": _rate(window.change("generated"), seconds),
    }


def percentile(window: Window, share: float) -> float | None:
    """Below which seconds this share of the first tokens came, by linear interpolation in a bucket.

    None without requests. What lies above the last bound counts as that bound.
    """
    counts = list(_new_counts(window))
    total = sum(count for _, _, count in counts)
    below = 0.0
    for low, high, count in counts:
        if count and below + count >= share * total:
            return low if high == float("inf") else low + (high - low) * (share * total - below) / count
        below += count
    return None


def _new_counts(window: Window) -> Iterator[tuple[float, float, float]]:
    """Each bucket's bounds, and how much it grew."""
    before, after = window.samples[0].buckets, window.samples[-1].buckets
    low, below = 0.0, 0.0
    for (bound, count), (_, count_before) in zip(after, before, strict=True):
        new = grown(count_before, count)
        yield low, bound, new - below
        low, below = bound, new


def _rate(change: float | None, seconds: float) -> float | None:
    return None if change is None or seconds <= 0 else round(change / seconds, 1)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
