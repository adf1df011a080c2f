"""Bad input over HTTP: a clear line, the right status, and the server goes on serving."""

from __future__ import annotations

import openai
import pytest

CHAT = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("body", "status", "param", "code", "words"),
    [
        ({"prompt": ""}, 400, "prompt", "empty_prompt", "the prompt is empty"),
        ({"prompt": []}, 400, "prompt", "invalid_value", "not empty"),
        ({"prompt": ["a", ""]}, 400, "prompt", "empty_prompt", "the prompt is empty"),
        ({"prompt": [49152]}, 400, "prompt", "invalid_token_id", "ids go from 0 to 49151"),
        ({"prompt": [-1]}, 400, "prompt", "invalid_token_id", "token id -1 is out of range"),
        ({"prompt": [1] * 2912}, 400, "prompt", "context_length_exceeded", "context is 2912 tokens"),
        ({"prompt": "a b " * 8000}, 400, "prompt", "context_length_exceeded", "the prompt has 16"),
        ({"prompt": "a" * 2_000_000}, 400, "prompt", "context_length_exceeded", "at least"),
        ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "invalid_value", "max_tokens is 0, which needs echo"),
        ({"prompt": "a", "max_tokens": -5}, 400, "max_tokens", "invalid_value", "not -5"),
        ({"prompt": "a", "max_tokens": 8192}, 400, "max_tokens", "context_length_exceeded", "at most 2911 fit"),
        ({"prompt": "a", "temperature": 3}, 400, "temperature", "invalid_value", "less than or equal to 2"),
        ({"prompt": "a", "model": "gpt-4"}, 404, "model", "model_not_found", "'gpt-4' does not exist"),
        ({"prompt": "a", "suffix": "b"}, 400, "suffix", "unsupported_parameter", "'suffix' is not supported"),
        ({"prompt": "a", "stream": True, "n": 0}, 400, "n", "invalid_value", "not 0"),
    ],
)
def test_bad_requests(server, body: dict, status: int, param: str, code: str, words: str) -> None:
    got = server.http.post("/v1/completions", json=body)
    error = got.json()["error"]
    assert (got.status_code, error["param"], error["code"]) == (status, param, code)
    assert words in error["message"]
    assert "\n" not in error["message"]
    assert error["type"] == "invalid_request_error"
    assert server.complete("Still here", max_tokens=1)["usage"]["completion_tokens"] == 1


def test_bodies(server) -> None:
    for body, status in ((b"{", 400), (b'{"prompt": "\xff"}', 400), (b" " * (8 * 1024 * 1024 + 1), 413)):
        got = server.http.post("/v1/chat/completions", content=body)
        assert got.status_code == status
        assert got.json()["error"]["code"] in ("invalid_body", "body_too_large")
    assert server.complete("Still here", max_tokens=1)


def test_the_official_client_raises_its_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist") as missing:
        client.chat.completions.create(model="gpt-4", messages=CHAT)
    assert missing.value.code == "model_not_found"
    model = client.models.list().data[0].id
    with pytest.raises(openai.BadRequestError, match="field 'function_call' is not supported") as refused:
        client.chat.completions.create(model=model, messages=CHAT, function_call="auto")
    assert refused.value.param == "function_call"
