"""Where two prompts part, in which part of the prompt, what differs there, and what to do about it.

It knows two prompts and nothing of a log, so that it can answer while a server runs, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pageinn.explain.align import Run, align, leading
from pageinn.explain.differ import Difference, common_head, differ, whitespace
from pageinn.explain.kinds import Kind, fix_for
from pageinn.explain.parts import Part, Piece
from pageinn.explain.schemas import Tool, compare_tools, enclosing, same_value
from pageinn.explain.units import Laid, Units

#: Less equal content than this behind a difference, in tokens, is not worth a change of the prompt.
WORTH = 64.0
#: Differences that one change of order may make.
_MOST_MOVED = 400
_FIXED_PARTS = ("system", "tool", "template", "prompt")


class Span(NamedTuple):
    """Units start up to end of one prompt."""

    start: int
    end: int


class Parting(NamedTuple):
    """One place where two prompts differ.

    earlier, later: the units that differ. before, after: the last equal unit before them and the first after them, -1
    at the prompt's ends. line, of: which of the differing lines this is. gain: about how many tokens of equal content
    follow until the prompts part for good. moved_names: tools added, and tools removed.
    """

    part: Part
    difference: Difference
    earlier: Span
    later: Span
    before: int
    after: int
    line: int
    of: int
    gain: float = 0.0
    moved_names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @property
    def kind(self) -> Kind:
        """What differs."""
        return self.difference.kind

    @property
    def blamed(self) -> bool:
        """Whether it is a fault: not content of its own, and long equal content follows."""
        return self.kind is not Kind.TEXT and self.gain >= WORTH

    @property
    def fix(self) -> str:
        """What to do about it, in one sentence."""
        return fix_for(self.kind, self.part.kind)


def culprit(earlier: Sequence[Piece], later: Sequence[Piece]) -> Parting | None:
    """What keeps `later` from using the prefix that `earlier` left; None if they are the same.

    The first difference that is a fault, or else the first difference, which may be that one prompt goes on where the
    other ends: `blamed` says which it is.
    """
    units = Units()
    found = partings(units.lay(earlier), units.lay(later), units)
    return next((parting for parting in found if parting.blamed), found[0] if found else None)


def partings(earlier: Laid, later: Laid, units: Units, same_session: bool | None = None) -> list[Parting]:
    """All differences up to the one where the prompts part for good, in order.

    same_session: whether both are turns of one conversation, whose later prompts should begin with the earlier ones;
    None where that is not known.
    """
    compared = _Compared(earlier, later, units, same_session)
    found: list[tuple[int, Parting]] = []
    for number, parting in compared.differences():
        found.append((number, parting))
        if parting.kind is Kind.TEXT:
            break
    equal = compared.equal_after()
    # Content that differs ends what a fix of the differences before it can win back.
    end = equal[found[-1][0]] if found and found[-1][1].kind is Kind.TEXT else 0.0
    return [
        parting._replace(gain=equal[number] - (0.0 if parting.kind is Kind.TEXT else end)) for number, parting in found
    ]


class _Compared:
    """Two prompts, aligned. Between runs k and k + 1 of equal units lies difference k."""

    def __init__(self, earlier: Laid, later: Laid, units: Units, same_session: bool | None) -> None:
        self.a, self.b = earlier, later
        self.units = units
        self.same_session = same_session
        self.tools = _tool_regions(earlier, later, units)
        self.runs = self._runs()

    def _runs(self) -> list[Run]:
        """With a run of length 0 at each end, so that each difference lies between two."""
        a, b = self.a.units, self.b.units
        if self.tools is None:
            runs = align(a, b)
        else:
            (a0, a1), (b0, b1) = self.tools.earlier, self.tools.later
            runs = [*align(a[:a0], b[:b0]), Run(a0, b0, 0), Run(a1, b1, 0)]
            runs += [Run(run.a + a1, run.b + b1, run.length) for run in align(a[a1:], b[b1:])]
        return [Run(0, 0, 0), *runs, Run(len(a), len(b), 0)]

    def equal_after(self) -> list[float]:
        """For each difference, the tokens of the equal runs behind it that are long enough to count."""
        weights = self.units.weights
        sizes = [float(weights[self.b.units[run.b : run.b + run.length]].sum()) for run in self.runs[1:]]
        sizes = [size if size >= WORTH / 4 else 0.0 for size in sizes]
        after: list[float] = np.cumsum(sizes[::-1])[::-1].tolist()
        return after

    def differences(self) -> Iterator[tuple[int, Parting]]:
        """(number, difference), first to last; those that lie inside one of order are left out."""
        done = Span(0, 0)
        for number, (left, right) in enumerate(zip(self.runs, self.runs[1:], strict=False)):
            a, b = Span(left.a + left.length, right.a), Span(left.b + left.length, right.b)
            if (a.start == a.end and b.start == b.end) or a.start < done.start or b.start < done.end:
                continue
            at_the_end = b.end == len(self.b.units) or a.end == len(self.a.units)
            if at_the_end and not self._is_tools(a, b) and (a.start == a.end or b.start == b.end):
                yield number, self._parting(Difference(Kind.TEXT, "the end of one of them", ()), a, b)
                return
            if ordered := self._reordered(a, b) or self._shuffled(number):
                done = Span(ordered.earlier.end, ordered.later.end)
                yield self._gap_before(done.end, number), ordered
                continue
            for parting in self._named(a, b):
                yield number, parting

    def _gap_before(self, unit: int, number: int) -> int:
        """The number of the last difference before this unit, or `number`."""
        return next((n for n, run in enumerate(self.runs[1:]) if run.b + run.length > unit), number)

    def _shuffled(self, number: int) -> Parting | None:
        """From difference `number` on, the same lines in another order, in what an application writes by itself."""
        first = self.runs[number]
        a_start, b_start = first.a + first.length, first.b + first.length
        if b_start >= len(self.b.units) or self.b.part_at(b_start).kind not in _FIXED_PARTS:
            return None
        balance: dict[int, int] = {}
        a_done, b_done = a_start, b_start
        for run in self.runs[number + 1 : number + 1 + _MOST_MOVED]:
            _count(balance, self.a.units[a_done : run.a].tolist(), 1)
            _count(balance, self.b.units[b_done : run.b].tolist(), -1)
            if not balance:
                a, b = Span(a_start, run.a), Span(b_start, run.b)
                texts = self._said(self.a, a), self._said(self.b, b)
                order = Difference(Kind.ORDER, "the same lines", (texts,), offset=common_head(*texts))
                return self._parting(order, a, b) if b.end > b.start and b.end <= self.b.part_end(b_start) else None
            a_done, b_done = run.a + run.length, run.b + run.length
        return None

    def _is_tools(self, a: Span, b: Span) -> bool:
        return self.tools is not None and (self.tools.earlier, self.tools.later) == (a, b)

    def _said(self, laid: Laid, span: Span) -> str:
        return self.units.text(laid.units[span.start : span.end])

    def _parting(self, difference: Difference, a: Span, b: Span, line: int = 0, of: int = 1) -> Parting:
        laid, at = (self.b, b.start) if b.end > b.start else (self.a, a.start)
        before = int(self.b.units[b.start - 1 - line]) if b.start > line else -1
        behind = b.end + of - line - 1
        after = int(self.b.units[behind]) if behind < len(self.b.units) else -1
        return Parting(laid.part_at(at), difference, a, b, before, after, line, of)

    def _named(self, a: Span, b: Span) -> Iterator[Parting]:
        """One difference, taken line by line where the lines of both sides match in number."""
        if self._is_tools(a, b):
            assert self.tools is not None
            yield self.tools
            return
        probe = self._parting(Difference(Kind.TEXT, "", ()), a, b)
        fixed = probe.part.kind in _FIXED_PARTS
        texts = self._said(self.a, a), self._said(self.b, b)
        if space := whitespace(*texts):
            yield probe._replace(difference=Difference(Kind.WHITESPACE, space, (texts,), offset=common_head(*texts)))
            return
        lines = b.end - b.start
        if a.end - a.start == lines and 1 < lines <= 8:
            single = list(self._lines(a, b, fixed))
            if all(parting.kind is not Kind.TEXT for parting in single):
                yield from single
                return
        whole = self._parting(differ(*texts, self._before(b), fixed), a, b)
        if whole.kind in (Kind.TEXT, Kind.OTHER, Kind.FLAG) and self._is_history(whole):
            whole = whole._replace(difference=Difference(Kind.HISTORY, _how_edited(*texts), (texts,)))
        yield whole

    def _lines(self, a: Span, b: Span, fixed: bool) -> Iterator[Parting]:
        lines = b.end - b.start
        for line in range(lines):
            one, other = Span(a.start + line, a.start + line + 1), Span(b.start + line, b.start + line + 1)
            texts = self._said(self.a, one), self._said(self.b, other)
            if texts[0] != texts[1]:
                yield self._parting(differ(*texts, self._before(other), fixed), one, other, line, lines)

    def _before(self, b: Span) -> str:
        """The text in front, as far as it is on the same line."""
        text = self.units.text(self.b.units[max(b.start - 2, 0) : b.start])
        return text[text.rfind("\n") + 1 :]

    def _is_history(self, parting: Parting) -> bool:
        """In one conversation's past. Where sessions are not known: behind it, an assistant said the same in both."""
        if parting.part.kind == "prompt" or self.same_session is not None:
            return bool(self.same_session) and parting.part.kind in ("prompt", "message", "template")
        if parting.part.kind not in ("message", "template") or parting.later.start <= self._first_message():
            return False
        theirs = set(self.a.units[parting.earlier.end :].tolist())
        ends = (*self.b.starts[1:], len(self.b.units))
        return any(
            part.label in ("assistant", "model") and theirs.issuperset(self.b.units[start:end].tolist())
            for part, start, end in zip(self.b.parts, self.b.starts, ends, strict=True)
            if start >= parting.later.end and end > start
        )

    def _first_message(self) -> int:
        """The last unit of the first message that is not a system's: where it differs, so do the conversations."""
        places = [k for k, part in enumerate(self.b.parts) if part.kind == "message"]
        following = places[0] + 1 if places else 0
        return self.b.starts[following] - 1 if following < len(self.b.starts) else len(self.b.units)

    def _reordered(self, a: Span, b: Span) -> Parting | None:
        """The difference as one of keys' order, if the JSON around it means the same in both prompts."""
        if self._is_tools(a, b):
            return None
        sides = (self.a, a), (self.b, b)
        found = []
        for laid, span in sides:
            start = laid.part_start(min(span.start, len(laid.units) - 1))
            end = next((other for other in laid.starts if other > start), len(laid.units))
            text = self.units.text(laid.units[start:end])
            place = len(self.units.text(laid.units[start : span.start]))
            value = enclosing(text, place + 1) if "{" in text else None
            if value is None:
                return None
            found.append((start, text, value))
        if not same_value(found[0][2].value, found[1][2].value):
            return None
        ends = [
            _unit_at(self.units, laid, start, value.end)
            for (laid, _), (start, _, value) in zip(sides, found, strict=True)
        ]
        spans = Span(a.start, ends[0]), Span(b.start, ends[1])
        if spans[0].end <= a.start or spans[1].end <= b.start:
            return None
        texts = self._said(self.a, spans[0]), self._said(self.b, spans[1])
        return self._parting(
            Difference(Kind.KEY_ORDER, "same meaning, other order", (texts,), offset=common_head(*texts)), *spans
        )


