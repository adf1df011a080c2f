"""GET /cache/misses on a live server: the field's cases, each named by the record and by the reasons."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

RULES = "\n".join(
    f"Rule {i}: an answer about item {i} names its shelf, its row and its price in crowns." for i in range(24)
)


@pytest.fixture(scope="module")
def shop(start_server, qwen_path: Path) -> Iterator[Any]:
    """A tiny model with Qwen 3's template, and text shown to admins."""
    made = start_server(str(qwen_path), "--kv-cache-memory-bytes", "16MiB", "--threads", "1", "--show-prompt-text")
    yield made
    assert made.stop() == 0, "".join(made.log)


def chat(server, system: str, user: str = "What costs item 3?", **fields: Any) -> httpx.Response:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    body = {"messages": messages, "max_tokens": 2, "temperature": 0, **fields}
    got = server.http.post("/v1/chat/completions", json=body)
    assert got.status_code == 200, got.text
    return got


def misses(server, limit: int = 50) -> dict[str, Any]:
    """The answer once nothing is pending: looking is allowed a small share of one core, so a slow one takes a while."""
    deadline = time.monotonic() + 120
    while True:
        got = server.http.get("/cache/misses", params={"limit": limit})
        assert got.status_code == 200, got.text
        if not got.json()["pending"]:
            return got.json()
        assert time.monotonic() < deadline, "requests are pending for ever"
        time.sleep(0.2)


def newest(server) -> dict[str, Any]:
    return misses(server, limit=1)["records"][0]


def reason(server, kind: str, part: str) -> dict[str, Any]:
    (found,) = [one for one in misses(server)["reasons"] if (one["kind"], one["part"]) == (kind, part)]
    return found


def test_a_clock_at_the_head_of_the_system_prompt_is_named(shop) -> None:
    """Field cases H1 and H3: the line, the offset, the granularity, and what each change costs."""
    for second in range(10, 14):
        got = chat(shop, f"It is 2026-11-30 12:00:{second}.\n{RULES}")
    usage = got.json()["usage"]
    record = newest(shop)
    assert record["id"] == got.json()["id"]
    assert (record["kind"], record["detail"], record["part"], record["line"]) == ("clock", "second", "system", 1)
    assert record["prompt_tokens"] == usage["prompt_tokens"]
    assert record["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    # The tokens before the digits that differ are those that were found.
    assert 0 <= record["position"] - record["cached_tokens"] <= 1
    assert record["tokens"] > 300
    assert record["example"]["later"].endswith("12:00:13")
    assert "behind what stays the same" in record["fix"]
    clock = reason(shop, "clock", "system")
    assert clock["requests"] == 3
    assert clock["avoidable"]
    assert misses(shop)["reasons"][0] == clock


def test_keys_of_a_tool_in_another_order_are_the_same_meaning(shop) -> None:
    """Field case H4, with the order of an enum left alone."""
    shuffle = random.Random(4)
    properties = {
        name: {"type": "string", "description": f"The {name} of the item."} for name in ("row", "shelf", "size")
    }
    for number in range(4):
        names = sorted(properties) if number == 0 else shuffle.sample(sorted(properties), 3)
        parameters = {"type": "object", "properties": {name: properties[name] for name in names}}
        function = {"name": "find_item", "description": "Finds an item. " * 9, "parameters": parameters}
        last = chat(shop, f"H4. {RULES}", tools=[{"type": "function", "function": function}])
        if names != sorted(properties):
            break
    record = newest(shop)
    assert record["id"] == last.json()["id"]
    assert (record["kind"], record["part"]) == ("key order", "tool 1 'find_item'")
    assert "sort_keys" in record["fix"]


def test_a_tool_that_joins_is_named(shop) -> None:
    """Field case H5."""

    def tool(name: str) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "description": "Looks. " * 20, "parameters": {}}}

    chat(shop, f"H5. {RULES}", tools=[tool("alpha"), tool("gamma")])
    chat(shop, f"H5. {RULES}", tools=[tool("alpha"), tool("beta"), tool("gamma")])
    record = newest(shop)
    assert record["kind"] == "tools added or removed"
    assert "beta" in record["detail"]


def test_an_identifier_inside_a_path_is_the_only_difference(shop) -> None:
    """Field case H2."""
    for name in ("3f2b8c1e-5d7a-4e21-9b0c-8a1d2e3f4a5b", "a91c77d0-1b2c-4d3e-8f90-123456789abc"):
        chat(shop, f"H2. Files are in /srv/sessions/{name}/work.\n{RULES}")
    record = newest(shop)
    assert (record["kind"], record["detail"], record["part"]) == ("id", "UUID", "system")


