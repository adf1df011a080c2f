"""What proxies and tracing systems export: LiteLLM's standard logging payload, Langfuse's observations.

Field names as documented in docs.litellm.ai/docs/proxy/logging_spec and in Langfuse's OpenAPI description.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pageinn.traffic.anthropic_bodies import chat as anthropic_chat
from pageinn.traffic.envelope import Place
from pageinn.traffic.fields import TENANTS, Row, count_of, first, name_of, object_of, objects_of, time_of
from pageinn.traffic.openai_bodies import chat as openai_chat
from pageinn.traffic.openai_bodies import prompts
from pageinn.traffic.record import Chat, Length, Prompt, Record, Reported, Text
from pageinn.traffic.report import BadRowError
from pageinn.traffic.usage import reported

_LITELLM = ("standard_logging_object", "standard_logging_payload")
_LITELLM_TENANTS = ("user_api_key_team_id", "user_api_key_org_id", "user_api_key_hash")
#: Calls that have no prompt for a language model.
_OTHER_CALLS = ("embedding", "image", "transcription", "speech", "moderation", "rerank")


def claims_litellm(row: Any) -> bool:
    """A payload, bare or in the keyword arguments of a callback; a row of the spend logs is like one."""
    if not isinstance(row, dict):
        return False
    if first(row, _LITELLM) is not None:
        return True
    return "call_type" in row and "startTime" in row and ("prompt_tokens" in row or "messages" in row)


def litellm_records(row: Row, place: Place) -> Iterator[Record]:
    """One request; none for a call without a prompt, such as an embedding. What failed has no answer, but a prompt."""
    inner = first(row, _LITELLM)
    payload = object_of(inner, "standard_logging_object") if inner is not None else row
    kind = name_of(payload.get("call_type"))
    if any(word in kind for word in _OTHER_CALLS):
        return
    response = payload.get("response")
    answer = response if isinstance(response, dict) else {}
    metadata = _object(payload.get("metadata"))
    said = reported(answer.get("usage"))
    start = time_of(payload.get("startTime"))
    end = time_of(payload.get("endTime"))
    tokens = payload.get("prompt_tokens")
    yield Record(
        source=place.source,
        line=place.line,
        prompt=_prompt(payload.get("messages"), _object(payload.get("model_parameters")), tokens),
        time=start,
        tenant=name_of(first(metadata, _LITELLM_TENANTS)) or name_of(payload.get("team_id")),
        session=name_of(first(payload, ("session_id", "trace_id"))),
        model=name_of(payload.get("model")),
        output_tokens=_count(payload.get("completion_tokens"), "completion_tokens"),
        output=_answer(answer),
        reported=said if said is not None else reported(metadata.get("usage_object")),
        duration=end - start if start is not None and end is not None and end >= start else None,
    )


def claims_langfuse(row: Any) -> bool:
    """An observation, or a trace with its observations."""
    if not isinstance(row, dict):
        return False
    if isinstance(row.get("observations"), list) and all(isinstance(each, dict) for each in row["observations"]):
        return True
    return isinstance(row.get("type"), str) and "startTime" in row and ("traceId" in row or "usageDetails" in row)


def langfuse_records(row: Row, place: Place) -> Iterator[Record]:
    """The generations of a trace, or one; spans and events are no requests."""
    inner = row.get("observations")
    if inner is None:
        inner = [row]
    for each in objects_of(inner, "observations"):
        if each.get("type") == "GENERATION":
            yield _generation(each, row, place)


def _generation(row: Row, trace: Row, place: Place) -> Record:
    usage = {**_object(row.get("usage")), **_object(row.get("usageDetails"))}
    start, end = time_of(row.get("startTime")), time_of(row.get("endTime"))
    given = _parsed(row.get("input"))
    output = _parsed(row.get("output"))
    metadata = _object(trace.get("metadata"))
    return Record(
        source=place.source,
        line=place.line,
        prompt=_prompt(given, _object(row.get("modelParameters")), usage.get("input")),
        time=start,
        tenant=name_of(first(metadata, TENANTS)),
        session=name_of(trace.get("sessionId")) or name_of(first(row, ("sessionId", "traceId"))),
        model=name_of(first(row, ("model", "providedModelName"))),
        output_tokens=_count(usage.get("output"), "output"),
        output=output if isinstance(output, str) else _content(output),
        reported=_langfuse_usage(usage),
        duration=end - start if start is not None and end is not None and end >= start else None,
    )


def _langfuse_usage(usage: Row) -> Reported | None:
    """Langfuse counts each kind of token once, so that `input` is without those that its integrations tell apart."""
    cached = first(usage, ("input_cached_tokens", "cache_read_input_tokens", "input_cache_read"))
    written = first(usage, ("cache_creation_input_tokens", "input_cache_creation"))
    if (cached is None and written is None) or usage.get("input") is None:
        return None
    read, creation = count_of(cached or 0, "cached tokens"), count_of(written or 0, "written tokens")
    return Reported(count_of(usage["input"], "input") + read + creation, read, creation)


def _prompt(given: Any, parameters: Row, tokens: Any) -> Prompt:
    """Messages, a body with messages, or a text; only a length where the log does not store prompts."""
    given = _parsed(given)
    if isinstance(given, str) and given and not given.startswith("redacted-by"):
        return Text(given)
    tools = {"tools": parameters["tools"]} if isinstance(parameters.get("tools"), list) else {}
    if isinstance(given, list) and given:
        return _chat({"messages": given, **tools})
    if isinstance(given, dict) and ("messages" in given or "prompt" in given):
        body = {**tools, **given}
        return _chat(body) if "messages" in body else prompts(body)[0]
    if isinstance(tokens, int | float) and tokens > 0:
        return Length(count_of(tokens, "prompt tokens"))
    raise BadRowError("it holds neither a prompt nor its length")


def _chat(body: Row) -> Chat:
    parts = [part for message in objects_of(body["messages"], "messages") for part in _parts(message)]
    own = "system" in body or any(
        part.get("type") in ("tool_use", "tool_result") or "cache_control" in part for part in parts
    )
    return anthropic_chat(body) if own else openai_chat(body)


def _parts(message: Row) -> list[Row]:
    content = message.get("content")
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _parsed(value: Any) -> Any:
    """Exports write some objects as text."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _object(value: Any) -> Row:
    value = _parsed(value)
    return value if isinstance(value, dict) else {}


def _count(value: Any, name: str) -> int | None:
    return None if value is None else count_of(value, name)


def _answer(answer: Row) -> str | None:
    choices = answer.get("choices")
    if isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], dict):
        return _content(choices[0].get("message"))
    return None


def _content(message: Any) -> str | None:
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, str) else None
