"""What operators and tools ask besides answers: readiness, request ids, names, tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import openai
import pytest
from scripted import ScriptedClient, delta, serving

from pageinn.engine.client import EngineClient
from pageinn.engine.messages import Delta, FinishReason, GenerationRequest
from pageinn.server.app import create_app
from pageinn.server.served import Served
from pageinn.text.template import ChatTemplate

HI = [{"role": "user", "content": "hi"}]


async def hello(request: GenerationRequest) -> AsyncIterator[Delta]:
    yield delta(request, "hello", FinishReason.STOP)


class LivingClient(ScriptedClient):
    @property
    def alive(self) -> bool:
        return True


def served_with(tokenizer, client: EngineClient) -> Served:
    template = ChatTemplate(
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    return Served(client, tokenizer, template, "first", 64, 256, 0, {}, aliases=("second", "org/third"))


@pytest.fixture
def serve(byte_tokenizer):
    return lambda script: serving(script, lambda client: served_with(byte_tokenizer, client))


def test_ready_from_the_start_until_the_end(byte_tokenizer) -> None:
    async def phases() -> list[tuple[int, str]]:
        app = create_app(served_with(byte_tokenizer, LivingClient(hello)))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
            seen = [await http.get("/ready")]
            async with app.router.lifespan_context(app):
                seen.append(await http.get("/ready"))
            seen.append(await http.get("/ready"))
        return [(got.status_code, got.text) for got in seen]

    (before, starting), (during, _), (after, draining) = asyncio.run(phases())
    assert (before, during, after) == (503, 200, 503)
    assert "the server is starting" in starting
    assert "the server is shutting down" in draining


def test_not_ready_without_an_engine(serve, server) -> None:
    with serve(hello) as (http, _):
        got = http.get("/ready")
        assert (got.status_code, got.json()["error"]["code"]) == (503, "engine_dead")
    assert server.http.get("/ready").json() == {"status": "ready"}


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.endswith("request_ids")]


def test_a_request_keeps_its_id_or_gets_one(serve, comes_true, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="pageinn")
    with serve(hello) as (http, _):
        for path, body, status in (
            ("/v1/completions", {"prompt": "a"}, 200),
            ("/v1/completions", {"prompt": "a", "stream": True}, 200),
            ("/v1/completions", {"prompt": 3}, 400),
            ("/nowhere%0Aforged", {}, 404),
        ):
            got = http.post(path, json=body, headers={"X-Request-Id": f"mine-{status}"})
            assert (got.status_code, got.headers.get_list("x-request-id")) == (status, [f"mine-{status}"])
            # The line is written when all has been sent, so the client may know before.
            assert comes_true(lambda: logged(caplog))
            (line,) = logged(caplog)
            assert line.startswith(f"request mine-{status}: POST {path}: {status} in ")
            caplog.clear()
        made = {http.get("/v1/models", headers=headers).headers["x-request-id"] for headers in ({}, {})}
        assert len(made) == 2
        for unusable in ("a" * 129, "two words", ""):
            got = http.get("/v1/models", headers={"X-Request-Id": unusable})
            assert got.headers["x-request-id"] not in (unusable, "")


def test_an_unexpected_failure_has_an_id_too(serve) -> None:
    async def broken(request: GenerationRequest) -> AsyncIterator[Delta]:
        raise ZeroDivisionError
        yield delta(request, "")

    with serve(broken) as (http, _):
        got = http.post("/v1/completions", json={"prompt": "a"}, headers={"X-Request-Id": "mine"})
        assert (got.status_code, got.headers["x-request-id"]) == (500, "mine")


def test_the_official_client_sees_the_id(client: openai.OpenAI, server, comes_true) -> None:
    model = client.models.list().data[0].id
    got = client.chat.completions.create(
        model=model, messages=HI, max_tokens=1, extra_headers={"X-Request-Id": "from-the-client"}
    )
    assert got._request_id == "from-the-client"
    line = "request from-the-client: POST /v1/chat/completions: 200"
    assert comes_true(lambda: any(line in each for each in server.log))


def test_a_model_answers_to_each_of_its_names(serve) -> None:
    with serve(hello) as (http, _):
        cards = http.get("/v1/models").json()["data"]
        assert [card["id"] for card in cards] == ["first", "second", "org/third"]
        for name in ("first", "second", "org/third"):
            assert http.get(f"/v1/models/{name}").json()["id"] == name
            got = http.post("/v1/completions", json={"prompt": "a", "model": name})
            assert got.json()["model"] == "first"
        got = http.post("/v1/completions", json={"prompt": "a", "model": "fourth"})
        assert got.status_code == 404
        assert "this server serves 'first', 'second', 'org/third'" in got.json()["error"]["message"]


def test_tokenize_and_back(server, tokenizer) -> None:
    text = "Grüße, <|im_start|>world"
    got = server.http.post("/tokenize", json={"prompt": text}).json()
    assert got == {
        "count": len(got["tokens"]),
        "max_model_len": 2912,
        "tokens": tokenizer.encode(text),
        "token_strs": None,
    }
    assert server.http.post("/detokenize", json={"tokens": got["tokens"]}).json() == {"prompt": text}
    named = server.http.post("/tokenize", json={"prompt": "a<|im_end|>", "return_token_strs": True}).json()
    assert named["token_strs"] == ["a", "<|im_end|>"]
    assert server.http.post("/tokenize", json={"prompt": ""}).json()["count"] == 0
    assert server.http.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


def test_a_conversation_has_the_tokens_it_is_answered_by(server) -> None:
    usage = server.http.post("/v1/chat/completions", json={"messages": HI, "max_tokens": 1}).json()["usage"]
    got = server.http.post("/tokenize", json={"messages": HI}).json()
    assert got["count"] == usage["prompt_tokens"]
    without = server.http.post("/tokenize", json={"messages": HI, "add_generation_prompt": False}).json()
    assert got["tokens"][: without["count"]] == without["tokens"]
    assert got["count"] > without["count"]
    long = server.http.post("/tokenize", json={"prompt": "word " * 10_000}).json()
    assert long["count"] >= 10_000 > long["max_model_len"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/tokenize", {}, "give either prompt or messages"),
        ("/tokenize", {"prompt": "a", "messages": HI}, "give either prompt or messages"),
        ("/tokenize", {"prompt": "a", "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools go with"),
        ("/tokenize", {"prompt": ["a"]}, "prompt: input should be a valid string"),
        ("/tokenize", {"messages": HI, "continue_final_message": True}, "field 'continue_final_message' is not"),
        ("/detokenize", {}, "field 'tokens' is missing"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]: input should be a valid integer"),
        ("/detokenize", {"tokens": [1, 49152]}, "token id 49152 is out of range"),
        ("/detokenize", {"tokens": [-1]}, "token id -1 is out of range"),
    ],
)
def test_wrong_questions_about_tokens(server, path: str, body: dict, message: str) -> None:
    got = server.http.post(path, json=body)
    assert got.status_code == 400
    assert got.json()["error"]["message"].startswith(message)
    assert server.http.post(path, json={**body, "model": "gpt-4"}).status_code in (400, 404)
