"""A real server whose client starts to head its prompts with a clock, looked at in virtual time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random

import httpx
import pytest

from pageinn.cli import main
from pageinn.watch.alarms import Alarm
from pageinn.watch.exposition import metrics_url
from pageinn.watch.sample import Sample
from pageinn.watch.watcher import Watcher, look
from served_pageinn import served_pageinn

SYSTEM = "You are the assistant of a library. You answer in one sentence and name the shelf of each book. " * 5


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with served_pageinn("--kv-cache-memory-bytes", "64MiB") as url:
        yield url


def prompt(second: int, clock: bool, rng: Random) -> str:
    """A system prompt and a question that nobody else asks; some 120 tokens, and 20 for a clock with milliseconds."""
    time = f"12:{second // 60:02}:{second % 60:02}.{rng.randrange(1000):03}"
    head = f"It is 30 November 2026, {time}. " if clock else ""
    return f"{head}{SYSTEM}Question {rng.randrange(10**6)}: where is shelf {rng.randrange(10**6)} of the maps?"


def test_a_fall_from_85_to_12_percent_by_a_clock_is_raised_within_a_minute(server: str) -> None:
    """One request a second of virtual time, looked at every five; only the watch's time is made up.

    With the clock, all that matches is what the clock has in common with the one before: the day, the hour, the minute.
    """
    watcher, rng, changed = Watcher(), Random(1), 280
    raised: list[tuple[float, Alarm]] = []
    with httpx.Client(timeout=60) as client:
        for second in range(340):
            body = {"prompt": prompt(second, second >= changed, rng), "max_tokens": 1, "temperature": 0}
            client.post(f"{server}/v1/completions", json=body).raise_for_status()
            if second % 5 == 4:
                now = second + 1.0
                raised += [(now, alarm) for alarm in watcher.add(look(client, metrics_url(server), now)).raised]
    # The first requests find nothing yet.
    assert 0.84 < rate(watcher.samples, 20, changed) < 0.87
    assert 0.11 < rate(watcher.samples, changed, 340) < 0.14
    assert [(alarm.key, changed < at <= changed + 60) for at, alarm in raised] == [("hit_rate", True)]
    assert raised[0][1].line.startswith("hit rate ")


def rate(samples: list[Sample], start: float, end: float) -> float:
    """Hits by queries from one look to another."""
    before, after = (next(one for one in samples if one.time == at) for at in (start, end))
    return ((after.hits or 0) - (before.hits or 0)) / ((after.queries or 0) - (before.queries or 0))


def test_the_seven_questions_on_a_real_server(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    """64 MiB are 182 blocks of 16 tokens at 23,040 bytes each."""
    httpx.post(f"{server}/v1/completions", json={"prompt": SYSTEM, "max_tokens": 1}, timeout=60).raise_for_status()
    assert main(["checkup", server, "--interval", "0.2", "--json"]) == 0
    got = {answer["key"]: answer for answer in json.loads(capsys.readouterr().out)["answers"]}
    assert {key: answer["answer"] for key, answer in got.items()} == {
        "users": "yes",
        "repeats": "no",
        "keeping": "yes",
        "variable": "not known",
        "fp8": "no",
        "preemption": "yes",
        "tenants": "no",
    }
    assert "in 2,912 tokens of cache" in got["users"]["figure"]
    assert got["fp8"]["figure"].startswith("cache in bfloat16")
