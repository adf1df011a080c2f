"""What LiteLLM, Langfuse and OpenTelemetry export, in the shapes they document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pageinn.traffic import Chat, Length, Record, Reported, Text, read

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}]
LITELLM = {
    "id": "chatcmpl-1",
    "trace_id": "t-1",
    "call_type": "acompletion",
    "status": "success",
    "prompt_tokens": 2006,
    "completion_tokens": 300,
    "total_tokens": 2306,
    "startTime": 1741873320.5,
    "endTime": 1741873322.75,
    "completionStartTime": 1741873321.0,
    "model": "gpt-4o",
    "model_parameters": {"temperature": 0, "tools": [{"type": "function", "function": {"name": "f"}}]},
    "messages": MESSAGES,
    "metadata": {"user_api_key_team_id": "team-a", "user_api_key_user_id": "ann"},
    "response": {
        "choices": [{"message": {"role": "assistant", "content": "Hello."}}],
        "usage": {"prompt_tokens": 2006, "completion_tokens": 300, "prompt_tokens_details": {"cached_tokens": 1920}},
    },
}


def read_one(path: Path, *rows: Any) -> tuple[list[Record], dict[str, int]]:
    log = path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    reading = read([log])
    return list(reading), dict(reading.report.formats)


def test_litellm(tmp_path: Path) -> None:
    found, formats = read_one(tmp_path, LITELLM, {"standard_logging_object": LITELLM})
    assert formats == {"litellm": 2}
    for record in found:
        assert record.prompt == Chat(MESSAGES, [{"type": "function", "function": {"name": "f"}}], {})
        assert (record.tenant, record.session, record.model) == ("team-a", "t-1", "gpt-4o")
        assert (record.time, record.duration, record.output_tokens) == (1741873320.5, 2.25, 300)
        assert (record.output, record.reported) == ("Hello.", Reported(2006, 1920, 0))


def test_litellm_before_anthropic(tmp_path: Path) -> None:
    """LiteLLM's prompt_tokens have Anthropic's cached ones in them, unlike Anthropic's own input_tokens."""
    usage = {"prompt_tokens": 18135, "cache_read_input_tokens": 18131, "cache_creation_input_tokens": 0}
    found, _ = read_one(tmp_path, {**LITELLM, "response": {"usage": usage}})
    assert found[0].reported == Reported(18135, 18131, 0)


def test_litellm_without_stored_prompts(tmp_path: Path) -> None:
    hidden = {**LITELLM, "messages": "redacted-by-litellm"}
    found, _ = read_one(tmp_path, hidden, {**LITELLM, "messages": {}}, {**LITELLM, "call_type": "aembedding"})
    assert [record.prompt for record in found] == [Length(2006), Length(2006)]


GENERATION = {
    "id": "o-1",
    "traceId": "t-1",
    "type": "GENERATION",
    "startTime": "2025-03-13T13:42:00.500Z",
    "endTime": "2025-03-13T13:42:02.750Z",
    "model": "gpt-4o",
    "input": {"messages": MESSAGES},
    "output": {"role": "assistant", "content": "Hello."},
    "usageDetails": {"input": 86, "input_cached_tokens": 1920, "output": 300, "total": 2306},
}


def test_langfuse_observations(tmp_path: Path) -> None:
    as_text = {**GENERATION, "input": json.dumps(MESSAGES)}
    found, formats = read_one(tmp_path, GENERATION, as_text, {**GENERATION, "type": "SPAN"})
    assert formats == {"langfuse": 3}
    assert len(found) == 2
    for record in found:
        assert record.prompt == Chat(MESSAGES, [], {})
        assert (record.session, record.time, record.duration) == ("t-1", 1741873320.5, 2.25)
        assert (record.output, record.output_tokens) == ("Hello.", 300)
        assert record.reported == Reported(2006, 1920, 0)


def test_langfuse_traces(tmp_path: Path) -> None:
    trace = {
        "id": "t-1",
        "sessionId": "s-1",
        "metadata": {"tenant": "acme"},
        "observations": [GENERATION, {"type": "EVENT"}],
    }
    path = tmp_path / "export.json"
    path.write_text(json.dumps([trace, trace], indent=2))
    found = list(read([path]))
    assert [(record.session, record.tenant) for record in found] == [("s-1", "acme")] * 2


def typed(value: Any) -> dict[str, Any]:
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"stringValue": value if isinstance(value, str) else json.dumps(value)}


def listed(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": typed(value)} for key, value in attributes.items()]


ATTRIBUTES = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "claude",
    "gen_ai.conversation.id": "c-1",
    "gen_ai.system_instructions": [{"type": "text", "content": "Be brief."}],
    "gen_ai.input.messages": [
        {"role": "user", "parts": [{"type": "text", "content": "Look."}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "1", "name": "ls", "arguments": {"d": "."}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": "a.txt"}]},
    ],
    "gen_ai.output.messages": [{"role": "assistant", "parts": [{"type": "text", "content": "One."}]}],
    "gen_ai.tool.definitions": [{"type": "function", "name": "ls", "parameters": {"type": "object"}}],
    "gen_ai.usage.input_tokens": 100,
    "gen_ai.usage.output_tokens": 5,
    "gen_ai.usage.cache_read.input_tokens": 80,
    "gen_ai.usage.cache_creation.input_tokens": 10,
}


def test_otlp_spans(tmp_path: Path) -> None:
    span = {
        "traceId": "t",
        "startTimeUnixNano": "1741873320500000000",
        "endTimeUnixNano": "1741873322750000000",
        "attributes": listed(ATTRIBUTES),
    }
    other = {"traceId": "t", "name": "GET", "attributes": listed({"http.method": "GET"})}
    resource = {"attributes": listed({"tenant.id": "acme"})}
    batch = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [other, span]}]}]}
    (record,), formats = read_one(tmp_path, batch)
    assert formats == {"otel": 1}
    call = {"id": "1", "type": "function", "function": {"name": "ls", "arguments": '{"d": "."}'}}
    assert record.prompt == Chat(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "a.txt"},
        ],
        [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}],
        {},
    )
    assert (record.tenant, record.session, record.model, record.output) == ("acme", "c-1", "claude", "One.")
    assert (record.time, record.duration, record.output_tokens) == (1741873320.5, 2.25, 5)
    assert record.reported == Reported(100, 80, 10)


def test_a_span_a_line_with_numbered_messages(tmp_path: Path) -> None:
    attributes = {
        "gen_ai.prompt.1.role": "user",
        "gen_ai.prompt.1.content": "Hi.",
        "gen_ai.prompt.0.role": "system",
        "gen_ai.prompt.0.content": "Be brief.",
        "gen_ai.completion.0.content": "Hello.",
        "gen_ai.usage.prompt_tokens": 4,
        "gen_ai.usage.cache_read_input_tokens": 18131,
    }
    (record,), _ = read_one(tmp_path, {"trace_id": "t", "start_time": "2025-03-13T13:42:00Z", "attributes": attributes})
    assert record.prompt == Chat(MESSAGES, [], {})
    assert (record.output, record.time) == ("Hello.", 1741873320.0)
    assert record.reported == Reported(18135, 18131, 0)


def test_spans_without_content_have_a_length(tmp_path: Path) -> None:
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 100}
    plain = {"gen_ai.prompt": "Once upon a time", "gen_ai.operation.name": "text_completion"}
    found, _ = read_one(tmp_path, {"attributes": attributes}, {"attributes": plain})
    assert [record.prompt for record in found] == [Length(100), Text("Once upon a time")]
