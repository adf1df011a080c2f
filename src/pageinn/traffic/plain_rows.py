"""Formats that hold little but a prompt: texts, token ids, ShareGPT's conversations, LMCache's agent traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pageinn.traffic.envelope import Envelope, Place, record_of
from pageinn.traffic.fields import SESSIONS, TIMES, Row, first, is_ids, name_of, objects_of, short, tokens_of
from pageinn.traffic.record import Chat, Record, Text
from pageinn.traffic.report import BadRowError

_TEXTS = ("text", "text_input", "prompt")
_IDS = ("prompt_token_ids", "token_ids", "input_ids", "tokens")
_CONVERSATIONS = ("conversations", "conversation")
#: ShareGPT's names for who speaks.
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant"}


def claims_text(row: Any) -> bool:
    """A JSON string, or an object with a text."""
    return isinstance(row, str) or (isinstance(row, dict) and isinstance(first(row, _TEXTS), str))


def text_records(row: Any, place: Place) -> Iterator[Record]:
    """One prompt."""
    body: Row = {"prompt": row} if isinstance(row, str) else row
    text = first(body, _TEXTS)
    if not isinstance(text, str) or not text:
        raise BadRowError(f"the prompt is {short(text)}, not a text")
    yield record_of(place, Envelope({}, {}, body), Text(text), None)


def claims_ids(row: Any) -> bool:
    """A list of token ids, or an object with one."""
    return (isinstance(row, list) and is_ids(row)) or (isinstance(row, dict) and is_ids(first(row, _IDS)))


def ids_records(row: Any, place: Place) -> Iterator[Record]:
    """One prompt."""
    body: Row = row if isinstance(row, dict) else {"token_ids": row}
    ids = first(body, _IDS)
    if not is_ids(ids) or not ids:
        raise BadRowError(f"the prompt is {short(ids)}, not a list of token ids")
    yield record_of(place, Envelope({}, {}, body), tokens_of(ids, "token ids"), None)


def claims_agent(row: Any) -> bool:
    """A whole prompt as `input`, its answer as `output`, and its session; not the input of an instruction beside it."""
    if not isinstance(row, dict) or "instruction" in row:
        return False
    return isinstance(row.get("input"), str) and ("session_id" in row or "output" in row)


def agent_records(row: Row, place: Place) -> Iterator[Record]:
    """One prompt."""
    text, output = row.get("input"), row.get("output")
    if not isinstance(text, str) or not text:
        raise BadRowError(f"'input' is {short(text)}, not a text")
    around = {key: value for key, value in row.items() if key not in ("input", "output")}
    yield record_of(place, Envelope({}, {}, around), Text(text), output if isinstance(output, str) else None)


def claims_sharegpt(row: Any) -> bool:
    """An object with conversations."""
    return isinstance(row, dict) and isinstance(first(row, _CONVERSATIONS), list)


def sharegpt_records(row: Row, place: Place) -> Iterator[Record]:
    """One record for each answer: its prompt is the conversation before it. Times are the turn's, or else the row's."""
    session = name_of(first(row, ("id", *SESSIONS, "conversation_hash"))) or f"{place.source}:{place.line}"
    time = first(row, TIMES)
    messages: list[Row] = []
    if isinstance(row.get("system"), str) and row["system"]:
        messages.append({"role": "system", "content": row["system"]})
    found = False
    for turn in objects_of(first(row, _CONVERSATIONS), "conversations"):
        speaker = first(turn, ("from", "role"))
        text = first(turn, ("value", "content", "text"))
        if not isinstance(speaker, str) or not isinstance(text, str):
            raise BadRowError("a turn of the conversation has no speaker or no text")
        role = _ROLES.get(speaker.lower(), speaker.lower())
        if role == "assistant" and messages:
            found = True
            when = first(turn, TIMES)
            around = {"session_id": session, "model": row.get("model"), "time": time if when is None else when}
            yield record_of(place, Envelope({}, {}, around), Chat(list(messages), [], {}), text)
        messages.append({"role": role, "content": text})
    if not found:
        raise BadRowError("the conversation has no answer, so no request")
