"""Two texts in one place of two prompts: what differs between them."""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from pageinn.explain.kinds import Kind
from pageinn.explain.units import CHARACTERS_PER_TOKEN
from pageinn.explain.values import Shape, Value, shape

#: Texts up to this long may be a value or a switch; longer ones are content.
_SHORT = 32 * CHARACTERS_PER_TOKEN
_SHORT_SECTION = 2 * _SHORT


class Difference(NamedTuple):
    """pairs: what differs, (earlier, later). places: which values of the frame differ, by number.

    frame: the text without its values, where the two texts differ in values alone; else "". offset: characters of the
    later text before the difference.
    """

    kind: Kind
    detail: str
    pairs: tuple[tuple[str, str], ...]
    frame: str = ""
    places: tuple[int, ...] = ()
    offset: int = 0


def differ(earlier: str, later: str, before: str, fixed_part: bool) -> Difference:
    """Name the difference of two unequal texts. `before`: the text in front of them, for labels.

    fixed_part: the texts belong to what an application writes by itself (a system prompt, a schema), not to what
    users, models and tools say, where short differences are content.
    """
    shapes = shape(earlier), shape(later)
    if shapes[0].frame == shapes[1].frame and shapes[0].values:
        return _values(earlier, later, shapes, before)
    if space := whitespace(earlier, later):
        return Difference(Kind.WHITESPACE, space, ((earlier, later),), offset=common_head(earlier, later))
    return _words(earlier, later, before, fixed_part)


def whitespace(earlier: str, later: str) -> str:
    """How two texts that differ in whitespace or in Unicode's form alone do; "" if they differ in more."""
    if _bare(earlier) != _bare(later):
        return ""
    if earlier.replace("\r\n", "\n") == later.replace("\r\n", "\n"):
        return "line ends"
    if unicodedata.normalize("NFC", earlier) == unicodedata.normalize("NFC", later):
        return "Unicode form"
    if _trimmed(earlier) == _trimmed(later):
        return "trailing spaces"
    return "blank lines" if _filled(earlier) == _filled(later) else "spaces"


def common_head(one: str, other: str) -> int:
    """How many leading characters two texts share."""
    most = min(len(one), len(other))
    return next((k for k in range(most) if one[k] != other[k]), most)


def _bare(text: str) -> str:
    return "".join(unicodedata.normalize("NFC", text).split())


def _trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def _filled(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


_USER_LABEL = re.compile(
    r"(?i)(?:\buser(?:[ _-]?name)?(?:'s name)?|\b(?:full|first|last|display)[ _-]?name|\bname|\bcustomer|\bclient"
    r"|\baccount|\bemployee|\bassisting|\bhelping|\bhi|\bhello|\bdear|\bwelcome|\btalking to|\bspeaking (?:with|to)"
    r"|\bassistant (?:of|for|to)|\bauthor|\bowner)(?:\s+(?:is|named|called))?[\s:=,\"'*`]*\Z"
)
_ID_LABEL = re.compile(
    r"(?i)(?:nonce|(?:request|session|trace|span|correlation|conversation|thread|run|message|job|build|cache)?[ _-]?"
    r"(?:id|key|token|hash|salt|nonce|uid|guid))[\s:=#\"'*`(]*\Z"
)


def _values(earlier: str, later: str, shapes: tuple[Shape, Shape], before: str) -> Difference:
    pairs: list[tuple[str, str]] = []
    places: list[int] = []
    kinds: set[str] = set()
    label = ""
    offset = -1
    for number, (one, other) in enumerate(zip(shapes[0].values, shapes[1].values, strict=True)):
        pair = earlier[one.start : one.end], later[other.start : other.end]
        if pair[0] != pair[1]:
            label = label or before[-40:] + later[: other.start]
            offset = other.start if offset < 0 else offset
            pairs.append(pair)
            places.append(number)
            kinds |= {_kind_of(one, other)}
    kind, detail = _named(kinds)
    if kind is Kind.ID and "uuid" not in kinds and _USER_LABEL.search(label):
        kind, detail = Kind.USER, "the user's id"
    if kind is Kind.COUNTER and _ID_LABEL.search(label):
        kind, detail = Kind.ID, "id"
    return Difference(kind, detail, tuple(pairs), shapes[1].frame, tuple(places), offset)


def _kind_of(one: Value, other: Value) -> str:
    if one.kind == other.kind:
        return one.kind
    return "time" if {one.kind, other.kind} <= {"moment", "time", "date"} else "id"


def _named(kinds: set[str]) -> tuple[Kind, str]:
    if kinds & {"uuid", "id"}:
        return Kind.ID, "UUID" if "uuid" in kinds else "id"
    if kinds & {"moment", "time", "epoch"}:
        return Kind.CLOCK, ""
    if "email" in kinds:
        return Kind.USER, "e-mail address"
    return (Kind.DATE, "") if "date" in kinds else (Kind.COUNTER, "")


_WORD = re.compile(r"\s+|\w+|[^\w\s]")
#: Words that switches are set to.
_SWITCH = frozenset(
    re.findall(
        r"\w+",
        "on off true false yes no enabled disabled enable disable think no_think nothink thinking none auto low medium "
        "high minimal default verbose concise brief quick deep fast slow strict beta stable production staging",
    )
)


def _words(earlier: str, later: str, before: str, fixed_part: bool) -> Difference:
    left, right = _WORD.findall(earlier), _WORD.findall(later)
    most = min(len(left), len(right))
    head = next((i for i in range(most) if left[i] != right[i]), most)
    most -= head
    tail = next((i for i in range(most) if left[-1 - i] != right[-1 - i]), most)
    one, other = ("".join(words[head : len(words) - tail]) for words in (left, right))
    label = before[-40:] + "".join(right[:head])
    kind, detail = _said(one.strip(), other.strip(), label, fixed_part)
    return Difference(kind, detail, ((one, other),), offset=len("".join(right[:head])))


def _said(one: str, other: str, label: str, fixed_part: bool) -> tuple[Kind, str]:
    longest = max(len(one), len(other))
    if not one or not other:
        return (Kind.FLAG, "present or absent") if fixed_part and longest <= _SHORT_SECTION else (Kind.TEXT, "")
    if longest > _SHORT:
        return Kind.TEXT, ""
    words = {word for text in (one, other) for word in re.findall(r"\w+", text.lower())}
    single = not re.search(r"\s", one + other)
    if words <= _SWITCH:
        found = Kind.FLAG, " or ".join(sorted((one, other)))
    elif single and (_ID_LABEL.search(label) or all(len(shape(text).values) == 1 for text in (one, other))):
        found = Kind.ID, "id"
    elif _USER_LABEL.search(label) and all(len(text.split()) <= 4 for text in (one, other)):
        found = Kind.USER, ""
    else:
        found = (Kind.OTHER, "") if fixed_part else (Kind.TEXT, "")
    return found
