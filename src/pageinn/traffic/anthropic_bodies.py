"""Anthropic's messages, brought to OpenAI's shape, bare or beside their answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pageinn.traffic.envelope import Place, opened, record_of
from pageinn.traffic.fields import Row, objects_of, short
from pageinn.traffic.openai_bodies import claims as has_body
from pageinn.traffic.record import Chat, Record
from pageinn.traffic.report import BadRowError

_OWN_PARTS = ("tool_use", "tool_result", "thinking", "redacted_thinking")


def claims(row: Row) -> bool:
    """Whether a row holds a body that only Anthropic's API takes, or an answer of its shape."""
    if not has_body(row):
        return False
    try:
        body, answer, _ = opened(row)
    except BadRowError:
        return False
    if "messages" not in body:
        return False
    if "anthropic_version" in body or "system" in body or answer.get("type") == "message":
        return True
    tools, messages = body.get("tools"), body["messages"]
    if isinstance(tools, list) and any(isinstance(tool, dict) and "input_schema" in tool for tool in tools):
        return True
    given = messages if isinstance(messages, list) else []
    contents = [message.get("content") for message in given if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
    return any(part.get("type") in _OWN_PARTS or "cache_control" in part for part in parts)


def records(row: Row, place: Place) -> Iterator[Record]:
    """The record of one body. Raises BadRowError."""
    envelope = opened(row)
    yield record_of(place, envelope, chat(envelope.body), _output(envelope.answer))


def chat(body: Row) -> Chat:
    """The conversation in OpenAI's shape: the system prompt first, tool results as messages of their own."""
    if not objects_of(body.get("messages"), "messages"):
        raise BadRowError("'messages' is empty")
    whole = _chat(body)
    return whole._replace(breakpoints=tuple(_chat(part) for part in _up_to_breakpoints(body)))


def _chat(body: Row) -> Chat:
    messages: list[Row] = []
    system = body.get("system")
    if system:
        messages.append({"role": "system", "content": _text(system, "system")})
    for place, message in enumerate(objects_of(body.get("messages"), "messages")):
        messages += _messages(message, place)
    tools = [_tool(tool) for tool in objects_of(body.get("tools"), "tools")]
    return Chat(messages, tools, {})


def _up_to_breakpoints(body: Row) -> Iterator[Row]:
    """The body cut behind each part that has a `cache_control`, in their order: tools, system, messages.

    One of the body itself stands at its end.
    """
    tools = objects_of(body.get("tools"), "tools")
    for count in _marked(tools):
        yield {"tools": tools[:count]}
    system = body.get("system")
    for count in _marked(system):
        yield {"tools": tools, "system": objects_of(system, "system")[:count]}
    given = objects_of(body.get("messages"), "messages")
    for place, message in enumerate(given):
        content = message.get("content")
        for count in _marked(content):
            cut = {**message, "content": objects_of(content, "content")[:count]}
            yield {"tools": tools, "system": system, "messages": [*given[:place], cut]}
    if body.get("cache_control"):
        yield {key: body.get(key) for key in ("tools", "system", "messages")}


def _marked(parts: Any) -> list[int]:
    """How many parts there are up to each that is marked, this one too."""
    if not isinstance(parts, list):
        return []
    return [count for count, part in enumerate(parts, 1) if isinstance(part, dict) and part.get("cache_control")]


def _tool(tool: Row) -> Row:
    function = {"name": tool.get("name", ""), "description": tool.get("description", "")}
    function["parameters"] = tool.get("input_schema", {})
    return {"type": "function", "function": function}


def _messages(message: Row, place: int) -> list[Row]:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise BadRowError(f"messages[{place}] has no role")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    found: list[Row] = []
    parts: list[Row] = []
    calls: list[Row] = []
    for part in objects_of(content, f"messages[{place}].content"):
        kind = part.get("type")
        if kind == "tool_use":
            written = json.dumps(part.get("input", {}), ensure_ascii=False)
            function = {"name": part.get("name", ""), "arguments": written}
            calls.append({"id": part.get("id", ""), "type": "function", "function": function})
        elif kind == "tool_result":
            result = _text(part.get("content") or "", "tool_result")
            found.append({"role": "tool", "tool_call_id": part.get("tool_use_id", ""), "content": result})
        elif kind == "thinking":
            parts.append({"type": "text", "text": str(part.get("thinking", ""))})
        else:
            parts.append({key: value for key, value in part.items() if key != "cache_control"})
    if parts or calls or not found:
        said: Row = {"role": role, "content": parts}
        if all(part.get("type") == "text" for part in parts):
            said["content"] = "".join(str(part.get("text", "")) for part in parts)
        if calls:
            said["tool_calls"] = calls
        found.append(said)
    return found


def _text(content: Any, name: str) -> str | list[Row]:
    if isinstance(content, str):
        return content
    parts = objects_of(content, name)
    if all(part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts):
        return "".join(part["text"] for part in parts)
    if not parts:
        raise BadRowError(f"'{name}' is {short(content)}")
    return parts


def _output(answer: Row) -> str | None:
    content = answer.get("content")
    if not isinstance(content, list):
        return None
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    return "".join(text for text in texts if isinstance(text, str)) if len(texts) == len(content) else None
