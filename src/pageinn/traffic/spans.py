"""OpenTelemetry spans of calls to language models, by the GenAI semantic conventions.

As OTLP's JSON writes them (resourceSpans), or one span a line with its attributes as an object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from pageinn.traffic.envelope import Place
from pageinn.traffic.fields import Row, count_of, first, name_of, objects_of, optional_count, time_of
from pageinn.traffic.record import Chat, Length, Prompt, Record, Reported, Text
from pageinn.traffic.report import BadRowError

_TENANTS = ("tenant.id", "tenant_id", "tenant")
_SESSIONS = ("gen_ai.conversation.id", "session.id")
#: Older conventions and OpenLLMetry number the messages: gen_ai.prompt.0.role, gen_ai.prompt.0.content.
_NUMBERED = "gen_ai.prompt."
_EVENT = "gen_ai.client.inference.operation.details"
#: In between, each message was an event of the span.
_MESSAGE_EVENT = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")


def claims(row: Any) -> bool:
    """An OTLP batch, or a span with such attributes."""
    if not isinstance(row, dict):
        return False
    if isinstance(row.get("resourceSpans"), list):
        return True
    return any(name.startswith("gen_ai.") for name in _attributes(row.get("attributes")))


def records(row: Row, place: Place) -> Iterator[Record]:
    """One record for each call of a model; other spans are passed over."""
    for span in _spans(row):
        yield from _records(span, place)


def _spans(row: Row) -> Iterator[Row]:
    if "resourceSpans" not in row:
        yield row
        return
    for resource in objects_of(row["resourceSpans"], "resourceSpans"):
        shared = _attributes((resource.get("resource") or {}).get("attributes"))
        for scope in objects_of(resource.get("scopeSpans"), "scopeSpans"):
            for span in objects_of(scope.get("spans"), "spans"):
                yield {**span, "attributes": {**shared, **_attributes(span.get("attributes"))}}


def _attributes(given: Any) -> Row:
    """As an object, or OTLP's list of keys and typed values."""
    if isinstance(given, dict):
        return given
    if not isinstance(given, list):
        return {}
    return {
        each["key"]: _value(each.get("value"))
        for each in given
        if isinstance(each, dict) and isinstance(each.get("key"), str)
    }


def _value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "intValue" in value:
        return int(value["intValue"])
    if "arrayValue" in value:
        return [_value(each) for each in (value["arrayValue"] or {}).get("values", [])]
    if "kvlistValue" in value:
        return _attributes((value["kvlistValue"] or {}).get("values", []))
    return first(value, ("stringValue", "doubleValue", "boolValue"))


