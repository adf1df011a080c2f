"""Retention, pins and shares on a real server: prefixes outlive a flood, and say so."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

ALICE, BOB, CAROL, DAVE, ADMIN = "sk-alice", "sk-bob", "sk-carol", "sk-dave", "sk-admin"
#: 182 blocks of 16 tokens.
KEYS = """
[tenants.alice]
keys = ["sk-alice"]
min_share = 0.3

[tenants.bob]
keys = ["sk-bob"]

[tenants.carol]
keys = ["sk-carol"]
max_share = 0.2
weight = 2

[tenants.dave]
keys = ["sk-dave"]
share = false

[tenants.operations]
keys = ["sk-admin"]
admin = true

[routes."/v1/chat/completions"]
share = true
"""

firsts = count(1000)


def prompt(length: int) -> list[int]:
    first = next(firsts)
    return [first, *((first * 31 + i * 17) % 40_000 + 100 for i in range(length - 1))]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def shared(start_server, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    path = tmp_path_factory.mktemp("shares") / "keys.toml"
    path.write_text(KEYS)
    made = start_server("--kv-cache-memory-bytes", "64MiB", "--threads", "2", "--api-keys", str(path))
    made.keys = path
    yield made
    assert made.stop() == 0, "".join(made.log)


@pytest.fixture
def clean(shared) -> Iterator:
    """The server with an empty cache."""
    shared.http.post("/reset_prefix_cache", headers=bearer(ADMIN))
    return shared


def usage(server, key: str, tokens: list[int], **more: object) -> dict[str, int]:
    """Complete a prompt; what became of its tokens."""
    body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, **more}
    got = server.http.post("/v1/completions", json=body, headers=bearer(key))
    assert got.status_code == 200, got.text
    return got.json()["usage"]["prompt_tokens_details"]


def flood(server, key: str = BOB, prompts: int = 5) -> None:
    """Unique prompts of 63 blocks each, by default more than the whole cache."""
    for _ in range(prompts):
        usage(server, key, prompt(1000))


def test_a_prefix_with_a_time_outlives_a_flood_and_the_answer_says_so(clean) -> None:
    kept, plain = prompt(160), prompt(160)
    control = {"type": "ephemeral", "ttl": "1h"}
    assert usage(clean, BOB, kept, cache_control=control) == {"cached_tokens": 0, "retained_tokens": 160}
    assert usage(clean, BOB, plain) == {"cached_tokens": 0}
    flood(clean)
    assert usage(clean, BOB, plain)["cached_tokens"] == 0
    assert usage(clean, BOB, kept)["cached_tokens"] == 159
    assert clean.metric("kv_blocks_retained") == 10
    too_long = usage(clean, BOB, prompt(1600), cache_control=control)
    assert too_long["retained_tokens"] == 0, "beyond a quarter of the cache it is an ordinary prefix"
    assert clean.metric("prefix_retentions_total", outcome="capped") == 1


def test_a_breakpoint_in_a_conversation_keeps_what_is_before_it(clean) -> None:
    """The document of the first part is kept, the question after it is not; a repeat hits at least the document."""
    document = " ".join(f"Section {number} of the manual is about lighthouses." for number in range(40))
    turns = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": document, "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "What is section 7 about?"},
            ],
        },
    ]
    body = {"messages": turns, "max_tokens": 1, "temperature": 0}
    details = clean.http.post("/v1/chat/completions", json=body, headers=bearer(BOB)).json()["usage"]
    before = clean.http.post(
        "/tokenize", json={"messages": [turns[0], {"role": "user", "content": document}]}, headers=bearer(BOB)
    ).json()["count"]
    retained = details["prompt_tokens_details"]["retained_tokens"]
    assert retained % 16 == 0
    assert before - 16 - 8 <= retained <= before, "a few tokens end the turn"
    flood(clean)
    turns[1]["content"][1] = {"type": "text", "text": "And section 8?"}
    again = clean.http.post("/v1/chat/completions", json=body, headers=bearer(BOB)).json()["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] == retained
    for part in turns[1]["content"]:
        part.pop("cache_control", None)
    plain = clean.http.post("/v1/chat/completions", json=body, headers=bearer(BOB)).json()["usage"]
    assert plain["prompt_tokens"] == again["prompt_tokens"], "a breakpoint is not part of the prompt"


@pytest.mark.parametrize(
    ("control", "words"),
    [
        ({"type": "ephemeral", "ttl": "2h"}, "'5m' or '1h'"),
        ({"type": "permanent"}, "ephemeral"),
        ({"ttl": "5m"}, "type"),
        ({"type": "ephemeral", "days": 1}, "days"),
    ],
)
def test_bad_breakpoints_are_refused_by_name(clean, control: dict, words: str) -> None:
    for body in (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": control}]}]},
        {"messages": [{"role": "user", "content": "a"}], "cache_control": control},
    ):
        got = clean.http.post("/v1/chat/completions", json=body, headers=bearer(BOB))
        assert got.status_code == 400
        assert words in got.json()["error"]["message"]


def test_a_request_has_four_breakpoints_at_most(clean) -> None:
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    body = {"messages": [{"role": "user", "content": [part] * 5}], "max_tokens": 1}
    got = clean.http.post("/v1/chat/completions", json=body, headers=bearer(BOB))
    assert got.status_code == 400
    assert "at most 4" in got.json()["error"]["message"]


def test_a_request_may_leave_the_cache_alone(clean) -> None:
    """Field case F5: one that does not read is in the queries, and bypassed."""
    tokens = prompt(100)
    assert usage(clean, BOB, tokens, skip_writing_prefix_cache=True)["cached_tokens"] == 0
    assert usage(clean, BOB, tokens)["cached_tokens"] == 0, "nothing was written"
    bypassed = clean.metric("prefix_cache_bypassed_total")
    assert usage(clean, BOB, tokens, skip_reading_prefix_cache=True)["cached_tokens"] == 0
    assert usage(clean, BOB, tokens, cache_prompt=False)["cached_tokens"] == 0
    assert clean.metric("prefix_cache_bypassed_total") == bypassed + 200
    assert usage(clean, BOB, tokens)["cached_tokens"] == 99
    body = {"prompt": tokens, "max_tokens": 4, "n": 3, "temperature": 0, "skip_writing_prefix_cache": True}
    got = clean.http.post("/v1/completions", json=body, headers=bearer(BOB)).json()
    assert len({choice["text"] for choice in got["choices"]}) == 1, "choices of a prompt that is not stored agree"


def test_a_tenant_without_a_part_in_reuse_leaves_nothing_and_finds_nothing(clean) -> None:
    tokens = prompt(100)
    for _ in range(2):
        assert usage(clean, DAVE, tokens, cache_control={"type": "ephemeral"}) == {"cached_tokens": 0}
    assert clean.blocks()["kept"] == 0


def test_a_minimum_outlives_a_flood_and_a_maximum_bounds(clean) -> None:
    """Alice's 50 blocks are within her 54; Bob's flood leaves them. Carol never keeps more than 36."""
    tokens = prompt(800)
    usage(clean, ALICE, tokens)
    flood(clean)
    assert usage(clean, ALICE, tokens)["cached_tokens"] == 799
    flood(clean, CAROL, 0)
    for _ in range(4):
        usage(clean, CAROL, prompt(300))
    assert 0 < clean.metric("tenant_kv_blocks", tenant="carol", state="kept") <= 36
    got = clean.http.post("/v1/completions", json={"prompt": prompt(700), "max_tokens": 1}, headers=bearer(CAROL))
    assert got.status_code == 400
    assert "its tenant may use 576" in got.json()["error"]["message"]
    assert clean.metric("tenant_evicted_blocks_total", tenant="bob") > 0
    assert clean.metric("tenant_prefix_cache_hits_total", tenant="alice") >= 799
    assert clean.metric("tenant_prefix_cache_queries_total", tenant="carol") >= 1200


def test_shares_are_read_again_on_hangup(clean, comes_true) -> None:
    def hang_up(text: str, said: str) -> None:
        clean.keys.write_text(text)
        seen = len(clean.log)
        clean.process.send_signal(signal.SIGHUP)
        assert comes_true(lambda: any(said in line for line in clean.log[seen:]))

    tokens = prompt(800)
    usage(clean, ALICE, tokens)
    try:
        too_much = KEYS.replace("min_share = 0.3", "min_share = 0.6").replace("max_share = 0.2", "min_share = 0.5")
        hang_up(too_much, "add up to 1.1")
        flood(clean)
        assert usage(clean, ALICE, tokens)["cached_tokens"] == 799, "the old shares hold"
        less = KEYS.replace("min_share = 0.3", "max_share = 0.1").replace("share = true", "share = false")
        hang_up(less, "keys of 5 tenants read")
        assert comes_true(lambda: clean.metric("tenant_kv_blocks", tenant="alice", state="kept") == 18)
        body = {"messages": [{"role": "user", "content": "A question that is longer than a block. " * 5}]}
        for _ in range(2):
            got = clean.http.post("/v1/chat/completions", json={**body, "max_tokens": 1}, headers=bearer(BOB))
            assert got.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "the route has no part in reuse"
    finally:
        hang_up(KEYS, "keys of 5 tenants read")


def pin(server, **body: object) -> dict:
    got = server.http.post("/cache/pins", json=body, headers=bearer(ADMIN))
    assert got.status_code == 200, got.text
    return got.json()


def test_pins_are_added_listed_and_taken_away(clean) -> None:
    public, own = prompt(100), prompt(64)
    first = pin(clean, prompt=public)
    assert first["tenant"] is None
    assert (first["tokens"], first["blocks"], first["cached_tokens"]) == (96, 6, 0)
    second = pin(clean, prompt=own, tenant="bob")
    assert (second["tenant"], second["tokens"]) == ("bob", 64)
    flood(clean)
    assert usage(clean, ALICE, public)["cached_tokens"] == 96
    assert usage(clean, BOB, own)["cached_tokens"] == 63
    assert usage(clean, ALICE, own)["cached_tokens"] == 0
    listed = clean.http.get("/cache/pins", headers=bearer(ADMIN)).json()["data"]
    assert [entry["id"] for entry in listed] == [first["id"], second["id"]]
    gone = clean.http.delete(f"/cache/pins/{second['id']}", headers=bearer(ADMIN))
    assert gone.json() == {"id": second["id"], "object": "cache.pin", "deleted": True}
    assert clean.http.delete(f"/cache/pins/{second['id']}", headers=bearer(ADMIN)).status_code == 404
    flood(clean)
    assert usage(clean, BOB, own)["cached_tokens"] == 0
    assert clean.http.get("/cache/pins", headers=bearer(ALICE)).status_code == 403


def test_pins_are_capped_and_never_stop_a_request(clean) -> None:
    """91 of 182 blocks may be pinned; a prompt that needs the whole cache still gets it, and the list says so."""
    pin(clean, prompt=prompt(1408))
    got = clean.http.post("/cache/pins", json={"prompt": prompt(200)}, headers=bearer(ADMIN))
    assert (got.status_code, got.json()["error"]["code"]) == (409, "pins_full")
    assert usage(clean, BOB, prompt(2900))["cached_tokens"] == 0
    [listed] = clean.http.get("/cache/pins", headers=bearer(ADMIN)).json()["data"]
    assert listed["blocks"] == 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "give one of prompt and messages"),
        ({"prompt": [5] * 20, "tenant": "eve"}, "there is no tenant 'eve'"),
        ({"prompt": [5] * 20, "cache_salt": "s"}, "what is public has no salt"),
        ({"prompt": [5] * 20, "tenant": ""}, "tenant must be a string"),
        ({"prompt": [5] * 20, "tenant": "dave"}, "tenant 'dave' has share = false"),
        ({"prompt": [5] * 15}, "whole blocks are pinned"),
        ({"prompt": [5] * 20, "n": 2}, "'n' is not supported"),
    ],
)
def test_what_cannot_be_pinned(clean, body: dict, words: str) -> None:
    got = clean.http.post("/cache/pins", json=body, headers=bearer(ADMIN))
    assert got.status_code == 400
    assert words in got.json()["error"]["message"]


def test_warm_fills_the_cache_from_a_file(clean, tmp_path: Path) -> None:
    """Each line is warmed for its tenant, published or pinned; a broken line is named, and does not stop the others."""
    kept, public, warmed = prompt(64), prompt(64), prompt(64)
    lines = [
        json.dumps({"prompt": kept, "tenant": "bob", "pin": True}),
        json.dumps({"prompt": public}),
        "not json",
        json.dumps({"prompt": warmed, "tenant": "nobody", "pin": True}),
        "",
        r'{"prompt": "half of a pair: \ud800", "pin": true}',
        '{"prompt": NaN}',
    ]
    path = tmp_path / "prefixes.jsonl"
    path.write_text("\n".join(lines))
    command = [sys.executable, "-m", "pageinn.cli", "warm", str(path), "--url", clean.url]
    env = {"PAGEINN_API_KEY": ADMIN, "PATH": ""}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert result.returncode == 1
    assert "line 3" in result.stderr
    assert "line 4" in result.stderr
    assert "there is no tenant 'nobody'" in result.stderr
    assert "line 6: 400: the body holds half of a surrogate pair" in result.stderr
    assert "line 7: 400: the body is not valid JSON: NaN" in result.stderr
    assert result.stdout.splitlines()[-1] == "2 prefixes, 128 tokens: 1 published, 1 pinned, 4 lines failed"
    assert usage(clean, ALICE, public)["cached_tokens"] == 63
    flood(clean)
    assert usage(clean, BOB, kept)["cached_tokens"] == 63
