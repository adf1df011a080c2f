"""The heads that prompts begin with, and when a deploy has changed one.

A head is what comes before the first message: the system prompt, the tools, and what the template writes around them.
Heads that share half of their lines are a family: one application's. A family's head has changed once at least two
thirds of its last 32 requests (of at least 8) begin with another one than was told of last. Clocks, dates, ids and
numbers do not count: two heads that differ in them alone are the same.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from hashlib import blake2b
from itertools import zip_longest
from typing import NamedTuple

from pageinn.explain.parts import pieces_of_text
from pageinn.explain.values import shape

#: A change is told after so many requests, and by the share of these latest ones.
LEAST, LATEST = 8, 32
_NUMERATOR, _DENOMINATOR = 2, 3
#: Families and heads that are remembered, the least recently seen forgotten first, and the longest text of a head.
MOST_FAMILIES, MOST_HEADS, MOST_CHARACTERS = 32, 64, 1 << 16

#: Control tokens at a line's end, as most templates write them.
_MARKS, _NOTHING = re.compile(r"(?:<[|\w][^<>\s]*>)+$"), re.compile(r"(?!)")


class Head(NamedTuple):
    """fingerprint: of the text without its clocks, dates, ids and numbers."""

    fingerprint: str
    text: str


class Change(NamedTuple):
    """A deploy. before: the head that was told of last, None for a family that is new. line: the first that differs,
    from 1, and the text there; 0 where nothing does, after a restart.
    """

    tenant: str
    head: Head
    before: Head | None
    line: int
    was: str
    now: str


def head_of(text: str) -> Head | None:
    """The head of a rendered prompt, or None if it has neither a system prompt nor tools before its first message."""
    parts: list[str] = []
    own = False
    for piece in pieces_of_text(text):
        if piece.part.kind in ("message", "prompt"):
            break
        own = own or piece.part.kind in ("system", "tool")
        parts.append(piece.text)
    return _head("".join(parts)[:MOST_CHARACTERS]) if own else None


def _head(text: str) -> Head:
    return Head(blake2b(shape(text).frame.encode(), digest_size=6).hexdigest(), text)


class _Family:
    """told: the head that was told of last; fresh: by an earlier process, and this one has not said so yet."""

    def __init__(self, told: Head | None) -> None:
        self.told = told
        self.fresh = told is not None
        self.recent: deque[str] = deque(maxlen=LATEST)


class Heads:
    """Heads by tenant, in bounded memory."""

    def __init__(self, told: Iterable[tuple[str, str]] = ()) -> None:
        """told: tenants and texts of heads, those of the last deploy, as `told` gave them."""
        self._families: OrderedDict[int, tuple[str, _Family]] = OrderedDict()
        self._heads: OrderedDict[tuple[str, str], tuple[Head, int]] = OrderedDict()
        self._next = 0
        for tenant, text in told:
            head = _head(text)
            self._found(tenant, head, _Family(head))

    def told(self) -> list[tuple[str, str]]:
        """Tenants and texts of the heads that were told of, for the next process."""
        return [(tenant, family.told.text) for tenant, family in self._families.values() if family.told is not None]

    def known(self, tenant: str, fingerprint: str) -> Head | None:
        """The head of a fingerprint, if it is remembered."""
        entry = self._heads.get((tenant, fingerprint))
        return None if entry is None else entry[0]

    def see(self, tenant: str, head: Head) -> Change | None:
        """A request begins with this head; the deploy that shows in it, if one does."""
        number = self._family(tenant, head)
        self._families.move_to_end(number)
        family = self._families[number][1]
        family.recent.append(head.fingerprint)
        count, of = family.recent.count(head.fingerprint), len(family.recent)
        if of < LEAST or count * _DENOMINATOR < of * _NUMERATOR:
            return None
        before, fresh = family.told, family.fresh
        same = before is not None and before.fingerprint == head.fingerprint
        if same and not fresh:
            return None
        family.told, family.fresh = head, False
        if before is None:
            return Change(tenant, head, None, 0, "", "")
        return Change(tenant, head, before, *_first_difference(before.text, head.text))

    def _family(self, tenant: str, head: Head) -> int:
        key = tenant, head.fingerprint
        entry = self._heads.get(key)
        if entry is not None and entry[1] in self._families:
            self._heads.move_to_end(key)
            return entry[1]
        lines = _lines(head.text)
        like = [
            (_common(lines, family.told.text), number)
            for number, (owner, family) in self._families.items()
            if owner == tenant and family.told is not None
        ]
        like += [
            (_common(lines, other.text), number)
            for (owner, _), (other, number) in self._heads.items()
            if owner == tenant and number in self._families and self._families[number][1].told is None
        ]
        share, number = max(like, default=(0.0, -1))
        if share < 0.5:
            return self._found(tenant, head, _Family(None))
        self._remember(key, head, number)
        return number

    def _found(self, tenant: str, head: Head, family: _Family) -> int:
        number, self._next = self._next, self._next + 1
        self._families[number] = tenant, family
        if len(self._families) > MOST_FAMILIES:
            self._families.popitem(last=False)
        self._remember((tenant, head.fingerprint), head, number)
        return number

    def _remember(self, key: tuple[str, str], head: Head, number: int) -> None:
        self._heads[key] = head, number
        if len(self._heads) > MOST_HEADS:
            self._heads.popitem(last=False)


def _lines(text: str) -> Counter[str]:
    return Counter(shape(line).frame for line in text.splitlines() if line.strip())


def _common(lines: Counter[str], other: str) -> float:
    """The share of the longer text's characters that stand in lines of both."""
    theirs = _lines(other)
    longest = max(_size(lines), _size(theirs))
    return _size(lines & theirs) / longest if longest else 0.0


def _size(lines: Counter[str]) -> int:
    return sum(len(line) * count for line, count in lines.items())


def _first_difference(before: str, now: str) -> tuple[int, str, str]:
    """The first line that differs in more than the marks that end it: where a prompt grew, its last line lost them."""
    pairs = list(zip_longest(before.splitlines(), now.splitlines(), fillvalue=""))
    for marks in (_MARKS, _NOTHING):
        for number, (one, other) in enumerate(pairs, 1):
            was, is_now = marks.sub("", one), marks.sub("", other)
            if shape(was).frame != shape(is_now).frame:
                return number, was, is_now
    return 0, "", ""
