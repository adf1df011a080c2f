"""A prompt as pieces, each named by the part of the prompt it belongs to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pageinn.traffic.record import Chat


class Part(NamedTuple):
    """kind: system, tool, message, template or prompt (a text that names no parts).

    number: tools and messages counted from 1, the system message among the messages; 0 where there is nothing to count.
    label: the tool's name or the message's role.
    """

    kind: str
    number: int = 0
    label: str = ""

    def __str__(self) -> str:
        if self.kind == "tool":
            return f"tool {self.number} '{self.label}'"
        if self.kind == "message":
            return f"message {self.number} ({self.label})"
        return self.kind


class Piece(NamedTuple):
    """A run of a prompt's text. The pieces of a prompt, joined, are the prompt."""

    part: Part
    text: str


TEMPLATE = Part("template")
PROMPT = Part("prompt")

#: Headers of a message in the formats chat templates write, with the end of the message before; group 1 is the role.
#: All begin with "<", written once in front, so that the search skips from one to the next.
_HEADERS = [
    r"(?:\|im_end\|>\s*<)?\|im_start\|>(\w+)\n",
    r"(?:\|eot_id\|>\s*<)?\|start_header_id\|>(\w+)<\|end_header_id\|>\n\n",
    r"(?:\|(?:end|call|return)\|>\s*<)?\|start\|>([\w.]+)[^<\n]*(?:<\|(?:channel|constrain)\|>[^<\n]*)*<\|message\|>",
    r"(?:\|end_of_text\|>\s*<)?\|start_of_role\|>(\w+)[^<\n]*<\|end_of_role\|>",
    r"(?:end_of_turn>\s*<)?start_of_turn>(\w+)\n",
    r"(?:\|end\|>\s*<)?\|(system|user|assistant|tool)\|>\n",
]
_HEADER = re.compile(f"<(?:{'|'.join(_HEADERS)})")
_END = re.compile(r"(?:<\|im_end\|>|<\|eot_id\|>|<\|end\|>|<\|end_of_text\|>|<end_of_turn>|<\|return\|>)\s*\Z")
_EMPTY_ANSWER = re.compile(r"(?:\s|</?think>)*\Z")

#: What gpt-oss', granite's and Llama's templates write at the head of the system message by themselves.
_TEMPLATE_HEAD = re.compile(
    r"\A(?:You are ChatGPT[^\n]*\n)?Knowledge cutoff: [^\n]*\nCurrent date: [^\n]*\n"
    r"|\AKnowledge Cutoff Date: [^.\n]*\.\s+Today's Date: [^.\n]*\.\s"
    r"|\ACutting Knowledge Date: [^\n]*\nToday Date: [^\n]*\n"
)

_TOOL_HINTS = ('"parameters"', '"input_schema"', '"inputSchema"', '"parametersJsonSchema"')
_TOOL_START = re.compile(
    r'\{\s*"(?:type|name|function|description|parameters|input_schema|inputSchema|parametersJsonSchema)"'
)
_DECODER = json.JSONDecoder()
#: So many starts of tools may turn out to be none; each costs a look at up to all that follows.
_FALSE_STARTS = 200
_SYSTEM_ROLES = ("system", "developer")
#: Turns in which templates list the tools.
_TOOL_ROLES = ("available_tools", "tools")


def pieces_of_text(text: str) -> list[Piece]:
    """The parts of a prompt that was rendered by whoever wrote the log, by the marks chat templates leave."""
    headers = list(_HEADER.finditer(text))
    if not headers:
        return list(_with_tools([Piece(PROMPT, text)]))
    pieces = [Piece(TEMPLATE, text[: headers[0].end()])]
    for index, header in enumerate(headers, 1):
        last = index == len(headers)
        end = len(text) if last else headers[index].start()
        role = next(group for group in header.groups() if group is not None)
        content = text[header.end() : end]
        closing = _END.search(content) if last else None
        inside = content[: closing.start()] if closing else content
        generates = last and role in ("assistant", "model") and _EMPTY_ANSWER.match(inside)
        pieces += [Piece(TEMPLATE, inside)] if generates else _message(index, role, inside)
        pieces.append(Piece(TEMPLATE, content[len(inside) :] if last else headers[index][0]))
    return list(_with_tools([piece for piece in pieces if piece.text]))


