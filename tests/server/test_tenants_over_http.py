"""Keys, tenants and public prefixes on a real server: who is let in, and who hits what."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from pathlib import Path

import httpx
import openai
import pytest

ALICE, BOB, ADMIN, JOINED = "sk-alice", "sk-bob", "sk-admin", "sk-joined"
KEYS = f"""
[tenants.alice]
keys = ["{ALICE}"]

[tenants.bob]
key_sha256 = ["{sha256(BOB.encode()).hexdigest()}"]

[tenants.operations]
keys = ["{ADMIN}"]
admin = true

[tenants.org_1]
keys = ["sk-org-1"]

[tenants.org_12345]
keys = ["{JOINED}"]
"""
METRICS_KEY = "scrape"

#: First tokens of prompts, so that no two prompts of this file have a token in common at their start.
firsts = count(1000)


def prompt(length: int = 40) -> list[int]:
    first = next(firsts)
    return [first, *((first * 31 + i * 17) % 40_000 + 100 for i in range(length - 1))]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def keyed(start_server, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(KEYS)
    made = start_server(
        "--kv-cache-memory-bytes", "64MiB", "--threads", "2", "--api-keys", str(path), "--metrics-key", METRICS_KEY
    )
    made.keys = path
    made.http.headers.update(bearer(METRICS_KEY))
    yield made
    assert made.stop() == 0, "".join(made.log)


def read(server, key: str, tokens: list[int], salt: str | None = None, **more: object) -> int:
    """Complete a prompt; its cached tokens."""
    body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, "cache_salt": salt, **more}
    got = server.http.post("/v1/completions", json=body, headers=bearer(key))
    assert got.status_code == 200, got.text
    return got.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def publish(server, **body: object) -> dict:
    got = server.http.post("/cache/public", json=body, headers=bearer(ADMIN))
    assert got.status_code == 200, got.text
    return got.json()


WRITERS = [(ALICE, None), (ALICE, "s"), (BOB, None), (BOB, "s"), ("public", None)]
READERS = WRITERS[:-1]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_who_hits_what(keyed, writer: tuple[str, str | None], reader: tuple[str, str | None]) -> None:
    """Field case C2 and its table: a scope hits itself and what is public, and nothing else."""
    tokens = prompt()
    if writer[0] == "public":
        publish(keyed, prompt=tokens)
    else:
        assert read(keyed, writer[0], tokens, writer[1]) == 0
    hit = writer in (reader, ("public", None))
    assert read(keyed, reader[0], tokens, reader[1]) == (len(tokens) - 1 if hit else 0)
    assert read(keyed, reader[0], tokens, reader[1]) == len(tokens) - 1, "a repeat of one's own always hits"


def test_nobody_takes_anothers_identity(keyed) -> None:
    """Field case C3: the tenant is the key's, whatever else a request says."""
    tokens = prompt()
    assert read(keyed, ALICE, tokens) == 0
    assert read(keyed, BOB, tokens, "alice") == 0
    assert read(keyed, BOB, tokens, "alice\0") == 0
    assert read(keyed, BOB, tokens, user="alice", metadata={"tenant": "alice"}) == 0
    other = prompt()
    assert read(keyed, ALICE, other) == 0
    claims = {**bearer(BOB), "x-tenant": "alice", "openai-organization": "alice", "x-api-key": ALICE}
    body = {"prompt": other, "max_tokens": 1}
    usage = keyed.http.post("/v1/completions", json=body, headers=claims).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_tenant_and_a_salt_are_not_joined(keyed) -> None:
    """Field case C4: ("org_1", "2345") is not "org_12345"."""
    tokens = prompt()
    assert read(keyed, "sk-org-1", tokens, "2345") == 0
    assert read(keyed, JOINED, tokens) == 0
    assert read(keyed, "sk-org-1", tokens, "2345") > 0


def test_what_hangs_below_a_public_prefix_is_private(keyed) -> None:
    public, tail = prompt(48), prompt(32)
    assert publish(keyed, prompt=public)["cached_tokens"] == 0
    assert read(keyed, ALICE, public + tail) == len(public)
    assert read(keyed, BOB, public + tail) == len(public)
    assert read(keyed, ALICE, public + tail) == len(public + tail) - 1


