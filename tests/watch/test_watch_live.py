"""A real server whose client starts to head its prompts with a clock, looked at in virtual time."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from endpoints import model_server

from pageinn.cli import main
from pageinn.watch.alarms import Alarm
from pageinn.watch.exposition import metrics_url
from pageinn.watch.watcher import Watcher, look

SYSTEM = "You are the assistant of a library. You answer in one sentence and name the shelf of each book. " * 4


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with model_server() as url:
        yield url


def test_a_clock_at_the_head_of_the_prompt_is_raised_within_a_minute(server: str) -> None:
    """One request a second of virtual time, looked at every five; only the clock is made up.

    The 20 requests before the watch are the deploy's first: none of them says anything of the baseline.
    """
    watcher, now = Watcher(), 0.0
    raised: list[tuple[float, Alarm]] = []
    with httpx.Client(timeout=60) as client:
        for second in range(340):
            clock = f"It is {second // 60:02}:{second % 60:02}. " if second >= 280 else ""
            body = {"prompt": f"{clock}{SYSTEM}Question {second * 7919 % 1000}?", "max_tokens": 1, "temperature": 0}
            client.post(f"{server}/v1/completions", json=body).raise_for_status()
            now += 1
            if second % 5 == 4:
                raised += [(now, alarm) for alarm in watcher.add(look(client, metrics_url(server), now)).raised]
    assert [(alarm.key, 280 < at <= 340) for at, alarm in raised] == [("hit_rate", True)]
    assert raised[0][1].line.startswith("hit rate ")


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
