"""Scrape, remember, raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import httpx

from pageinn.watch.alarms import Alarm, alarms
from pageinn.watch.engines import sample_of
from pageinn.watch.exposition import ScrapeError, scrape
from pageinn.watch.history import KEPT
from pageinn.watch.sample import Sample


class Change(NamedTuple):
    """Alarms that this sample raised, and keys of those that it ended."""

    raised: list[Alarm]
    ended: list[str]


class Watcher:
    """One server's samples, oldest first, and the alarms that stand.

    An alarm is raised once and ends once, however long it lasts.
    """

    def __init__(self, samples: Sequence[Sample] = ()) -> None:
        self.samples = list(samples)
        self.standing: dict[str, Alarm] = {}

    def add(self, sample: Sample) -> Change:
        """Take a sample. One of another engine starts anew."""
        if self.samples and self.samples[-1].engine != sample.engine:
            self.samples.clear()
        self.samples.append(sample)
        while sample.time - self.samples[0].time > KEPT:
            del self.samples[0]
        now = {alarm.key: alarm for alarm in alarms(self.samples)}
        change = Change(
            [alarm for key, alarm in now.items() if key not in self.standing],
            [key for key in self.standing if key not in now],
        )
        self.standing = now
        return change


def look(client: httpx.Client, url: str, time: float) -> Sample:
    """Scrape once. Raises ScrapeError, which names the URL."""
    try:
        return sample_of(scrape(client, url), time)
    except ScrapeError as error:
        message = str(error)
        raise ScrapeError(message if url in message else f"{url}: {message}") from error


def post(client: httpx.Client, webhook: str, url: str, change: Change, time: float) -> str | None:
    """Tell a webhook what changed; returns what went wrong, or None.

    The body: {"url", "time", "raised": [{"alarm", "line"}], "ended": [name]}.
    """
    body = {
        "url": url,
        "time": time,
        "raised": [{"alarm": alarm.key, "line": alarm.line} for alarm in change.raised],
        "ended": change.ended,
    }
    try:
        got = client.post(webhook, json=body)
    except (httpx.TransportError, httpx.InvalidURL) as error:
        return f"the webhook cannot be reached: {str(error) or type(error).__name__}"
    return None if got.is_success else f"the webhook answers {got.status_code}"