@pytest.mark.parametrize("length", [16, 37, 64])
def test_nothing_but_the_prefix_is_published(keyed, tokenizer, comes_true, length: int) -> None:
    """The token that the prefill generates has no keys and values: it takes no block and is nobody's hit."""
    tokens = prompt(length)
    keyed.http.post("/reset_prefix_cache", headers=bearer(ADMIN))
    answer = publish(keyed, prompt=tokens)
    blocks = -(-length // 16)
    assert answer == {
        "object": "cache.public",
        "model": answer["model"],
        "tokens": length,
        "blocks": blocks,
        "cached_tokens": 0,
    }
    assert comes_true(lambda: keyed.blocks()["in_use"] == 0)
    assert keyed.blocks()["kept"] == blocks
    body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, "logprobs": 0, "ignore_eos": True, "cache_salt": "x"}
    choice = keyed.http.post("/v1/completions", json=body, headers=bearer(BOB)).json()["choices"][0]
    sampled = tokenizer.encode(choice["logprobs"]["tokens"][0])
    assert len(sampled) == 1
    assert read(keyed, BOB, [*tokens, *sampled, *prompt(20)]) == length
    assert publish(keyed, prompt=tokens)["cached_tokens"] == length - 1


def test_a_conversations_beginning_is_published_without_the_turn_to_come(keyed) -> None:
    system = {"role": "system", "content": "You answer as a lighthouse keeper, briefly and with the weather in mind."}
    answer = publish(keyed, messages=[system])
    for key in (ALICE, BOB):
        body = {"messages": [system, {"role": "user", "content": f"I am {key}."}], "max_tokens": 1}
        usage = keyed.http.post("/v1/chat/completions", json=body, headers=bearer(key)).json()["usage"]
        # What follows begins with <|im_start|>user; a generation prompt in the prefix would begin with <|im_start|>
        # too and then differ, so nothing of one is in the count.
        assert usage["prompt_tokens_details"]["cached_tokens"] == answer["tokens"]


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, None, "give one of prompt and messages"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, None, "give one of prompt and messages"),
        ({"prompt": "a", "cache_salt": "s"}, "cache_salt", "'cache_salt' is not supported here"),
        ({"prompt": "a", "max_tokens": 3}, "max_tokens", "not supported"),
        ({"prompt": ["a", "b"]}, "prompt", "2 prompts are given"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": [70_000]}, "prompt", "out of range"),
        ({"prompt": [1] * 2912}, "prompt", "context is 2912"),
        ({"prompt": "a", "model": "gpt-4"}, "model", "does not exist"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "sailor", "content": "a"}]}, "messages[0].role", "sailor"),
    ],
)
def test_what_cannot_be_published(keyed, body: dict, param: str | None, words: str) -> None:
    got = keyed.http.post("/cache/public", json=body, headers=bearer(ADMIN))
    assert got.status_code in (400, 404)
    error = got.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
    assert "\n" not in error["message"]


