"""The watcher's screen: plain text in 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from datetime import datetime

from pageinn.watch.alarms import Alarm
from pageinn.watch.engines import TITLES
from pageinn.watch.sample import Sample
from pageinn.watch.windows import Window, last

WIDTH = 80
#: Seconds that rates are taken over, and how many points a line of history has.
RECENT, POINTS = 60.0, 48
_BARS = "▁▂▃▄▅▆▇█"


def screen(samples: Sequence[Sample], standing: Mapping[str, Alarm], url: str, error: str | None = None) -> str:
    """What stands now. error: why the latest scrape failed, None if it did not."""
    if not samples:
        return "\n".join([plain(url), *_wrap(error or "no sample yet")])
    sample, recent = samples[-1], last(samples, RECENT)
    clock = datetime.fromtimestamp(sample.time).strftime("%H:%M:%S")
    head = f"{TITLES[sample.engine]} at {plain(url)}"[: WIDTH - len(clock) - 1]
    lines = [f"{head}{clock:>{WIDTH - len(head)}}", ""]
    lines += [f"{name:<14}{text}" for name, text in _rows(sample, recent)]
    lines += [f"{name:<14}{line}" for name, line in _histories(samples) if line.strip()]
    lines += ["", *_standing(standing)]
    if error is not None:
        lines += ["", *_wrap(f"the latest scrape failed: {error}")]
    return "\n".join(lines)


def _rows(sample: Sample, recent: Window) -> list[tuple[str, str]]:
    span = f"in the last {recent.seconds:.0f} s"
    rows = [("hit rate", f"{_hit_rate(sample, recent)} {span}")]
    held = [("in use", sample.usage), ("kept for reuse", sample.kept)]
    shown = ", ".join(f"{100 * value:.0f} % {name}" for name, value in held if value is not None)
    rows.append(("cache", shown or "not said by this engine"))
    queue = [("running", sample.running), ("waiting", sample.waiting)]
    rows.append(("requests", ", ".join(f"{value:.0f} {name}" for name, value in queue if value is not None)))
    speeds = [("prompt", "prompt_tokens"), ("computed", "computed"), ("generated", "generated")]
    said = [(name, recent.change(field)) for name, field in speeds]
    seconds = recent.seconds or 1.0
    rows.append(("tokens/s", ", ".join(f"{value / seconds:,.0f} {name}" for name, value in said if value is not None)))
    if recent.first_token is not None:
        rows.append(("first token", f"{1e3 * recent.first_token:,.0f} ms on average {span}"))
    events = [("preemptions", recent.change("preemptions")), ("tokens evicted", recent.change("evicted"))]
    events.append(("refused", sum(recent.refused().values()) if sample.refused else None))
    rows.append(("events", ", ".join(f"{value:,.0f} {name}" for name, value in events if value is not None)))
    return [(name, text) for name, text in rows if text]


def _hit_rate(sample: Sample, recent: Window) -> str:
    rate = recent.hit_rate
    if rate is not None:
        return f"{100 * rate:.1f} %"
    if sample.queries is None and sample.hit_rate is None:
        return "not counted by this engine,"
    return "no queries"


def _histories(samples: Sequence[Sample]) -> list[tuple[str, str]]:
    """Lines of bars over all samples: hit rate, and the share of the cache in use."""
    step = max(1, -(-(len(samples) - 1) // POINTS))
    edges = range(len(samples) - 1, -1, -step)
    windows = [Window(samples[max(0, edge - step) : edge + 1]) for edge in edges if edge > 0][::-1]
    return [
        ("  hit rate", "".join(bar(window.hit_rate) for window in windows)),
        ("  in use", "".join(bar(window.samples[-1].usage) for window in windows)),
    ]


def bar(share: float | None) -> str:
    """A share from 0 to 1 as a block of some height; a space where there is none."""
    if share is None:
        return " "
    return _BARS[min(len(_BARS) - 1, max(0, int(share * len(_BARS))))]


def _standing(standing: Mapping[str, Alarm]) -> list[str]:
    if not standing:
        return ["no alarm"]
    return [line for alarm in standing.values() for line in _wrap(f"ALARM {alarm.key}: {plain(alarm.line)}")]


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(plain(text), WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def plain(text: str) -> str:
    """Without what a server's labels may not do to a terminal."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)
