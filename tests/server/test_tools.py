"""Tools over HTTP: what a request may say, and what becomes of an answer with calls in it.

No small model calls tools when asked, so a scripted engine answers; prompts are rendered by Qwen 3's own template.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from pydantic import ValidationError
from scripted import Script, delta, events, serving

from pageinn.engine.client import EngineClient
from pageinn.engine.messages import Delta, FinishReason, GenerationRequest
from pageinn.server.errors import from_validation
from pageinn.server.protocol import ChatRequest
from pageinn.server.served import Served
from pageinn.text.template import ChatTemplate
from pageinn.text.tokenizer import Tokenizer

QWEN3 = (Path(__file__).parents[1] / "data/chat_templates/Qwen-Qwen3-0.6B.jinja").read_text(encoding="utf-8")
HI = [{"role": "user", "content": "How is it in Zürich?"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city":"Zürich"}}\n</tool_call>'


def says(*pieces: str, end: FinishReason = FinishReason.STOP) -> Script:
    """An engine whose choices all say this."""

    async def script(request: GenerationRequest) -> AsyncIterator[Delta]:
        for index in range(request.sampling.n):
            for piece in pieces:
                yield delta(request, piece, index=index)
            yield delta(request, "", end, index)

    return script


@pytest.fixture
def served(byte_tokenizer: Tokenizer) -> Callable[..., object]:
    """Starts a server with Qwen 3's template; gives the official client and the scripted engine."""

    @contextmanager
    def start(script: Script, template: str = QWEN3):
        def made(client: EngineClient) -> Served:
            return Served(client, byte_tokenizer, ChatTemplate(template), "bytes", 4096, 256, 0, {})

        with (
            serving(script, made) as (http, _),
            openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0) as client,
        ):
            yield http, client

    return start


def test_an_answer_with_calls(served) -> None:
    with served(says("Let me see.\n", CALL[:20], CALL[20:], "\n" + CALL)) as (_, client):
        choice = client.chat.completions.create(model="bytes", messages=HI, tools=[TOOL]).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert [call.function.name for call in choice.message.tool_calls] == ["weather", "weather"]
    assert [call.function.arguments for call in choice.message.tool_calls] == ['{"city":"Zürich"}'] * 2
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert {call.type for call in choice.message.tool_calls} == {"function"}


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_a_stream_with_calls_adds_up_to_the_whole(served, size: int) -> None:
    text = "Let me <see>.\n" + CALL + "\n" + CALL
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    with (
        served(says(*pieces)) as (_, client),
        client.chat.completions.stream(model="bytes", messages=HI, tools=[TOOL], n=2) as stream,
    ):
        chunks = [event.chunk for event in stream if event.type == "chunk"]
        final = stream.get_final_completion()
    for choice in final.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.role == "assistant"
        assert choice.message.content == "Let me <see>."
        assert [call.function.arguments for call in choice.message.tool_calls] == ['{"city":"Zürich"}'] * 2
        assert [call.function.name for call in choice.message.tool_calls] == ["weather", "weather"]
    for index in (0, 1):
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert [choice.delta.role for choice in mine] == ["assistant"] + [None] * (len(mine) - 1)
        calls = [call for choice in mine for call in choice.delta.tool_calls or []]
        assert [call.index for call in calls] == [0, 1]
        assert all(call.id and call.type == "function" for call in calls)
        assert [choice.finish_reason for choice in mine] == [None] * (len(mine) - 1) + ["tool_calls"]


def test_text_before_a_call_streams_at_once(served) -> None:
    with served(says("Let ", "me see.", "\n", CALL)) as (http, _):
        body = {"messages": HI, "tools": [TOOL], "stream": True}
        *chunks, done = events(http.post("/v1/chat/completions", json=body).text)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": "Let "}
    assert deltas[1] == {"content": "me see."}
    assert [sorted(each) for each in deltas[2:]] == [["tool_calls"], []]
    assert done == "[DONE]"


def test_a_call_without_words_has_no_content(served) -> None:
    with served(says(CALL)) as (http, client):
        assert (
            client.chat.completions.create(model="bytes", messages=HI, tools=[TOOL]).choices[0].message.content is None
        )
        body = {"messages": HI, "tools": [TOOL], "stream": True}
        first, *_ = events(http.post("/v1/chat/completions", json=body).text)
    assert first["choices"][0]["delta"]["content"] is None
    assert first["choices"][0]["delta"]["tool_calls"][0]["index"] == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tools": [TOOL]}, '<tool_call>{"name": "weather", "arguments": {"city"</tool_call>'),
        ({"tools": [TOOL]}, "I could <tool_call>, but no"),
        ({"tools": [TOOL], "tool_choice": "none"}, CALL),
        ({"tools": []}, CALL),
        ({}, CALL),
    ],
)
def test_what_is_no_call_stays_content(served, fields: dict, text: str, stream: bool) -> None:
    with served(says(*text)) as (http, _):
        got = http.post("/v1/chat/completions", json={"messages": HI, "stream": stream, **fields})
    if stream:
        choices = [chunk["choices"][0] for chunk in events(got.text)[:-1]]
        assert "".join(choice["delta"].get("content") or "" for choice in choices) == text
        assert choices[-1]["finish_reason"] == "stop"
        assert not any("tool_calls" in choice["delta"] for choice in choices)
    else:
        (choice,) = got.json()["choices"]
        assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
        assert choice["finish_reason"] == "stop"


def test_an_answer_cut_short_says_so(served) -> None:
    with served(says(CALL + CALL[:30], end=FinishReason.LENGTH)) as (_, client):
        choice = client.chat.completions.create(model="bytes", messages=HI, tools=[TOOL]).choices[0]
    assert choice.finish_reason == "length"
    assert len(choice.message.tool_calls) == 1
    assert choice.message.content == CALL[:30]


