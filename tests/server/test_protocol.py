"""What a request may say, without a server: every refusal names the field and fits in one line."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from pageinn.server.errors import ApiError, from_validation
from pageinn.server.protocol import ChatRequest, CompletionRequest

HI = [{"role": "user", "content": "hi"}]


def refused(kind: type[CompletionRequest] | type[ChatRequest], data: dict) -> ApiError:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(data)
    error = from_validation(caught.value)
    assert "\n" not in error.message
    assert error.status == 400
    json.dumps(error.body())
    return error


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("max_tokens", -1, "max_tokens"),
        ("max_tokens", "16", "max_tokens"),
        ("max_tokens", 16.5, "max_tokens"),
        ("max_tokens", True, "max_tokens"),
        ("n", 0, "n"),
        ("n", 129, "n"),
        ("temperature", -0.1, "temperature"),
        ("temperature", 2.1, "temperature"),
        ("temperature", float("nan"), "temperature"),
        ("temperature", float("inf"), "temperature"),
        ("temperature", "1", "temperature"),
        ("top_p", 0, "top_p"),
        ("top_p", 1.1, "top_p"),
        ("top_k", -2, "top_k"),
        ("top_k", 2**31, "top_k"),
        ("min_p", -0.1, "min_p"),
        ("min_p", 1.1, "min_p"),
        ("seed", 2**63, "seed"),
        ("seed", 1.5, "seed"),
        ("stop", 3, "stop"),
        ("stop", [""], "stop"),
        ("stop", ["a"] * 17, "stop"),
        ("stop", ["a", 1], "stop"),
        ("stop", "a" * 1025, "stop"),
        ("stream", 1, "stream"),
        ("stream_options", {"include_usage": 1}, "stream_options.include_usage"),
        ("ignore_eos", "yes", "ignore_eos"),
        ("cache_salt", "", "cache_salt"),
        ("cache_salt", 3, "cache_salt"),
        ("model", 3, "model"),
        ("no_such_field", None, "no_such_field"),
        ("frequency_penalty", 2.5, "frequency_penalty"),
    ],
)
def test_a_wrong_value_is_refused_by_name(field: str, value: object, param: str) -> None:
    for kind, base in ((CompletionRequest, {"prompt": "hi"}), (ChatRequest, {"messages": HI})):
        error = refused(kind, {**base, field: value})
        assert error.param == param
        assert param in error.message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "field 'prompt' is missing"),
        ({"prompt": None}, "field 'prompt' is missing"),
        ({"prompt": []}, "prompt: must be text, token ids, or a list of either, and not empty"),
        ({"prompt": [[1], []]}, "prompt: must be text"),
        ({"prompt": [1, "a"]}, "prompt: must be text"),
        ({"prompt": [1.5]}, "prompt: must be text"),
        ({"prompt": [True]}, "prompt: must be text"),
        ({"prompt": {"a": 1}}, "prompt: must be text"),
        ({"prompt": ["a"] * 2049}, "prompt: at most 2048 prompts"),
        ({"prompt": "a", "logprobs": True}, "logprobs: input should be a valid integer, not True"),
        ({"prompt": "a", "logprobs": 21}, "logprobs: input should be less than or equal to 20, not 21"),
        ({"prompt": "a", "echo": 1}, "echo: input should be a valid boolean, not 1"),
        ({"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs: input should be less than or equal to 20, not 21"),
        ({"prompt": "a", "prompt_logprobs": -1}, "prompt_logprobs: input should be greater than or equal to 0, not -1"),
        ({"prompt": "a", "stream_options": {}}, "stream_options is only for stream: true"),
    ],
)
def test_completions(data: dict, message: str) -> None:
    assert refused(CompletionRequest, data).message.startswith(message)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "field 'messages' is missing"),
        ({"messages": []}, "messages: list should have at least 1 item"),
        ({"messages": "hi"}, "messages: input should be a valid list"),
        ({"messages": [{"role": "user"}]}, "field 'messages[0].content' is missing"),
        ({"messages": [{"role": "function", "content": "a"}]}, "messages[0].role: input should be 'system'"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content: must be text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content: content part of type 'image_url' is not supported; 'text' is",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "field 'messages[0].content.text' is missing",
        ),
        ({"messages": HI, "logprobs": 3}, "logprobs: input should be a valid boolean, not 3"),
        ({"messages": HI, "max_tokens": 0}, "max_tokens: input should be greater than or equal to 1, not 0"),
        ({"messages": HI, "echo": True}, "field 'echo' is not supported"),
        ({"messages": HI, "top_logprobs": 3}, "top_logprobs needs logprobs: true"),
        ({"messages": HI, "max_tokens": 3, "max_completion_tokens": 4}, "max_tokens and max_completion_tokens"),
    ],
)
def test_chat(data: dict, message: str) -> None:
    assert refused(ChatRequest, data).message.startswith(message)


def test_a_long_wrong_value_is_not_repeated_whole() -> None:
    assert len(refused(CompletionRequest, {"prompt": "a", "n": "x" * 10**6}).message) < 200


def test_fields_without_effect_and_neutral_values_are_accepted() -> None:
    silent = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": True,
        "cache_prompt": True,
        "service_tier": "auto",
        "safety_identifier": "s",
        "echo": False,
        "best_of": 1,
        "frequency_penalty": 0.0,
        "presence_penalty": 0,
        "logit_bias": None,
        "temperature": None,
        "stop": None,
    }
    request = CompletionRequest.model_validate({"prompt": "a", **silent})
    assert (request.temperature, request.stop) == (1.0, ())


def test_a_message_may_come_back_as_it_was_answered() -> None:
    message = {"role": "assistant", "content": "a", "refusal": None, "tool_calls": None, "annotations": []}
    (read,) = ChatRequest.model_validate({"messages": [message]}).messages
    assert read.model_dump(exclude_none=True) == {"role": "assistant", "content": "a"}


def test_prompts_become_a_list() -> None:
    for given, expected in (("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2]], [[1], [2]])):
        assert CompletionRequest.model_validate({"prompt": given}).prompt == expected
