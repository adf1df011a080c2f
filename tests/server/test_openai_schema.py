"""Every field of OpenAI's own types is either taken, and does something, or refused by its name.

The lists of fields come from the openai package: a field that a later version adds is refused until somebody decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from openai.types import completion_create_params as legacy
from openai.types.chat import completion_create_params as chat

from pageinn.server.protocol import ChatRequest, CompletionRequest

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}

CHAT_FIELDS = {*chat.CompletionCreateParamsBase.__annotations__, "stream"}
COMPLETION_FIELDS = {*legacy.CompletionCreateParamsBase.__annotations__, "stream"}

#: One use of every field that is taken, with what else it needs.
CHAT_USES = {
    "messages": {},
    "model": {"model": "tiny-qwen"},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "logit_bias": {"logit_bias": {"7": -100}},
    "logprobs": {"logprobs": True},
    "max_completion_tokens": {"max_completion_tokens": 3},
    "max_tokens": {"max_tokens": 3},
    "metadata": {"metadata": {"a": "b"}},
    "n": {"n": 2},
    "parallel_tool_calls": {"parallel_tool_calls": False, "tools": [TOOL]},
    "presence_penalty": {"presence_penalty": 0.5},
    "prompt_cache_key": {"prompt_cache_key": "k"},
    "response_format": {"response_format": {"type": "json_object"}},
    "safety_identifier": {"safety_identifier": "s"},
    "seed": {"seed": 1},
    "service_tier": {"service_tier": "auto"},
    "stop": {"stop": ["e"]},
    "store": {"store": False},
    "stream": {"stream": True},
    "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    "temperature": {"temperature": 0.5},
    "tool_choice": {"tools": [TOOL], "tool_choice": "none"},
    "tools": {"tools": [TOOL]},
    "top_logprobs": {"logprobs": True, "top_logprobs": 2},
    "top_p": {"top_p": 0.5},
    "user": {"user": "u"},
}
COMPLETION_USES = {
    "prompt": {},
    "echo": {"echo": True},
    "logprobs": {"logprobs": 1},
    **{
        name: CHAT_USES[name]
        for name in ("model", "frequency_penalty", "logit_bias", "max_tokens", "n", "presence_penalty", "seed", "stop")
    },
    **{name: CHAT_USES[name] for name in ("stream", "stream_options", "temperature", "top_p", "user")},
}
#: Ours and vLLM's, of both kinds.
OUR_USES = {
    "top_k": {"top_k": 3},
    "min_p": {"min_p": 0.1},
    "stop_token_ids": {"stop_token_ids": [9]},
    "ignore_eos": {"ignore_eos": True},
    "min_tokens": {"min_tokens": 2},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "cache_salt": {"cache_salt": "s"},
    "cache_prompt": {"cache_prompt": True},
    "cache_control": {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
    "skip_reading_prefix_cache": {"skip_reading_prefix_cache": True},
    "skip_writing_prefix_cache": {"skip_writing_prefix_cache": True},
    "queue_timeout": {"queue_timeout": 60},
}


@pytest.fixture(scope="module")
def http(start_server, qwen_path) -> Iterator[httpx.Client]:
    made = start_server(str(qwen_path), "--kv-cache-memory-bytes", "8MiB", "--max-model-len", "1024", "--threads", "1")
    yield made.http
    assert made.stop() == 0


def test_the_uses_cover_what_is_taken() -> None:
    ours = CHAT_USES.keys() | COMPLETION_USES.keys() | OUR_USES.keys()
    taken_chat, taken_completion = set(ChatRequest.model_fields), set(CompletionRequest.model_fields)
    assert taken_chat & CHAT_FIELDS == set(CHAT_USES)
    assert taken_completion & COMPLETION_FIELDS == set(COMPLETION_USES)
    assert (taken_chat | taken_completion) - ours == {"prompt_logprobs"}, "tested with echo"


@pytest.mark.parametrize("name", sorted(CHAT_USES | OUR_USES))
def test_a_chat_field_that_is_taken(http: httpx.Client, name: str) -> None:
    fields = (CHAT_USES | OUR_USES)[name]
    got = http.post("/v1/chat/completions", json={"messages": HI, "max_tokens": 4, **fields} | _alone(fields))
    assert got.status_code == 200, got.text
    if "stream" in fields:
        assert got.text.endswith("data: [DONE]\n\n")
        return
    answer = got.json()
    choices = answer["choices"]
    assert len(choices) == fields.get("n", 1)
    assert answer["usage"]["completion_tokens"] <= 4 * len(choices)
    for choice in choices:
        entries = (choice["logprobs"] or {}).get("content", [])
        assert bool(entries) == bool(fields.get("logprobs"))
        assert all(len(entry["top_logprobs"]) == fields.get("top_logprobs", 0) for entry in entries)
        assert "e" not in choice["message"]["content"] or "stop" not in fields


def _alone(fields: dict) -> dict:
    return {"max_tokens": None} if "max_completion_tokens" in fields else {}


@pytest.mark.parametrize("name", sorted(COMPLETION_USES | OUR_USES))
def test_a_completion_field_that_is_taken(http: httpx.Client, name: str) -> None:
    fields = (COMPLETION_USES | OUR_USES)[name]
    got = http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 4, **fields})
    assert got.status_code == 200, got.text
    if "stream" not in fields:
        choices = got.json()["choices"]
        assert len(choices) == fields.get("n", 1)
        assert all((choice["logprobs"] is not None) == ("logprobs" in fields) for choice in choices)
        assert all(choice["text"].startswith("hi") == ("echo" in fields) for choice in choices)


@pytest.mark.parametrize("name", sorted(CHAT_FIELDS - CHAT_USES.keys()))
def test_every_other_chat_field_is_refused_by_name(http: httpx.Client, name: str) -> None:
    refused(http.post("/v1/chat/completions", json={"messages": HI, name: {"some": "value"}}), name)


@pytest.mark.parametrize("name", sorted(COMPLETION_FIELDS - COMPLETION_USES.keys()))
def test_every_other_completion_field_is_refused_by_name(http: httpx.Client, name: str) -> None:
    refused(http.post("/v1/completions", json={"prompt": "hi", name: {"some": "value"}}), name)


def refused(got: httpx.Response, name: str) -> None:
    error = got.json()["error"]
    assert (got.status_code, error["param"], error["code"]) == (400, name, "unsupported_parameter")
    assert error["message"] == f"field '{name}' is not supported"


def test_a_field_given_as_null_is_not_given(http: httpx.Client) -> None:
    nothing = dict.fromkeys(CHAT_USES.keys() - {"messages"})
    got = http.post("/v1/chat/completions", json={"messages": HI, **nothing, "max_tokens": 1})
    assert got.status_code == 200, got.text
    json.loads(got.text)
