"""Values that programs write into prompts: clocks, dates, ids, numbers. Texts that differ in values alone have one
shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    r"|Nov(?:ember)?|Dec(?:ember)?)"
)
_DAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_TIME = r"[0-2]?\d:[0-5]\d(?::[0-5]\d(?:[.,]\d{1,9})?)?(?:\s?[AaPp]\.?[Mm]\.?)?(?:\s?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?"
_ISO = r"(?:19|20)\d\d-[01]\d-[0-3]\d"
_WRITTEN = (
    rf"(?:{_DAY},?\s)?(?:{_MONTH}\.?\s\d{{1,2}}(?:st|nd|rd|th)?,?\s(?:19|20)\d\d"
    rf"|\d{{1,2}}(?:st|nd|rd|th)?\s{_MONTH}\.?,?\s(?:19|20)\d\d)"
)
_SLASHED = r"\d{1,2}/\d{1,2}/(?:(?:19|20)\d\d|\d\d)|(?:19|20)\d\d/\d{1,2}/\d{1,2}|\d{1,2}\.\d{1,2}\.(?:19|20)\d\d"
#: In order: what comes first wins where several fit.
_KINDS = {
    "moment": rf"\b(?:{_ISO}[T ]{_TIME}|{_ISO}[T ][0-2]\dh?\b)",
    "date": rf"\b(?:{_ISO}|{_WRITTEN}|{_SLASHED})\b|\b{_DAY}\b(?=[,\s]|$)",
    "time": rf"\b{_TIME}(?![\d:])|\b(?:1[0-2]|0?[1-9])\s?[AaPp][Mm]\b",
    "uuid": r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b",
    # A local part has at most 64 characters (RFC 5321); more would be tried from each of its words on.
    "email": r"\b[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+\b",
    "epoch": r"\b1[4-9]\d{8}(?:\d{3}|\d{6}|\d{9})?(?:\.\d+)?\b",
    "id": (
        r"\b[A-Za-z]{2,12}[-_](?=[A-Za-z0-9]*\d)[A-Za-z0-9]{5,}\b"
        r"|\b(?:0x)?(?=[0-9]*[a-fA-F])(?=[a-fA-F]*\d)[0-9a-fA-F]{8,}\b"
        r"|\b(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{12,}\b"
    ),
    "number": r"(?<![\w.])\d+(?:\.\d+)?(?![\w])",
}
_VALUE = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()))
#: Stands for a value in a shape; the letter after it tells clocks and dates from the rest, whose kinds chance may mix:
#: a hexadecimal id may happen to be a number.
_MARK = "\x00"
_LETTERS = {"moment": "t", "time": "t", "date": "d"}
_HAS_VALUE = re.compile(r"[\d@]|day\b")


class Value(NamedTuple):
    """A value in a text: text[start:end]."""

    kind: str
    start: int
    end: int


class Shape(NamedTuple):
    """frame: the text with each value replaced by a mark. values: the values, in order."""

    frame: str
    values: tuple[Value, ...]


def shape(text: str) -> Shape:
    """The shape of a text."""
    if not _HAS_VALUE.search(text):
        return Shape(text, ())
    values: list[Value] = []
    frame: list[str] = []
    end = 0
    for match in _VALUE.finditer(text):
        kind = match.lastgroup or ""
        values.append(Value(kind, match.start(), match.end()))
        frame += [text[end : match.start()], _MARK, _LETTERS.get(kind, "v")]
        end = match.end()
    return Shape("".join([*frame, text[end:]]), tuple(values))


def frame_ends(frame: str) -> tuple[str, str]:
    """What a text of this frame begins with, and ends with."""
    first, last = frame.find(_MARK), frame.rfind(_MARK)
    return (frame, frame) if first < 0 else (frame[:first], frame[last + 2 :])


_CLOCK = re.compile(
    r"(?P<h>[0-2]?\d):(?P<m>[0-5]\d)(?::(?P<s>[0-5]\d)(?:[.,](?P<f>\d+))?)?"
    r"|[T ](?P<hour>[0-2]\d)h?\b(?!:)|(?P<pm>\d+)\s?[AaPp]"
)


def granularity(values: Iterable[str]) -> str:
    """The finest unit in which these clock readings differ: sub-second, second, minute, hour or day."""
    readings = list(values)
    if all(re.fullmatch(_KINDS["epoch"], text) for text in readings):
        return "sub-second" if any(len(text) > 10 for text in readings) else "second"
    found = [_CLOCK.search(text) for text in readings]
    for name, group in (("sub-second", "f"), ("second", "s"), ("minute", "m")):
        if len({match[group] for match in found if match and match[group] is not None}) > 1:
            return name
    hours = {match["h"] or match["hour"] or match["pm"] for match in found if match}
    return "hour" if len(hours) > 1 else "day"


def counts_up(values: Sequence[tuple[str, str]]) -> bool:
    """Whether numbers in (earlier, later) prompts nearly always change in one direction."""
    steps = [float(later) - float(earlier) for earlier, later in values]
    rising = sum(step > 0 for step in steps)
    falling = sum(step < 0 for step in steps)
    return max(rising, falling) >= 0.8 * len(steps)


_LETTER = re.compile(r"[a-z]|[^\W\d_A-Za-z]")


def masked(text: str, limit: int = 60) -> str:
    """A text's form without its content: letters as x and X, digits as 0, one line, at most `limit` characters."""
    form = re.sub(r"\d", "0", re.sub(r"[A-Z]", "X", _LETTER.sub("x", text)))
    return clipped(form, limit)


def clipped(text: str, limit: int = 60) -> str:
    """A text on one line, its middle left out where it is longer than `limit`."""
    line = text.replace("\r", "\\r").replace("\n", "\\n").replace("\t", "\\t")
    if len(line) <= limit:
        return line
    half = (limit - 3) // 2
    return f"{line[:half]}...{line[len(line) - half :]}"