def _count(balance: dict[int, int], units: list[int], by: int) -> None:
    for unit in units:
        balance[unit] = balance.get(unit, 0) + by
        if balance[unit] == 0:
            del balance[unit]


def _unit_at(units: Units, laid: Laid, start: int, place: int) -> int:
    """The first unit that begins at or behind `place` characters after unit `start`."""
    at = 0
    for number in range(start, len(laid.units)):
        if at >= place:
            return number
        at += len(units.texts[laid.units[number]])
    return len(laid.units)


def _how_edited(earlier: str, later: str) -> str:
    if not later.strip():
        return "messages dropped"
    if not earlier.strip():
        return "messages inserted"
    return "shortened" if len(later) < len(earlier) / 2 else "rewritten"


def _tool_regions(earlier: Laid, later: Laid, units: Units) -> Parting | None:
    """The difference of the two lists of tools, if they differ as lists."""
    spans = _tool_span(earlier), _tool_span(later)
    if spans[0] is None and spans[1] is None:
        return None
    a, b = (
        span or _where_tools_would_be(laid, other, found)
        for laid, other, span, found in (
            (earlier, later, spans[0], spans[1]),
            (later, earlier, spans[1], spans[0]),
        )
    )
    ids = earlier.units[a.start : a.end], later.units[b.start : b.end]
    if len(ids[0]) == len(ids[1]) and leading(*ids) == len(ids[0]):
        return None
    listed = [_tools(laid, span, units) for laid, span in ((earlier, a), (later, b))]
    verdict = compare_tools(*listed)
    if verdict.kind is None:
        return None
    first = next(
        (k for k, (one, other) in enumerate(zip(*listed, strict=False)) if one != other), min(map(len, listed))
    )
    name = listed[1][first].name if first < len(listed[1]) else listed[0][first].name
    offset = len(units.text(ids[1][: leading(*ids)]))
    if verdict.kind is Kind.KEY_ORDER:
        shown = listed[0][first].text, listed[1][first].text
    else:
        shown = ", ".join(tool.name for tool in listed[0]), ", ".join(tool.name for tool in listed[1])
    return Parting(
        part=Part("tool", first + 1, name),
        difference=Difference(verdict.kind, verdict.detail, (shown,), offset=offset),
        earlier=a,
        later=b,
        before=int(later.units[b.start - 1]) if b.start else -1,
        after=int(later.units[b.end]) if b.end < len(later.units) else -1,
        line=0,
        of=1,
        moved_names=(verdict.added, verdict.removed),
    )


def _tool_span(laid: Laid) -> Span | None:
    places = [k for k, part in enumerate(laid.parts) if part.kind == "tool"]
    if not places:
        return None
    last = places[-1] + 1
    return Span(laid.starts[places[0]], laid.starts[last] if last < len(laid.starts) else len(laid.units))


def _where_tools_would_be(laid: Laid, other: Laid, span: Span | None) -> Span:
    """The place in a prompt without tools where it parts from one that has them."""
    assert span is not None
    place = leading(laid.units, other.units[: span.start])
    return Span(place, place)


def _tools(laid: Laid, span: Span, units: Units) -> list[Tool]:
    ends = (*laid.starts[1:], len(laid.units))
    return [
        Tool(part.label, units.text(laid.units[start:end]))
        for part, start, end in zip(laid.parts, laid.starts, ends, strict=True)
        if part.kind == "tool" and span.start <= start < span.end
    ]