def test_log_probabilities_come_with_calls(served) -> None:
    with served(says(*CALL)) as (http, _):
        body = {"messages": HI, "tools": [TOOL], "stream": True, "logprobs": True}
        chunks = events(http.post("/v1/chat/completions", json=body).text)[:-1]
    assert sum(len(chunk["choices"][0]["logprobs"]["content"]) for chunk in chunks) == len(CALL)


def test_one_call_at_a_time_ends_with_the_first(served) -> None:
    stops: list[tuple[str, ...]] = []

    async def script(request: GenerationRequest) -> AsyncIterator[Delta]:
        stops.append(request.sampling.stop)
        async for piece in says(CALL.removesuffix("</tool_call>"))(request):
            yield piece

    with served(script) as (_, client):
        for parallel in (True, False):
            got = client.chat.completions.create(
                model="bytes", messages=HI, tools=[TOOL], parallel_tool_calls=parallel, stop=["x"]
            )
            assert len(got.choices[0].message.tool_calls) == 1
    assert stops == [("x",), ("x", "</tool_call>")]


def test_tools_calls_and_their_results_reach_the_template(served, byte_tokenizer: Tokenizer) -> None:
    seen: list[str] = []

    async def script(request: GenerationRequest) -> AsyncIterator[Delta]:
        seen.append(byte_tokenizer.decode(list(request.prompt)))
        async for piece in says(CALL)(request):
            yield piece

    with served(script) as (_, client):
        first = client.chat.completions.create(model="bytes", messages=HI, tools=[TOOL])
        message = first.choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "12 °C"}
        client.chat.completions.create(model="bytes", messages=[*HI, message, result], tools=[TOOL], tool_choice="none")
    assert json.dumps(TOOL) in seen[0]
    # The second prompt goes on where the first answer ended: what was computed is found again.
    assert seen[1].startswith(seen[0] + CALL)
    assert "<tool_response>\n12 °C\n</tool_response>" in seen[1]


def test_a_template_without_tools_refuses_them(served) -> None:
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    with served(says("ok"), plain) as (http, _):
        for body, param in (
            ({"messages": HI, "tools": [TOOL]}, "tools"),
            ({"messages": HI, "tools": [TOOL], "tool_choice": "none"}, "tools"),
            ({"messages": [*HI, {"role": "assistant", "tool_calls": [call]}]}, "messages"),
        ):
            got = http.post("/v1/chat/completions", json=body)
            assert got.status_code == 400
            assert got.json()["error"]["param"] == param
            assert "has no place for tool" in got.json()["error"]["message"]


def changed(**function: object) -> dict:
    return {"type": "function", "function": {**TOOL["function"], **function}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": {}}, "tools: input should be a valid list"),
        ({"tools": [{}]}, "field 'tools[0].type' is missing"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type: input should be 'function', not 'custom'"),
        ({"tools": [{**TOOL, "x": 1}]}, "field 'tools[0].x' is not supported"),
        ({"tools": [changed(name="a b")]}, "tools[0].function.name: string should match pattern"),
        ({"tools": [changed(strict=True)]}, "field 'tools[0].function.strict' is not supported"),
        ({"tools": [changed(parameters=[])]}, "tools[0].function.parameters: input should be a valid dictionary"),
        ({"tools": [TOOL, TOOL]}, "tools: two tools have the name 'weather'"),
        ({"tool_choice": "any"}, "tool_choice: must be 'none', 'auto', 'required' or a function by name"),
        ({"tool_choice": 1}, "tool_choice: must be 'none'"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type: input should be 'function'"),
        ({"tool_choice": {"type": "function", "function": {}}}, "field 'tool_choice.function.name' is missing"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls: input should be a valid boolean"),
        ({"functions": [{}]}, "field 'functions' is not supported"),
        ({"function_call": "auto"}, "field 'function_call' is not supported"),
    ],
)
def test_wrong_tools_are_refused_by_name(fields: dict, message: str) -> None:
    assert refusal({"messages": HI, **fields}).startswith(message)


CALLED = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        ({"role": "tool", "content": "a"}, "messages[1]: tool_call_id is needed by role 'tool'"),
        ({"role": "user", "content": "a", "tool_call_id": "1"}, "messages[1]: tool_call_id is needed by role 'tool'"),
        ({"role": "user", "content": "a", "tool_calls": [CALLED]}, "messages[1]: tool_calls are the assistant's"),
        ({"role": "assistant", "content": None}, "field 'messages[1].content' is missing"),
        ({"role": "assistant", "tool_calls": []}, "field 'messages[1].content' is missing"),
        ({"role": "assistant", "tool_calls": [{}]}, "field 'messages[1].tool_calls[0].id' is missing"),
        (
            {"role": "assistant", "tool_calls": [{**CALLED, "function": {"name": "f", "arguments": "[1]"}}]},
            "messages[1].tool_calls[0].function.arguments: must be a JSON object, written as text",
        ),
        (
            {"role": "assistant", "tool_calls": [{**CALLED, "function": {"name": "f", "arguments": "[" * 10**5}}]},
            "messages[1].tool_calls[0].function.arguments: must be a JSON object, written as text",
        ),
    ],
)
def test_wrong_turns_are_refused_by_name(turn: dict, message: str) -> None:
    assert refusal({"messages": [*HI, turn]}).startswith(message)


def refusal(data: dict) -> str:
    with pytest.raises(ValidationError) as caught:
        ChatRequest.model_validate(data)
    error = from_validation(caught.value)
    assert "\n" not in error.message
    return error.message