def test_a_question_of_its_own_is_not_blamed(shop) -> None:
    """Field case H7: what parts for good is content, and the same words a second time are all there."""
    chat(shop, f"H7. {RULES}", "Which items are red?")
    chat(shop, f"H7. {RULES}", "How much do the blue ones weigh together?")
    record = newest(shop)
    assert (record["end"], record["kind"], record["tokens"], record["fix"]) == ("parted", "content", 0, "")
    assert record["cached_tokens"] > 300
    chat(shop, f"H7. {RULES}", "How much do the blue ones weigh together?")
    assert newest(shop)["end"] == "whole prompt"


def test_a_prompt_that_goes_on_where_an_answer_ended(shop) -> None:
    """A conversation's next turn: nothing differs, the rest is new. Behind another answer it parts, by content."""
    prompt = shop.http.post("/tokenize", json={"prompt": f"Goes on. {RULES}"}).json()["tokens"]
    shop.complete(prompt, max_tokens=20, logit_bias={"70": 100}, ignore_eos=True)
    shop.complete([*prompt, *[70] * 20, 71, 72, 73], max_tokens=1)
    assert newest(shop)["end"] == "goes on"
    assert newest(shop)["cached_tokens"] > len(prompt)
    shop.complete([*prompt, *[70] * 10, 71, 72, 73], max_tokens=1)
    assert (newest(shop)["end"], newest(shop)["kind"]) == ("parted", "content")


def test_a_short_prompt_is_below_the_granularity(shop) -> None:
    """Field case F4."""
    shop.complete("F4")
    assert newest(shop)["end"] == "below granularity"


def test_a_request_that_does_not_read_says_so(shop) -> None:
    """Field case F5."""
    chat(shop, f"F5. {RULES}")
    chat(shop, f"F5. {RULES}", skip_reading_prefix_cache=True)
    record = newest(shop)
    assert (record["end"], record["detail"], record["cached_tokens"]) == ("not read", "skip_reading_prefix_cache", 0)
    assert record["tokens"] > 300


def test_another_salt_is_another_scope(shop) -> None:
    """Field case C2, told to the operator: the prompt is there, under another salt."""
    chat(shop, f"C2. {RULES}", cache_salt="a")
    chat(shop, f"C2. {RULES}", cache_salt="b")
    record = newest(shop)
    assert (record["end"], record["cached_tokens"]) == ("other scope", 0)
    # Salts keep users apart, so that they are told apart by names that open nothing.
    chat(shop, f"C2 once more. {RULES}", cache_salt="b")
    names = [each["cache_salt"] for each in shop.http.get("/cache/misses", params={"limit": 3}).json()["records"]]
    assert names[0] == names[1] != names[2]
    assert all(len(bytes.fromhex(name)) == 6 for name in names)


def test_it_says_where_the_tokens_were(shop) -> None:
    """On the device, and how many of them are public."""
    messages = [{"role": "system", "content": f"Public. {RULES}"}]
    published = shop.http.post("/cache/public", json={"messages": messages}).json()["tokens"]
    assert newest(shop)["tenant"] is None
    chat(shop, f"Public. {RULES}", "Is this read?")
    record = newest(shop)
    assert record["from"]["device"] == record["cached_tokens"]
    assert record["from"]["host"] == record["from"]["disk"] == 0
    assert published // 16 * 16 <= record["from"]["public"] <= record["cached_tokens"]


def test_what_a_reset_dropped_is_told_from_what_was_evicted(shop) -> None:
    chat(shop, f"Reset. {RULES}")
    assert shop.http.post("/reset_prefix_cache").status_code == 200
    chat(shop, f"Reset. {RULES}")
    assert newest(shop)["end"] == "reset"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_asks_gets_a_header(shop, stream: bool) -> None:
    """What was found and why no more, and nothing of it in an answer to one who does not ask."""
    asking = {"X-Cache-Match": "1"}
    for second in (21, 22):
        messages = [{"role": "system", "content": f"Header {stream}. It is 12:00:{second}.\n{RULES}"}]
        body = {"messages": messages, "max_tokens": 2, "stream": stream}
        got = shop.http.post("/v1/chat/completions", json=body, headers=asking)
    record = newest(shop)
    cached, prompt, position = (record[name] for name in ("cached_tokens", "prompt_tokens", "position"))
    assert got.headers["x-cache-match"] == (
        f"cached={cached}; prompt={prompt}; end=parted; kind=clock; part=system; position={position}"
    )
    assert "x-cache-match" not in shop.http.post("/v1/chat/completions", json=body).headers
    several = {"prompt": ["one prompt", "and another"], "max_tokens": 1}
    assert "x-cache-match" not in shop.http.post("/v1/completions", json=several, headers=asking).headers


def test_a_header_tells_nothing_of_another_scope(shop) -> None:
    body = {"messages": [{"role": "user", "content": f"Hush. {RULES}"}], "max_tokens": 1, "cache_salt": "a"}
    assert shop.http.post("/v1/chat/completions", json=body).status_code == 200
    body["cache_salt"] = "never before"
    got = shop.http.post("/v1/chat/completions", json=body, headers={"X-Cache-Match": "1"})
    assert "scope" not in got.headers["x-cache-match"]
    assert got.headers["x-cache-match"].startswith("cached=0; ")
    assert newest(shop)["end"] == "other scope"


