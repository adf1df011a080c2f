"""The canonical prompts of a log as request bodies: what is stable first, what varies last, JSON in one order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pageinn.explain.analysis import Explained
from pageinn.explain.kinds import Kind
from pageinn.explain.log import Log
from pageinn.explain.parts import Part, content_text, tool_name
from pageinn.explain.prompts import Rewritten, moved_block, whole_text
from pageinn.explain.units import Laid
from pageinn.text.canonical import canonical
from pageinn.traffic.record import Chat, Record, Text


def fixed_records(explained: Explained) -> Iterator[Record]:
    """The log's records with the fixes that do not change what a model is told, in the order they were replayed."""
    log = explained.log
    orders = any(
        finding.kind in (Kind.KEY_ORDER, Kind.TOOL_ORDER) and finding.part.kind == "tool"
        for finding in explained.report.findings
    )
    for record, laid, prompt in zip(log.records, log.prompts, explained.written, strict=True):
        if isinstance(record.prompt, Chat):
            chat = record.prompt if prompt.laid is laid else _chat(record.prompt, laid, prompt, log)
            yield replace(record, prompt=_ordered(chat) if orders else chat)
        elif prompt.laid is laid:
            yield record
        else:
            yield replace(record, prompt=Text(whole_text(prompt, log.units)))


def body(record: Record) -> dict[str, Any]:
    """A record as an OpenAI request body. Requests that were not explained have none: they are not in a fixed log."""
    row: dict[str, Any] = {"model": record.model} if record.model else {}
    if record.tenant:
        row["metadata"] = {"tenant": record.tenant}
    prompt = record.prompt
    if isinstance(prompt, Chat):
        row["messages"] = prompt.messages
        if prompt.tools:
            row["tools"] = prompt.tools
        if prompt.template_kwargs:
            row["chat_template_kwargs"] = prompt.template_kwargs
    elif isinstance(prompt, Text):
        row["prompt"] = prompt.text
    return row


def _chat(chat: Chat, laid: Laid, prompt: Rewritten, log: Log) -> Chat:
    before, after = _texts(laid, log), _texts(prompt.laid, log)
    messages = [dict(message) for message in chat.messages]
    for part, text in after.items():
        if part.kind in ("system", "message") and text != before.get(part):
            message = messages[part.number - 1]
            calls = json.dumps(message["tool_calls"], ensure_ascii=False) if message.get("tool_calls") else ""
            message["content"] = text.removesuffix(calls)
    if prompt.moved:
        last = messages[-1]
        block = moved_block(prompt.moved)
        if isinstance(last.get("content"), list):
            last["content"] = [*last["content"], {"type": "text", "text": block}]
        else:
            last["content"] = content_text(last.get("content")).rstrip("\n") + block
    return Chat(messages, chat.tools, chat.template_kwargs)


def _ordered(chat: Chat) -> Chat:
    return chat._replace(tools=[canonical(tool) for tool in sorted(chat.tools, key=tool_name)])


def _texts(laid: Laid, log: Log) -> dict[Part, str]:
    """The text of each part; schemas that stand in a system message are in its text."""
    texts: dict[Part, str] = {}
    inside: Part | None = None
    for part, text in log.units.pieces(laid):
        if part.kind != "tool":
            inside = part
        whole = inside if part.kind == "tool" and inside is not None and inside.kind == "system" else part
        texts[whole] = texts.get(whole, "") + text
    return texts
