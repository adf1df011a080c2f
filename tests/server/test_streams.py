"""What the HTTP layer makes of an engine that fails, stalls or is slow to refuse.

These need an engine that does so on command, so a scripted one stands in for it; all else is the real server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import closing
from http.client import HTTPConnection

import pytest
from scripted import Script, delta, events, serving

from pageinn.engine.client import EngineClient
from pageinn.engine.messages import (
    Delta,
    EngineDeadError,
    FinishReason,
    GenerationRequest,
    RefusedError,
)
from pageinn.server.served import Served
from pageinn.text.template import ChatTemplate
from pageinn.text.tokenizer import Tokenizer


@pytest.fixture
def serve(byte_tokenizer: Tokenizer):
    """Starts a real server around a script; gives the HTTP client and the scripted engine."""
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")

    def served(client: EngineClient) -> Served:
        return Served(client, byte_tokenizer, template, "bytes", 64, 256, 0, {"prefix_cache": "keep"})

    return lambda script: serving(script, served)


async def hello(request: GenerationRequest) -> AsyncIterator[Delta]:
    for index in range(request.sampling.n):
        yield delta(request, "hel", index=index)
        yield delta(request, "lo", FinishReason.STOP, index)


async def endless(request: GenerationRequest) -> AsyncIterator[Delta]:
    while True:
        yield delta(request, "x")
        await asyncio.sleep(0.01)


async def silent(request: GenerationRequest) -> AsyncIterator[Delta]:
    await asyncio.sleep(3600)
    yield delta(request, "x")


def test_choices_are_numbered_prompt_by_prompt(serve) -> None:
    with serve(hello) as (http, client):
        body = {"prompt": ["a", "bc", "d"], "n": 2, "max_tokens": 5}
        answer = http.post("/v1/completions", json=body).json()
        assert [choice["index"] for choice in answer["choices"]] == list(range(6))
        assert {choice["text"] for choice in answer["choices"]} == {"hello"}
        assert answer["usage"] == {
            "prompt_tokens": 4,
            "completion_tokens": 30,
            "total_tokens": 34,
            "prompt_tokens_details": {"cached_tokens": 9},
        }
        assert client.cancelled == []


def test_a_stream_ends_with_one_usage_chunk_and_done(serve) -> None:
    """Field cases G4 and G5: each index finished once, then usage once."""
    with serve(hello) as (http, client):
        body = {"prompt": "a", "n": 2, "stream": True, "stream_options": {"include_usage": True}}
        *chunks, usage, done = events(http.post("/v1/completions", json=body).text)
        assert done == "[DONE]"
        assert usage["choices"] == []
        assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
        assert all(chunk["usage"] is None for chunk in chunks)
        ends = [(c["choices"][0]["index"], c["choices"][0]["finish_reason"]) for c in chunks]
        assert sorted(end for end in ends if end[1]) == [(0, "stop"), (1, "stop")]
        assert client.cancelled == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", [endless, silent])
def test_a_client_that_goes_away_cancels_all_its_requests(serve, comes_true, script: Script, stream: bool) -> None:
    """Field case G1, streaming or not, while tokens flow and before the first."""
    body = json.dumps({"prompt": ["a", "b"], "stream": stream, "max_tokens": 60})
    with serve(script) as (http, client):
        with closing(HTTPConnection(http.base_url.host, http.base_url.port, timeout=60)) as leaving:
            leaving.request("POST", "/v1/completions", body)
            assert comes_true(lambda: len(client.begun) == 2)
            if stream and script is endless:
                leaving.getresponse().readline()
            assert client.cancelled == []
        assert comes_true(lambda: len(client.cancelled) == 2)


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_is_a_status_also_when_streaming(serve, stream: bool) -> None:
    async def refuse(request: GenerationRequest) -> AsyncIterator[Delta]:
        if request.prompt == (1,):
            raise RefusedError("the prompt needs 9 blocks, the pool has 4", param="prompt")
        async for piece in silent(request):
            yield piece

    with serve(refuse) as (http, client):
        got = http.post("/v1/completions", json={"prompt": [[0], [1]], "stream": stream})
        assert got.status_code == 400
        assert got.json()["error"] == {
            "message": "the prompt needs 9 blocks, the pool has 4",
            "type": "invalid_request_error",
            "param": "prompt",
            "code": "request_refused",
        }
        assert len(client.cancelled) == 2


def test_an_engine_that_has_stopped(serve) -> None:
    async def dead(request: GenerationRequest) -> AsyncIterator[Delta]:
        raise EngineDeadError("the engine is shutting down")
        yield delta(request, "")

    with serve(dead) as (http, _):
        for got in (
            http.post("/v1/completions", json={"prompt": "a"}),
            http.post("/reset_prefix_cache"),
            http.get("/health"),
        ):
            assert got.status_code == 503
            assert got.json()["error"]["code"] == "engine_dead"
        refused = http.post("/v1/completions", json={"prompt": "a"}).json()["error"]
        assert refused["message"] == "the engine is shutting down"


def test_an_error_inside_a_stream_is_an_event_and_no_done(serve) -> None:
    async def fail(request: GenerationRequest) -> AsyncIterator[Delta]:
        yield delta(request, "he")
        yield delta(request, "", FinishReason.ERROR)

    with serve(fail) as (http, _):
        first, last = events(http.post("/v1/completions", json={"prompt": "a", "stream": True}).text)
        assert first["choices"][0]["text"] == "he"
        assert last["error"]["message"] == "out of blocks"
        got = http.post("/v1/completions", json={"prompt": "a"})
        assert (got.status_code, got.json()["error"]["code"]) == (500, "engine_error")


def test_the_unexpected_is_a_500_in_openais_form_and_the_server_lives(serve) -> None:
    async def broken(request: GenerationRequest) -> AsyncIterator[Delta]:
        yield delta(request, "he")
        raise ZeroDivisionError("secret detail")

    with serve(broken) as (http, _):
        got = http.post("/v1/completions", json={"prompt": "a"})
        assert (got.status_code, got.json()["error"]["code"]) == (500, "internal_error")
        assert "secret" not in got.text
        assert got.headers["connection"] == "close"
        *_, last = events(http.post("/v1/completions", json={"prompt": "a", "stream": True}).text)
        assert last["error"]["code"] == "internal_error"
        assert http.get("/v1/models").status_code == 200


def test_the_first_chat_chunk_names_the_role(serve) -> None:
    with serve(hello) as (http, _):
        body = {"messages": [{"role": "user", "content": "a"}], "stream": True}
        first, second, done = events(http.post("/v1/chat/completions", json=body).text)
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": "hel"}
        assert second["choices"][0]["delta"] == {"content": "lo"}
        assert done == "[DONE]"


def test_an_impossible_token_has_a_log_probability_that_json_can_hold(serve) -> None:
    with serve(hello) as (http, _):
        body = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "max_tokens": 5}
        content = http.post("/v1/chat/completions", json=body).json()["choices"][0]["logprobs"]["content"]
        assert [entry["logprob"] for entry in content] == [-9999.0] * 5


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused_while_it_is_read(serve, chunked: bool) -> None:
    body = json.dumps({"prompt": "a" * 500_000}).encode()
    content = iter([body[i : i + 1000] for i in range(0, len(body), 1000)]) if chunked else body
    with serve(hello) as (http, _):
        got = http.post("/v1/completions", content=content)
        assert (got.status_code, got.json()["error"]["code"]) == (413, "body_too_large")
        assert http.post("/v1/completions", json={"prompt": "a"}).status_code == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not valid JSON"),
        (b"{", "the body is not valid JSON"),
        (b'{"prompt": "\xff"}', "the body is not UTF-8: byte 12 is wrong"),
        (b'{"prompt": "a", "temperature": NaN}', "NaN is not a JSON number"),
        (b'{"prompt": "a", "temperature": 1e999}', "temperature"),
        (rb'{"prompt": "\ud800"}', "half of a surrogate pair"),
        (b"[1]", "the body must be a JSON object"),
        (b"[" * 900, "the body is"),
        ('{"prompt": "a"}'.encode("utf-16"), "the body is not UTF-8"),
    ],
)
def test_bodies_that_are_no_request(serve, body: bytes, message: str) -> None:
    with serve(hello) as (http, _):
        got = http.post("/v1/completions", content=body)
        assert got.status_code == 400
        assert message in got.json()["error"]["message"]
        assert "\n" not in got.json()["error"]["message"]


def test_routes_that_do_not_exist(serve) -> None:
    with serve(hello) as (http, _):
        assert http.get("/nowhere").json()["error"]["message"] == "GET /nowhere: Not Found"
        got = http.get("/v1/completions")
        assert (got.status_code, got.json()["error"]["code"]) == (405, "no_such_route")


def test_the_openapi_page_knows_the_bodies(serve) -> None:
    with serve(hello) as (http, _):
        page = http.get("/openapi.json").json()
        schema = page["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/CompletionRequest"}
        assert "temperature" in page["components"]["schemas"]["CompletionRequest"]["properties"]
        assert "StreamOptions" in page["components"]["schemas"]