ROUTES = [
    ("GET", "/v1/models"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/cache/public"),
    ("GET", "/openapi.json"),
    ("GET", "/no-such-page"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize("given", [None, "Bearer", "Basic " + ALICE, "Bearer sk-alic", "Bearer " + METRICS_KEY])
def test_without_a_good_key_nothing_is_answered(keyed, method: str, path: str, given: str | None) -> None:
    headers = {} if given is None else {"authorization": given}
    with httpx.Client(base_url=keyed.url, timeout=60) as bare:
        got = bare.request(method, path, headers=headers, json={} if method == "POST" else None)
    assert got.status_code == 401
    assert got.headers["www-authenticate"] == "Bearer"
    error = got.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == ("invalid_api_key" if given and given.startswith("Bearer s") else "missing_api_key")


def test_the_official_client_knows_these_errors(keyed) -> None:
    wrong = openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="sk-wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError, match="not known"):
        wrong.models.list()
    right = openai.OpenAI(base_url=f"{keyed.url}/v1", api_key=ALICE, max_retries=0)
    assert right.models.list().data


def test_only_an_admin_touches_the_cache_of_all(keyed) -> None:
    for path in ("/reset_prefix_cache", "/cache/public", "/cache/anything"):
        got = keyed.http.post(path, headers=bearer(ALICE), json={"prompt": "a"})
        assert got.status_code == 403
        assert got.json()["error"]["code"] == "admin_only"
    assert keyed.http.post("/reset_prefix_cache", headers=bearer(ADMIN)).status_code == 200


def test_health_is_open_and_metrics_have_a_key_of_their_own(keyed) -> None:
    with httpx.Client(base_url=keyed.url, timeout=60) as bare:
        assert bare.get("/health").status_code == 200
        assert bare.get("/metrics").status_code == 401
        assert bare.get("/metrics", headers=bearer(ADMIN)).status_code == 401
        assert bare.get("/metrics", headers=bearer(METRICS_KEY)).status_code == 200


def test_keys_are_read_again_on_hangup(keyed, comes_true) -> None:
    """A bad file is refused in one line and the old keys stay; a good one takes effect without a restart."""

    def status(key: str) -> int:
        return keyed.http.get("/v1/models", headers=bearer(key)).status_code

    def hang_up(text: str, said: str) -> None:
        keyed.keys.write_text(text)
        seen = len(keyed.log)
        keyed.process.send_signal(signal.SIGHUP)
        assert comes_true(lambda: any(said in line for line in keyed.log[seen:]))
        assert len(keyed.log) == seen + 1

    try:
        hang_up(KEYS.replace("[tenants.bob]", "[tenants.bob"), "keys stay as they were")
        assert (status(BOB), status("sk-carol")) == (200, 401)
        hang_up('[tenants.carol]\nkeys = ["sk-carol"]', "keys of 1 tenants read")
        assert (status(BOB), status("sk-carol")) == (401, 200)
    finally:
        hang_up(KEYS, "keys of 5 tenants read")
    assert (status(BOB), status("sk-carol")) == (200, 401)


def test_without_keys_everybody_is_one_tenant_who_may_do_all(server) -> None:
    tokens = prompt()
    assert read(server, "any", tokens) == 0
    assert read(server, "other", tokens) == len(tokens) - 1
    assert server.http.post("/cache/public", json={"prompt": prompt()}).json()["tokens"] == 40
    assert not any("warning" in line for line in server.log)


def test_without_keys_an_open_address_gets_a_warning_and_live_sharing_publishes_nothing(start_server) -> None:
    made = start_server("--host", "0.0.0.0", "--kv-cache-memory-bytes", "32MiB", "--prefix-cache", "live")
    try:
        assert sum("warning: no --api-keys" in line for line in made.log) == 1
        got = made.http.post("/cache/public", json={"prompt": "a"})
        assert got.status_code == 409
        assert "--prefix-cache keep" in got.json()["error"]["message"]
    finally:
        made.stop()


def test_a_bad_file_of_keys_stops_the_start_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text("[tenants.alice]\nkeys = ['sk-secret', '']")
    command = [sys.executable, "-m", "pageinn.cli", "serve", "--port", "0", "--api-keys", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("pageinn: error: ")
    assert "tenants.alice.keys[1]" in result.stderr
    assert "secret" not in result.stderr


def test_the_commands_bring_a_key(keyed) -> None:
    command = [sys.executable, "-m", "pageinn.cli", "chat", "--url", keyed.url, "--max-tokens", "4"]
    for key, code, words in ((None, 1, "PAGEINN_API_KEY"), ("sk-wrong", 1, "401"), (ALICE, 0, "prompt tokens cached")):
        env = {name: value for name, value in os.environ.items() if name != "PAGEINN_API_KEY"}
        env |= {} if key is None else {"PAGEINN_API_KEY": key}
        result = subprocess.run(
            command, input="Hi.\n", capture_output=True, text=True, timeout=60, check=False, env=env
        )
        assert result.returncode == code
        assert words in result.stderr
