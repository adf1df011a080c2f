"""Tool calls in an answer, as Hermes and Qwen write them: <tool_call>{"name": ..., "arguments": {...}}</tool_call>.

What the parser gives back does not depend on how the text was cut into pieces. A call is given out when it is
complete, never in part: until its end it may turn out not to be one, and then it is text.
"""

from __future__ import annotations

import json
from typing import NamedTuple, NoReturn

OPEN, CLOSE = "<tool_call>", "</tool_call>"
#: What JSON may hold outside its strings.
_JSON = frozenset(' \t\r\n{}[],:"+-.0123456789eEtrufalsn')


class ToolCall(NamedTuple):
    """A call. arguments: the JSON object as the model wrote it, to the letter."""

    name: str
    arguments: str


class ToolCallParser:
    """One answer's text in pieces to text and calls.

    The newline before a call and white space after one belong to the format and are dropped; all else that is no
    call is given out as it came. The end of the answer may stand for the last closing tag.
    """

    def __init__(self) -> None:
        self._text = ""  # not given out yet; inside a call, from its opening tag on
        self._dropped = ""  # what the format swallowed before that tag
        self._object: _Object | None = None  # inside a call
        self._after_call = False  # nothing but white space since a call

    def feed(self, text: str, last: bool = False) -> list[str | ToolCall]:
        """What has become certain; with `last`, all that is left."""
        self._text += text
        found: list[str | ToolCall] = []
        while (item := self._outside(last) if self._object is None else self._inside(self._object, last)) is not None:
            if item:
                found.append(item)
        return found

    def _outside(self, last: bool) -> str | None:
        """Text up to the next opening tag, or to where one may begin; None when there is no more to do."""
        at = self._text.find(OPEN)
        end = at if at >= 0 else len(self._text) if last else self._certain()
        if at < 0 and end == 0:
            return None
        text, self._text = self._text[:end], self._text[end:]
        kept = text.removesuffix("\n") if at >= 0 else text
        if self._after_call and not text.strip():
            kept = ""
        if at >= 0:
            self._dropped = text[len(kept) :]
            self._object = _Object(len(OPEN))
        self._after_call = self._after_call and not kept
        return kept

    def _certain(self) -> int:
        """How much of the text cannot be the beginning of a call."""
        size = next(size for size in range(len(OPEN) - 1, -1, -1) if self._text.endswith(OPEN[:size]))
        end = len(self._text) - size
        if self._after_call and not self._text[:end].strip():
            return 0
        return end - 1 if self._text[:end].endswith("\n") else end

    def _inside(self, scanned: _Object, last: bool) -> str | ToolCall | None:
        """The call, or its text if it is none; None if that is not known yet."""
        if not scanned.scan(self._text):
            if scanned.broken:
                return self._as_text(scanned.end)
            return self._as_text(len(self._text)) if last else None
        call = scanned.call(self._text)
        rest = self._text[scanned.end :].lstrip()
        if call is None or not (rest.startswith(CLOSE) or CLOSE.startswith(rest)):
            return self._as_text(scanned.end)
        if not (rest.startswith(CLOSE) or last):
            return None
        self._text = rest.removeprefix(CLOSE) if rest.startswith(CLOSE) else ""
        self._object = None
        self._after_call = True
        return call

    def _as_text(self, end: int) -> str:
        text, self._text = self._dropped + self._text[:end], self._text[end:]
        self._object = None
        self._after_call = False
        return text


class _Object:
    """A JSON object's extent, found piece by piece; each character is looked at once."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start  # behind the last character looked at
        self.broken = False
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._read: tuple[ToolCall | None] | None = None

    def scan(self, text: str) -> bool:
        """Whether the object is complete; `broken` says that it can never be, because of the character at `end`."""
        if self.end > self.start and self._depth == 0 and text[self.end - 1] == "}":
            return True
        while self.end < len(text):
            character = text[self.end]
            if self._in_string:
                if character < " ":
                    self.broken = True
                    return False
                self._string(character)
            elif character not in _JSON or (self._depth == 0 and not (character.isspace() or character == "{")):
                self.broken = True
                return False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
            self.end += 1
            if self._depth == 0 and character in "}]":
                return True
        return False

    def _string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False

    def call(self, text: str) -> ToolCall | None:
        """What the complete object says, None if it is no call. Read once, however often asked."""
        if self._read is None:
            self._read = (_read(text[self.start : self.end].lstrip()),)
        return self._read[0]


def _read(text: str) -> ToolCall | None:
    try:
        whole = json.loads(text, parse_constant=_no_constant)
        name, arguments = whole.get("name"), whole.get("arguments")
        if not (isinstance(name, str) and name and isinstance(arguments, dict)):
            return None
        name.encode()  # half of a surrogate pair is no character, and could not be sent
        return ToolCall(name, _member(text, "arguments"))
    except (ValueError, RecursionError):
        return None


def _member(text: str, wanted: str) -> str:
    """A member of a valid JSON object as it is written; of several of that name the last, as json.loads has it."""
    decoder = json.JSONDecoder()
    found = ""
    at = 0
    while text[at] != "}":
        key, at = decoder.raw_decode(text, _skip(text, at + 1))
        start = _skip(text, _skip(text, at) + 1)
        _, end = decoder.raw_decode(text, start)
        if key == wanted:
            found = text[start:end]
        at = _skip(text, end)
    return found


def _skip(text: str, at: int) -> int:
    """Past white space."""
    while text[at] in " \t\r\n":
        at += 1
    return at


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
