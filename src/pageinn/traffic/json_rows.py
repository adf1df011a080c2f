"""JSON values from a stream: one a line, or one document (an array of rows, or rows written over many lines)."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import orjson

from pageinn.traffic.report import BadRowError

_CHUNK = 1 << 20
_BLANK = " \t\r\n"
#: What JSON may begin with; "[INST]" is text.
_BEGINNING = re.compile(rb'"|\{\s*(["}]|$)|\[\s*([\[{"\d\]-]|true|false|null|$)')
#: A first line after which an array goes on: its bracket, or a row and a comma.
_OPENS_ARRAY = re.compile(rb"((\A|:\s*)\[|\}\s*,)\s*\Z")
#: Under which names exports wrap their rows.
_WRAPPERS = frozenset(("data", "rows", "items", "requests"))


class Numbered(NamedTuple):
    """A value and the line it began on; a BadRowError in the place of one that is broken."""

    line: int
    value: Any


def is_lines(head: bytes) -> bool | None:
    """Whether the first row ends with its line; None if the text is no JSON at all."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not _BEGINNING.match(text):
        return None
    line, _, rest = text.partition(b"\n")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        # Cut by the end of what is looked at, or a document that goes on, or a broken first row before good ones.
        if not rest or (_second_line_is_a_row(rest) and not _OPENS_ARRAY.search(line)):
            return True
        return None if text.startswith(b'"') else False
    return not (isinstance(value, list) and value and isinstance(value[0], dict))


def _second_line_is_a_row(rest: bytes) -> bool:
    for line in map(bytes.rstrip, rest.split(b"\n")[:20]):
        if line.startswith((b"{", b"[")):
            try:
                # What a comma follows is a row of an array.
                return isinstance(json.loads(line.removesuffix(b",")), dict | list) and not line.endswith(b",")
            except (ValueError, RecursionError):
                continue
    return False


def mostly_rows(head: bytes) -> bool:
    """Whether at least half of the lines are objects, whatever the first one is: a log may be cut at its beginning."""
    lines = [line for line in head.split(b"\n") if line.strip()]
    # The last line may be cut by the end of what is looked at.
    objects = sum(map(_is_object, lines))
    return bool(objects) and 2 * objects >= len(lines) - 1


def _is_object(line: bytes) -> bool:
    try:
        return line.lstrip().startswith(b"{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def rows_inside(value: Any) -> list[Any] | None:
    """The rows of an object that wraps them, as the answers of Langfuse's API do."""
    if not isinstance(value, dict) or _WRAPPERS.isdisjoint(value):
        return None
    for name in sorted(_WRAPPERS.intersection(value)):
        inner = value[name]
        if isinstance(inner, list) and inner and all(isinstance(row, dict) for row in inner):
            return inner
    return None


def from_lines(stream: BinaryIO) -> Iterator[Numbered]:
    """One value a line; blank lines are passed over."""
    for number, line in enumerate(stream, 1):
        if not line.strip():
            continue
        try:
            yield Numbered(number, _value(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line))
        except UnicodeDecodeError:
            yield Numbered(number, BadRowError("not UTF-8"))
        except RecursionError:
            yield Numbered(number, BadRowError("JSON nested too deeply"))
        except ValueError as error:
            yield Numbered(number, BadRowError(f"not JSON: {error}"))


def _value(line: bytes) -> Any:
    """Quickly where it can be; Python's own reader takes more (NaN), and says better what is wrong."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return _whole(json.loads(line))


def _whole(value: Any) -> Any:
    """The value with replacement characters for halves of surrogate pairs, which no tokenizer and no file takes."""
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, list):
        return [_whole(each) for each in value]
    if isinstance(value, dict):
        return {whole_text(name): _whole(each) for name, each in value.items()}
    return value


def whole_text(text: str) -> str:
    """The text with replacement characters for halves of surrogate pairs."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def from_document(stream: BinaryIO) -> Iterator[Numbered]:
    """The rows of an array, or values after one another, read piece by piece. What follows a broken row is lost."""
    decoder = json.JSONDecoder()
    text = _Text(stream)
    if text.skip(_BLANK + "\ufeff") == "[":
        text.take(1)
    while text.skip(_BLANK + ","):
        if text.buffer.startswith("]", text.start):
            text.take(1)
            continue
        while True:
            try:
                value, end = decoder.raw_decode(text.buffer, text.start)
            except (ValueError, RecursionError) as error:
                if isinstance(error, ValueError) and text.more():
                    continue
                yield Numbered(text.line, BadRowError(f"not JSON: {error}; nothing after it was read"))
                return
            if end == len(text.buffer) and text.more():
                # A number may go on in the next piece.
                continue
            try:
                row = _whole(value)
            except RecursionError:
                row = BadRowError("JSON nested too deeply")
            yield Numbered(text.line, row)
            text.take(end - text.start)
            break


class _Text:
    """Decoded text of a stream with a place in it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._size = _CHUNK
        self._ended = False
        self.buffer = ""
        self.start = 0
        self.line = 1

    def more(self) -> bool:
        """Read on, twice as much each time, so that a long row is not decoded again too often; False at the end."""
        if self._ended:
            return False
        data = self._stream.read(self._size)
        self._ended = not data
        self._size *= 2
        self.buffer = self.buffer[self.start :] + self._decoder.decode(data, final=not data)
        self.start = 0
        return True

    def take(self, count: int) -> None:
        """Go on by that many characters."""
        self.line += self.buffer.count("\n", self.start, self.start + count)
        self.start += count
        self._size = _CHUNK

    def skip(self, blanks: str) -> str:
        """Pass over these characters; the next one, or "" at the end."""
        while True:
            while self.start < len(self.buffer) and self.buffer[self.start] in blanks:
                self.take(1)
            if self.start < len(self.buffer):
                return self.buffer[self.start]
            if not self.more():
                return ""