def _records(span: Row, place: Place) -> Iterator[Record]:
    said = _attributes(span.get("attributes"))
    told: list[Row] = []
    for event in span.get("events") or []:
        if isinstance(event, dict) and event.get("name") == _EVENT:
            said = {**said, **_attributes(event.get("attributes"))}
        elif isinstance(event, dict) and (found := _MESSAGE_EVENT.fullmatch(name_of(event.get("name")))):
            told.append(_message_event(found[1], _attributes(event.get("attributes"))))
    prompt = _prompt(said, told)
    if prompt is None:
        return
    start = time_of(_number(first(span, ("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime"))))
    end = time_of(_number(first(span, ("endTimeUnixNano", "end_time_unix_nano", "end_time", "endTime"))))
    yield Record(
        source=place.source,
        line=place.line,
        prompt=prompt,
        time=start,
        tenant=name_of(first(said, _TENANTS)),
        session=name_of(first(said, _SESSIONS)) or name_of(first(span, ("traceId", "trace_id"))),
        model=name_of(first(said, ("gen_ai.request.model", "gen_ai.response.model"))),
        output_tokens=optional_count(
            first(said, ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")), "output_tokens"
        ),
        output=_output(said),
        reported=_reported(said),
        duration=end - start if start is not None and end is not None and end >= start else None,
    )


def _number(value: Any) -> Any:
    """OTLP's JSON writes nanoseconds as text."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _message_event(role: str, said: Row) -> Row:
    """A message; its content is an attribute, or in the JSON of `gen_ai.event.content`."""
    written = said.get("gen_ai.event.content")
    if isinstance(written, str) and written.lstrip().startswith("{"):
        said = {**said, **_list(f"[{written}]")[0]}
    message: Row = {"role": role, "content": _written(said.get("content"))}
    calls = said.get("tool_calls")
    return {**message, "tool_calls": _list(calls)} if calls else message


def _prompt(said: Row, told: list[Row]) -> Prompt | None:
    """told: messages that events of the span say."""
    operation = said.get("gen_ai.operation.name")
    if operation in ("embeddings", "execute_tool", "create_agent", "invoke_agent", "invoke_workflow"):
        return None
    tools = [_tool(tool) for tool in _list(said.get("gen_ai.tool.definitions"))]
    messages = _messages(said.get("gen_ai.system_instructions"), said.get("gen_ai.input.messages"))
    if not messages:
        messages = told or _numbered(said)
    if messages:
        return Chat(messages, tools, {})
    if isinstance(said.get("gen_ai.prompt"), str):
        return Text(said["gen_ai.prompt"])
    tokens = first(said, ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"))
    return Length(count_of(tokens, "gen_ai.usage.input_tokens")) if tokens is not None else None


def _tool(tool: Row) -> Row:
    return (
        tool if "function" in tool else {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
    )


def _list(value: Any) -> list[Row]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadRowError("an attribute that should hold messages is not JSON") from error
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _messages(system: Any, given: Any) -> list[Row]:
    parts = _list(system)
    messages: list[Row] = [{"role": "system", "content": _text(parts)}] if parts else []
    for message in _list(given):
        role = name_of(message.get("role")) or "user"
        inner = [part for part in message.get("parts") or [] if isinstance(part, dict)]
        for part in inner:
            if part.get("type") == "tool_call_response":
                answer = {"role": "tool", "tool_call_id": name_of(part.get("id"))}
                messages.append({**answer, "content": _written(first(part, ("response", "result")))})
        calls = [_call(part) for part in inner if part.get("type") == "tool_call"]
        rest = [part for part in inner if part.get("type") not in ("tool_call", "tool_call_response")]
        if rest or calls or not inner:
            content = _text(rest) if inner else _written(message.get("content"))
            messages.append({"role": role, "content": content, **({"tool_calls": calls} if calls else {})})
    return messages


def _call(part: Row) -> Row:
    function = {"name": name_of(part.get("name")), "arguments": _written(part.get("arguments") or {})}
    return {"id": name_of(part.get("id")), "type": "function", "function": function}


def _written(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def _text(parts: list[Row]) -> str | list[Row]:
    """Text where all of it is; else the parts as they are, to be told apart by their content."""
    if all(part.get("type") in ("text", "reasoning") for part in parts):
        return "".join(_written(part.get("content")) for part in parts)
    return [{"type": "text", "text": part["content"]} if part.get("type") == "text" else part for part in parts]


def _numbered(said: Row) -> list[Row]:
    found: dict[int, Row] = {}
    for name, value in said.items():
        number, _, field = name.removeprefix(_NUMBERED).partition(".")
        if name.startswith(_NUMBERED) and number.isdecimal() and field in ("role", "content"):
            found.setdefault(int(number), {"role": "user", "content": ""})[field] = _written(value)
    return [found[number] for number in sorted(found)]


def _output(said: Row) -> str | None:
    messages = _messages(None, said.get("gen_ai.output.messages"))
    if len(messages) == 1 and isinstance(messages[0]["content"], str) and "tool_calls" not in messages[0]:
        return messages[0]["content"]
    numbered = said.get("gen_ai.completion.0.content")
    return numbered if isinstance(numbered, str) and "gen_ai.completion.1.content" not in said else None


def _reported(said: Row) -> Reported | None:
    """The convention's input_tokens have the cached ones in them. Older instrumentations of Anthropic differ: a total
    that is less than its cached part is without it.
    """
    read = said.get("gen_ai.usage.cache_read.input_tokens")
    written = said.get("gen_ai.usage.cache_creation.input_tokens")
    total = first(said, ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"))
    old_read = said.get("gen_ai.usage.cache_read_input_tokens")
    old_written = said.get("gen_ai.usage.cache_creation_input_tokens")
    if total is None:
        return None
    whole = count_of(total, "gen_ai.usage.input_tokens")
    if read is not None or written is not None:
        return Reported(whole, count_of(read or 0, "cache_read"), count_of(written or 0, "cache_creation"))
    if old_read is None and old_written is None:
        return None
    cached, created = count_of(old_read or 0, "cache_read"), count_of(old_written or 0, "cache_creation")
    return Reported(whole + cached + created if whole < cached + created else whole, cached, created)
