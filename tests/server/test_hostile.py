"""Clients that mean harm or cannot do better: none crashes or stalls the server, and all is freed in the end."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

CHAT = {
    "model": "tiny-qwen",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "x"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"enum": [1, 2]}}}},
        }
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "max_tokens": 3,
    "temperature": 0.5,
    "logprobs": True,
    "top_logprobs": 1,
    "stop": ["x"],
    "logit_bias": {"5": 1},
    "stream": False,
    "n": 2,
}
COMPLETION = {"prompt": ["a", "b"], "max_tokens": 3, "logprobs": 1, "seed": 3, "cache_salt": "s", "min_tokens": 1}
FORCED = {**CHAT, "logprobs": None, "top_logprobs": None, "tool_choice": "required"}
BASES = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", FORCED),
    ("/v1/completions", COMPLETION),
    ("/v1/completions", {**COMPLETION, "response_format": {"type": "json_object"}}),
    ("/tokenize", {"messages": CHAT["messages"], "tools": CHAT["tools"]}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
    ("/cache/public", {"messages": CHAT["messages"][:2]}),
]
ODD = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 1e308, -0.0, 0.5, "", "a", "\x00", "😀" * 50,
    "required", "none", "<tool_call>", "{{ 1/0 }}", [], {}, [[]], [{}], [None], {"": None}, {"type": "text"},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}, {"type": "object"}, ["x"] * 40,
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, {"pattern": "(a+)+$", "type": "string"},
    {"a": {"b": {"c": [1, [2, [3]]]}}}, "9" * 400, [1] * 300, 10**400, {"enum": []}, {"type": ["object", 3]},
]  # fmt: skip


@pytest.fixture(scope="module")
def target(start_server, qwen_path) -> Iterator:
    flags = ("--kv-cache-memory-bytes", "1MiB", "--max-model-len", "1024", "--threads", "1")
    made = start_server(str(qwen_path), *flags)
    yield made
    assert made.stop() == 0, "".join(made.log)


@pytest.fixture(autouse=True)
def _unharmed(target, comes_true) -> Iterator[None]:
    """After each test the server answers, owns all its blocks, and has not made a mistake."""
    yield
    assert target.http.get("/ready").status_code == 200
    assert target.complete("still here", max_tokens=2)["usage"]["completion_tokens"] == 2
    assert comes_true(lambda: target.blocks()["in_use"] == 0)
    assert comes_true(lambda: target.metric("num_requests_running") == target.metric("num_requests_waiting") == 0)
    assert not any("Traceback" in line for line in target.log)


def places(value: object, path: tuple = ()) -> Iterator[tuple]:
    """The paths of all parts of a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(value: object, path: tuple, new: object) -> object:
    if not path:
        return new
    key, *rest = path
    if isinstance(value, dict):
        return {k: changed(v, tuple(rest), new) if k == key else v for k, v in value.items()}
    return [changed(v, tuple(rest), new) if k == key else v for k, v in enumerate(value)]


def fuzzed(rng: random.Random, base: dict) -> bytes:
    """A request with one to three parts replaced, and now and then with bytes that are wrong."""
    body: object = base
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        path = rng.choice(list(places(body)))
        body = changed(body, path, rng.choice(ODD))
        if isinstance(body, dict) and rng.random() < 0.1:
            body = {**body, rng.choice(["echo", "suffix", "best_of", "\ud83d", "x" * 1000]): rng.choice(ODD)}
    raw = bytearray(json.dumps(body).encode())
    if rng.random() < 0.25:
        for _ in range(rng.randint(1, 4)):
            raw[rng.randrange(len(raw)) : rng.randrange(len(raw) + 1)] = rng.randbytes(rng.randint(0, 3))
            raw = raw or bytearray(b"{")
    return bytes(raw)


def test_what_the_fuzz_starts_from_is_answered(target) -> None:
    for path, body in BASES:
        got = target.http.post(path, json=body)
        assert got.status_code == 200, (path, got.text)


@pytest.mark.parametrize("seed", range(8))
def test_fuzzed_bodies(target, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        path, base = rng.choice(BASES)
        body = fuzzed(rng, base)
        got = target.http.post(path, content=body)
        assert got.status_code < 500, (path, body[:2000], got.text)


def connect(target) -> socket.socket:
    host, port = target.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def head(length: int) -> bytes:
    return f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()


BODY = json.dumps({"prompt": "slow", "max_tokens": 400, "ignore_eos": True}).encode()
REQUEST = head(len(BODY)) + BODY


def test_slow_clients_do_not_hold_up_others(target) -> None:
    with contextlib.ExitStack() as open_sockets:
        for sent in (b"", b"P", REQUEST[:20], REQUEST[:90], REQUEST[:-1]) * 10:
            open_sockets.enter_context(connect(target)).sendall(sent)
        # Held up, these would be given up after their minute.
        for _ in range(5):
            target.complete("quick", max_tokens=1)
        dripping = open_sockets.enter_context(connect(target))
        for i in range(0, len(REQUEST), 8):
            dripping.sendall(REQUEST[i : i + 8])
            time.sleep(0.005)
        assert dripping.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize("sent", [b"", b"\r\n", REQUEST[:30], REQUEST[:-5], REQUEST, REQUEST * 2, b"\x16\x03\x01" * 99])
@pytest.mark.parametrize("how", [socket.SHUT_WR, socket.SHUT_RDWR])
def test_half_closed_sockets(target, sent: bytes, how: int) -> None:
    for _ in range(4):
        with connect(target) as client:
            client.sendall(sent)
            with contextlib.suppress(OSError):  # the server may have hung up on nonsense already
                client.shutdown(how)
                client.settimeout(0.05)
                while client.recv(4096):
                    pass


def test_clients_that_ask_for_streams_and_do_not_read(target) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 300, "ignore_eos": True, "stream": True, "n": 4}).encode()
    with contextlib.ExitStack() as open_sockets:
        for _ in range(8):
            open_sockets.enter_context(connect(target)).sendall(head(len(body)) + body)
        target.complete("quick", max_tokens=1)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "long " * 2_000_000},
        {"prompt": ["x" * 10_000_000]},
        {"prompt": [7] * 3_500_000},
        {"prompt": "long " * 1_500_000},
        {"prompt": "\u0301" * 1_300_000},
        {"prompt": [7] * 2_000_000},
        {"prompt": [[7]] * 1_000_000},
    ],
    ids=["10 MB", "10 MB without a space", "10 MB of ids", "7 MB", "7 MB escaped", "6 MB of ids", "5 MB of prompts"],
)
def test_prompts_of_many_megabytes(target, body: dict) -> None:
    got = target.http.post("/v1/completions", json=body, timeout=60)
    assert got.status_code in (400, 413)
    assert len(got.text) < 1000
    talk = {"messages": [{"role": "user", "content": body["prompt"]}]}
    assert target.http.post("/v1/chat/completions", json=talk, timeout=60).status_code in (400, 413)


def test_many_at_once(target) -> None:
    """Two hundred requests on as many connections, half of which go away."""
    with contextlib.ExitStack() as open_sockets:
        clients = []
        for i in range(200):
            client = open_sockets.enter_context(connect(target))
            client.sendall(REQUEST if i % 2 else head(20) + b'{"prompt": "quick"}  '[:20])
            clients.append(client)
        for client in clients[::2]:
            client.close()
    with httpx.Client(base_url=target.url, timeout=60) as http:
        assert http.get("/health").status_code == 200
