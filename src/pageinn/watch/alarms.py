"""Alarms: pure functions from samples, oldest first, to one line that says what happened and what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from pageinn.watch.sample import Sample
from pageinn.watch.windows import Window, cut, last

#: A hit rate has fallen below this share of its baseline and by so many points, and is clearly below all before.
FALLEN, POINTS, MARGIN = 0.6, 0.15, 0.05
#: Windows that make a baseline, and those that confirm a fall.
BASELINE, CONFIRMED = 12, 2
#: How long a fallen rate stays news, in seconds: afterwards it is the baseline.
NEWS = 3600.0
#: Events are counted over this time, seconds.
EVENTS = 300.0
#: Preemptions: at least so many, and in this share of the requests.
PREEMPTIONS, PREEMPTED = 3, 0.01
#: Thrash: a cache this full, with so many preemptions per answered request, or this part of all prefill done again.
FULL, PER_REQUEST, AGAIN = 0.9, 0.5, 0.3
#: Refusals: at least so many, and in this share of the requests.
REFUSALS, REFUSED = 5, 0.01
#: Requests below the granularity: of at least so many requests, this share.
SHORT_OF, SHORT = 20, 0.5


class Alarm(NamedTuple):
    """key: hit_rate, preemptions, thrash, below_granularity or refusals. line: what happened, and what to do."""

    key: str
    line: str


def alarms(samples: Sequence[Sample]) -> list[Alarm]:
    """All alarms that these samples raise."""
    if len(samples) < 2:
        return []
    return [alarm for check in CHECKS if (alarm := check(samples)) is not None]


def hit_rate_fallen(samples: Sequence[Sample]) -> Alarm | None:
    """The hit rate has fallen against its own baseline, in two windows that follow one another.

    A window counts as fallen if its rate is below FALLEN of the baseline's median, by POINTS, and as far below the
    baseline's lowest as that is below its highest: traffic whose rate swings by itself raises nothing. A window joins
    the baseline when the next one has not fallen either (one that caught a part of the fall would widen it), and fallen
    ones when they have lasted for NEWS.
    """
    baseline: list[float] = []
    held: float | None = None
    fallen: list[Window] = []
    for window in cut(samples):
        rate = window.hit_rate
        if rate is None:
            continue
        if _fallen(rate, baseline):
            fallen.append(window)
            if window.samples[-1].time - fallen[0].samples[0].time > NEWS:
                baseline, held, fallen = [one.hit_rate or 0.0 for one in fallen], None, []
            continue
        if fallen:
            held, fallen = None, []
        if held is not None:
            baseline.append(held)
        held = rate
    if len(fallen) < CONFIRMED:
        return None
    now = fallen[-1].hit_rate or 0.0
    return Alarm(
        "hit_rate",
        f"hit rate {_percent(now)}, {_percent(median(baseline))} before: something variable may head the prompts, or a "
        "deploy changed them. Compare: pageinn explain --before OLD.jsonl --after NEW.jsonl",
    )


def _fallen(rate: float, baseline: list[float]) -> bool:
    if len(baseline) < BASELINE:
        return False
    middle, lowest = median(baseline), min(baseline)
    clear = lowest - max(MARGIN, max(baseline) - lowest)
    return rate < min(FALLEN * middle, middle - POINTS, clear)


def preemptions(samples: Sequence[Sample]) -> Alarm | None:
    """Running requests lose their memory."""
    window = last(samples, EVENTS)
    count, requests = window.change("preemptions"), window.change("requests")
    if not count or count < PREEMPTIONS or (requests and count < PREEMPTED * requests):
        return None
    again = window.change("recomputed")
    cost = f", {again:,.0f} tokens computed again" if again else ""
    return Alarm(
        "preemptions",
        f"{count:,.0f} preemptions in {_minutes(window)}{cost}: admit fewer at once (lower --max-num-seqs, SGLang "
        "--max-running-requests) or give the cache more memory (fp8, a larger share)",
    )


def thrash(samples: Sequence[Sample]) -> Alarm | None:
    """Work is thrown away as fast as it is done: the server says so, or a full cache preempts or recomputes most."""
    window = last(samples, EVENTS)
    latest = samples[-1]
    usage = window.greatest("usage")
    full = usage is not None and usage >= FULL
    requests, preempted = window.change("requests"), window.change("preemptions")
    computed, again = window.change("computed"), window.change("recomputed")
    why = None
    if latest.thrashing:
        why = "the server says that it is thrashing"
    elif full and preempted and preempted >= PREEMPTIONS and preempted >= PER_REQUEST * (requests or 0):
        why = f"{preempted:,.0f} preemptions for {requests or 0:,.0f} answers in {_minutes(window)}, cache full"
    elif full and again and again > AGAIN * ((computed or 0) + again):
        why = f"{again:,.0f} of {(computed or 0) + again:,.0f} prefill tokens computed again in {_minutes(window)}"
    if why is None:
        return None
    return Alarm("thrash", f"thrash: {why}. Halve the sequences at once (--max-num-seqs) until it stops, then plan")


def below_granularity(samples: Sequence[Sample]) -> Alarm | None:
    """Most prompts are too short to share a block: no sign of a broken cache, but nothing to gain from it either."""
    window = last(samples, EVENTS)
    requests = window.change("requests")
    if not requests or requests < SHORT_OF:
        return None
    short, size = window.change("below_granularity"), _block_size(samples[-1])
    if short is not None:
        if short < SHORT * requests:
            return None
        what = f"{_percent(short / requests)} of {requests:,.0f} requests are shorter than one block"
    else:
        prompts = window.change("prompt_tokens")
        if size is None or prompts is None or prompts / requests >= size:
            return None
        what = f"prompts of {prompts / requests:,.0f} tokens on average are shorter than one block of {size}"
    return Alarm(
        "below_granularity",
        f"{what}: below granularity, not a broken cache. Prompts this short have nothing to share; check --block-size",
    )


def refusals(samples: Sequence[Sample]) -> Alarm | None:
    """Requests are refused or end with an error."""
    window = last(samples, EVENTS)
    reasons = window.refused()
    count, requests = sum(reasons.values()), window.change("requests") or 0
    if count < REFUSALS or count < REFUSED * (requests + count):
        return None
    named = ", ".join(f"{number:,.0f} {reason}" for reason, number in sorted(reasons.items()))
    return Alarm(
        "refusals",
        f"{count:,.0f} requests refused or failed in {_minutes(window)} ({named}): add capacity or lower the load; "
        "pageinn plan says how many fit",
    )


CHECKS: tuple[Callable[[Sequence[Sample]], Alarm | None], ...] = (
    hit_rate_fallen,
    preemptions,
    thrash,
    below_granularity,
    refusals,
)


def _block_size(sample: Sample) -> int | None:
    text = sample.facts.get("block_size", sample.facts.get("page_size", ""))
    return int(text) if text.isdecimal() else None


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _minutes(window: Window) -> str:
    return f"{window.seconds:.0f} s" if window.seconds < 120 else f"{window.seconds / 60:.0f} minutes"
