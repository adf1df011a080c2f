"""Tools and a real engine: what the cache makes of shuffled keys, and answers that must be calls.

The model is random, so what it says has no meaning; that its calls are well formed is the grammar's work.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import openai
import pytest

MESSAGES = [{"role": "user", "content": "go"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place, by day, in the units asked for.",
        "parameters": {
            "type": "object",
            "properties": {
                "unit": {"type": "string", "enum": ["kelvin", "celsius"]},
                "near": {"$ref": "#/$defs/place"},
                "days": {"type": "integer", "minimum": 0, "maximum": 9},
            },
            "required": ["unit", "near"],
            "additionalProperties": False,
            "$defs": {
                "place": {
                    "type": "object",
                    "properties": {"at": {"enum": [1, 2, 3]}},
                    "required": ["at"],
                    "additionalProperties": False,
                }
            },
        },
    },
}
TIME = {"type": "function", "function": {"name": "time"}}


def shuffled(value: object, seed: int) -> object:
    """The same JSON with the keys of every object in another order."""
    if isinstance(value, dict):
        keys = sorted(value)
        random.Random(seed).shuffle(keys)
        return {key: shuffled(value[key], seed) for key in keys}
    return [shuffled(item, seed) for item in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def plain(start_server, qwen_path) -> Iterator:
    made = start_server(str(qwen_path), "--kv-cache-memory-bytes", "16MiB", "--threads", "1", "--seed", "1")
    yield made
    assert made.stop() == 0


@pytest.fixture(scope="module")
def canonical(start_server, qwen_path) -> Iterator:
    flags = ("--kv-cache-memory-bytes", "16MiB", "--threads", "1", "--canonical-tools")
    made = start_server(str(qwen_path), *flags)
    yield made
    assert made.stop() == 0


def usage(server, tools: list, salt: str) -> tuple[int, int]:
    """Prompt tokens, and how many of them were cached."""
    body = {"messages": MESSAGES, "tools": tools, "max_tokens": 1, "cache_salt": salt}
    got = server.http.post("/v1/chat/completions", json=body)
    assert got.status_code == 200, got.text
    counted = got.json()["usage"]
    return counted["prompt_tokens"], counted["prompt_tokens_details"]["cached_tokens"]


def test_shuffled_keys_hit_with_the_flag_and_miss_without(plain, canonical) -> None:
    """Field case H4: the same meaning, another order of keys."""
    for seed in range(3):
        salt = f"H4 {seed}"
        tools, other = shuffled([WEATHER, TIME], seed), shuffled([WEATHER, TIME], seed + 10)
        length, cached = usage(canonical, tools, salt)
        assert cached == 0
        assert usage(canonical, other, salt) == (length, length - 1)
        length, cached = usage(plain, tools, salt)
        assert cached == 0
        assert usage(plain, tools, salt)[1] == length - 1
        assert usage(plain, other, salt)[1] < length - 100


def test_an_array_in_another_order_is_another_prompt(canonical) -> None:
    """Field case H4's other half: order in an enum, in `required` or in the list of tools has a meaning."""
    length, _ = usage(canonical, [WEATHER, TIME], "arrays")
    text = json.dumps([WEATHER, TIME])
    for changed in (
        [TIME, WEATHER],
        json.loads(text.replace('["kelvin", "celsius"]', '["celsius", "kelvin"]')),
        json.loads(text.replace('["unit", "near"]', '["near", "unit"]')),
    ):
        assert usage(canonical, changed, "arrays")[1] < length - 10


@pytest.fixture
def qwen(plain) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{plain.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def well_formed(call: object) -> None:
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    if call.function.name == "time":
        assert arguments == {}
        return
    assert call.function.name == "weather"
    assert set(arguments) <= {"unit", "near", "days"}
    assert arguments["unit"] in ("kelvin", "celsius")
    assert arguments["near"]["at"] in (1, 2, 3)


def test_an_answer_that_must_be_a_call_is_one(qwen: openai.OpenAI) -> None:
    names = set()
    for seed in range(12):
        choice = qwen.chat.completions.create(
            model="tiny-qwen",
            messages=MESSAGES,
            tools=[TIME, WEATHER],
            tool_choice="required",
            seed=seed,
            temperature=2,
        ).choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        (call,) = choice.message.tool_calls
        well_formed(call)
        names.add(call.function.name)
    assert names == {"time", "weather"}


@pytest.mark.parametrize("name", ["weather", "time"])
def test_a_named_tool_is_the_one_called(qwen: openai.OpenAI, name: str) -> None:
    choice = {"type": "function", "function": {"name": name}}
    with qwen.chat.completions.stream(
        model="tiny-qwen", messages=MESSAGES, tools=[TIME, WEATHER], tool_choice=choice, n=2, seed=3
    ) as stream:
        final = stream.get_final_completion()
    for made in final.choices:
        assert made.finish_reason == "tool_calls"
        assert made.message.content is None
        (call,) = made.message.tool_calls
        well_formed(call)
        assert call.function.name == name


def test_a_call_that_was_forced_is_found_in_the_next_prompt(qwen: openai.OpenAI) -> None:
    first = qwen.chat.completions.create(
        model="tiny-qwen", messages=MESSAGES, tools=[WEATHER], tool_choice="required", seed=1
    )
    message = first.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "12"}
    second = qwen.chat.completions.create(
        model="tiny-qwen", messages=[*MESSAGES, message, result], tools=[WEATHER], max_tokens=1
    )
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens


def test_what_cannot_be_forced_is_refused_by_name(qwen: openai.OpenAI) -> None:
    for tools, choice, param, words in (
        (openai.NOT_GIVEN, "required", None, "there are no tools"),
        ([TIME], {"type": "function", "function": {"name": "weather"}}, None, "tool_choice names 'weather'"),
        ([{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}], "required", None, "'f'"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/$defs/nowhere"}}}],
            "required",
            "tools",
            "",
        ),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            qwen.chat.completions.create(model="tiny-qwen", messages=MESSAGES, tools=tools, tool_choice=choice)
        assert caught.value.param == param
        assert words in str(caught.value)
    with pytest.raises(openai.BadRequestError, match="response_format and tools"):
        qwen.chat.completions.create(
            model="tiny-qwen", messages=MESSAGES, tools=[TIME], response_format={"type": "json_object"}
        )


def test_the_default_models_template_has_no_place_for_tools(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="has no place for tools") as caught:
        client.chat.completions.create(model=client.models.list().data[0].id, messages=MESSAGES, tools=[TIME])
    assert caught.value.param == "tools"