def pieces_of_chat(chat: Chat, text: str) -> list[Piece]:
    """The parts of a conversation that was rendered as `text`.

    What lies between the contents that are found in it is the template's, or that of messages that are not found.
    """
    pieces: list[Piece] = []
    cursor = 0
    lost: list[Part] = []
    for number, message in enumerate(chat.messages, 1):
        role = str(message.get("role", "user"))
        part = Part("system" if role in _SYSTEM_ROLES and number <= 2 else "message", number, role)
        content = content_text(message.get("content"))
        found = text.find(content, cursor) if content else -1
        if found < 0:
            content = content.strip()
            found = text.find(content, cursor) if content else -1
        if found < 0:
            lost.append(part)
            continue
        pieces.append(Piece(lost[0] if lost else TEMPLATE, text[cursor:found]))
        pieces.append(Piece(part, content))
        cursor, lost = found + len(content), []
    pieces.append(Piece(lost[0] if lost else TEMPLATE, text[cursor:]))
    names = [tool_name(tool) for tool in chat.tools]
    return list(_with_tools([piece for piece in pieces if piece.text], names, declared=bool(names)))


def content_text(content: Any) -> str:
    """A message's content as text: the text parts joined, what is no text by its type."""
    if content is None:
        return ""
    if isinstance(content, list):
        return "".join(
            part.get("text") or f"[{part.get('type', 'part')}]" if isinstance(part, dict) else str(part)
            for part in content
        )
    return str(content)


def tool_name(tool: Any) -> str:
    """The name of a tool in OpenAI's, Anthropic's or Google's shape, or "" if it is none."""
    if not isinstance(tool, dict):
        return ""
    inner = tool.get("function")
    named = inner if isinstance(inner, dict) else tool
    name = named.get("name")
    describes = any(hint.strip('"') in named for hint in (*_TOOL_HINTS, "description"))
    return name if isinstance(name, str) and describes else ""


def _message(index: int, role: str, content: str) -> list[Piece]:
    if role in _SYSTEM_ROLES and index <= 2:
        head = _TEMPLATE_HEAD.match(content)
        cut = head.end() if head else 0
        return [Piece(TEMPLATE, content[:cut]), Piece(Part("system", index, role), content[cut:])]
    return [Piece(TEMPLATE if role in _TOOL_ROLES else Part("message", index, role), content)]


def _with_tools(pieces: list[Piece], names: Sequence[str] = (), declared: bool = False) -> Iterator[Piece]:
    """Schemas of tools cut out of the pieces that hold them.

    names: tools that the request declared. declared: it did, so that schemas in messages are the messages' own.
    """
    count = 0
    for piece in pieces:
        if piece.part.kind in _closed(declared) or not any(hint in piece.text for hint in _TOOL_HINTS):
            yield from _with_types(piece, names) if count == 0 and piece.part.kind == "template" else [piece]
            continue
        cursor = 0
        for start, end, name in _schemas(piece.text):
            count += 1
            if start > cursor:
                yield Piece(piece.part, piece.text[cursor:start])
            yield Piece(Part("tool", count, name), piece.text[start:end])
            cursor = end
        if cursor < len(piece.text):
            yield Piece(piece.part, piece.text[cursor:])


def _closed(declared: bool) -> tuple[str, ...]:
    return ("message", "system") if declared else ("message",)


def _schemas(text: str) -> Iterator[tuple[int, int, str]]:
    cursor = false_starts = 0
    while false_starts < _FALSE_STARTS and (match := _TOOL_START.search(text, cursor)):
        cursor = match.start() + 1
        try:
            value, end = _DECODER.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            false_starts += 1
            continue
        if name := tool_name(value):
            yield match.start(), end, name
            cursor = end


def _with_types(piece: Piece, names: Sequence[str]) -> Iterator[Piece]:
    """Tools written as types, as gpt-oss' template does: each from its comment to the next one's."""
    starts: list[tuple[int, str]] = []
    for name in names:
        match = re.search(rf"(?:^//[^\n]*\n)*^type {re.escape(name)} = ", piece.text, re.MULTILINE)
        if match:
            starts.append((match.start(), name))
    if not starts:
        yield piece
        return
    starts.sort()
    end = piece.text.find("\n} // namespace", starts[-1][0])
    bounds = [start for start, _ in starts] + [end if end >= 0 else len(piece.text)]
    yield Piece(piece.part, piece.text[: bounds[0]])
    for index, (start, name) in enumerate(starts):
        yield Piece(Part("tool", index + 1, name), piece.text[start : bounds[index + 1]])
    if bounds[-1] < len(piece.text):
        yield Piece(piece.part, piece.text[bounds[-1] :])