@pytest.mark.parametrize("limit", ["many", "-1", "1025", "9" * 5000])
def test_a_bad_limit_is_refused_by_name(shop, limit: str) -> None:
    got = shop.http.get("/cache/misses", params={"limit": limit})
    assert got.status_code == 400
    assert got.json()["error"]["param"] == "limit"


def test_what_is_shown(shop) -> None:
    """The form that a dashboard relies on."""
    got = misses(shop)
    assert {"version", "masked", "requests", "pending", "reasons", "records"} <= got.keys()
    assert got["masked"] is False
    for one in got["reasons"]:
        assert {"part", "kind", "position", "requests", "tokens", "example", "fix", "avoidable"} <= one.keys()
    json.dumps(got, allow_nan=False)


def test_the_log_says_once_that_what_prompts_begin_with_has_changed(
    start_server, qwen_path: Path, tmp_path, comes_true
) -> None:
    """A new rule in the system prompt; then a restart with nothing changed. The text is masked."""
    flags = (str(qwen_path), "--kv-cache-memory-bytes", "4MiB", "--threads", "1")

    def lines(server) -> list[str]:
        return [line for line in server.log if "begin with head" in line]

    server = start_server(*flags, "--prompt-heads", str(tmp_path / "heads.json"))
    rules = RULES[:900]
    for _ in range(12):
        chat(server, rules, max_tokens=1)
    assert comes_true(lambda: len(lines(server)) == 1)
    for _ in range(24):
        chat(server, rules.replace("item 5 names", "item 5 never names"), max_tokens=1)
    assert comes_true(lambda: len(lines(server)) == 2)
    assert "line 7 differs: 'Xxxx 0: xx xxxxxx xxxxx xxxx 0 xxxxx xxxxx" in lines(server)[1]
    deploys = server.http.get("/cache/misses").json()["deploys"]
    assert [deploy["line"] for deploy in deploys] == [7, 0]
    assert server.stop() == 0
    server = start_server(*flags, "--prompt-heads", str(tmp_path / "heads.json"))
    for _ in range(12):
        chat(server, rules.replace("item 5 names", "item 5 never names"), max_tokens=1)
    assert comes_true(lambda: len(lines(server)) == 1)
    assert lines(server)[0].strip().endswith("as before the restart")
    assert server.stop() == 0


KEYS = """
[tenants.alice]
keys = ["sk-alice"]
[tenants.bob]
keys = ["sk-bob"]
share = false
[tenants.operator]
keys = ["sk-operator"]
admin = true
"""


@pytest.fixture(scope="module")
def guarded(start_server, qwen_path: Path, tmp_path_factory) -> Iterator[Any]:
    """A server with keys, little memory, and text masked as by default."""
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(KEYS)
    made = start_server(*(str(qwen_path), "--kv-cache-memory-bytes", "1MiB", "--threads", "1", "--api-keys", str(path)))
    yield made
    assert made.stop() == 0, "".join(made.log)


def as_tenant(server, key: str) -> None:
    server.http.headers["authorization"] = f"Bearer {key}"


def test_only_an_admin_may_look_and_text_is_masked(guarded) -> None:
    as_tenant(guarded, "sk-alice")
    chat(guarded, f"Secret 12:00:01 for Zebedee.\n{RULES[:900]}")
    chat(guarded, f"Secret 12:00:02 for Zebedee.\n{RULES[:900]}")
    assert guarded.http.get("/cache/misses").status_code == 403
    guarded.http.headers.pop("authorization")
    assert guarded.http.get("/cache/misses").status_code == 401
    as_tenant(guarded, "sk-operator")
    got = misses(guarded)
    assert got["masked"] is True
    assert got["records"][0]["kind"] == "clock"
    assert got["records"][0]["example"]["later"] == "00:00:00"
    assert "Zebedee" not in json.dumps(got)


def test_a_tenant_without_a_part_in_reuse(guarded) -> None:
    as_tenant(guarded, "sk-bob")
    chat(guarded, f"Bob. {RULES[:900]}")
    as_tenant(guarded, "sk-operator")
    record = newest(guarded)
    assert (record["tenant"], record["end"]) == ("bob", "not read")
    assert "share = false" in record["detail"]


def test_what_was_evicted_is_called_so(guarded) -> None:
    as_tenant(guarded, "sk-alice")
    chat(guarded, f"Evicted. {RULES[:900]}")
    for number in range(12):
        guarded.complete(f"{number} fills the pool. {RULES[:1500]}", max_tokens=1)
    chat(guarded, f"Evicted. {RULES[:900]}")
    as_tenant(guarded, "sk-operator")
    record = newest(guarded)
    assert record["end"] == "evicted"
    assert record["tokens"] > 100
    assert "--kv-cache-memory-bytes" in record["fix"]
