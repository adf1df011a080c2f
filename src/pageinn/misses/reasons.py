"""Records gathered by why they found no more: for each reason, how many requests and how many tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from pageinn.explain.kinds import Kind, fix_for
from pageinn.explain.parts import Part
from pageinn.explain.suspects import Case, Suspect, gather
from pageinn.explain.values import clipped, masked
from pageinn.misses.record import End, Fault, Record

#: What to do about an end that is not a difference of texts.
_FIXES = {
    End.EVICTED: "Give the cache more memory (--kv-cache-memory-bytes, --host-memory-bytes, --disk-cache), or pin the "
    "prefix.",
    End.RESET: "It was dropped by a reset; nothing to do.",
    End.NOT_KEPT: "Start the server with --prefix-cache keep.",
    End.SCOPE: "Publish what all may read (POST /cache/public), or use one cache_salt where requests may share.",
    End.NOT_READ: "Let requests read the cache: share = true for the tenant and the route, and no "
    "skip_reading_prefix_cache.",
}


#: What messages are from, in the formats of chat templates.
_ROLES = frozenset({"system", "developer", "user", "assistant", "model", "tool", "function", "ipython", "environment"})


class Example(NamedTuple):
    """What differs in two requests, named by their ids."""

    earlier: str
    later: str
    earlier_request: str
    later_request: str


class Reason(NamedTuple):
    """part: of the prompt, "" where the text is not the matter. kind: a culprit's, or an `End`. position: tokens before
    it, the fewest of its requests. tokens: those computed again because of it where it is avoidable; else all that its
    requests computed.
    """

    part: str
    kind: str
    detail: str
    position: int
    line: int
    column: int
    requests: int
    tokens: int
    avoidable: bool
    example: Example | None
    fix: str
    newest: float


#: The ends at which something was computed again that need not have been.
_AVOIDABLE = frozenset(_FIXES)


def reasons(records: Sequence[Record], show_text: bool) -> list[Reason]:
    """Avoidable reasons first, the costliest first among them. records: the newest first, those looked at alone."""
    by_number = {record.number: record for record in records}
    cases = [
        Case(record.blame.earlier, record.number, record.blame.parting)
        for record in reversed(records)
        if record.blame is not None
    ]
    found: list[Reason] = []
    judged: set[int] = set()
    for suspect in gather(cases):
        numbers = dict.fromkeys(case.later for case in reversed(suspect.cases))
        judged.update(numbers)
        found.append(_of_suspect(suspect, [by_number[number] for number in numbers], by_number, show_text))
    rest: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if record.number not in judged:
            # A difference that many values showed to be content is one after all.
            kind = Kind.TEXT if record.blame is not None else kind_of(record)
            rest.setdefault((kind, record.why), []).append(record)
    found += [_of_end(kind, group) for (kind, _), group in rest.items()]
    return sorted(found, key=lambda reason: (not reason.avoidable, -reason.tokens))


def kind_of(record: Record) -> str:
    """What a record's match ended at: the culprit's kind where there is one to be blamed."""
    if record.blame is not None:
        return str(record.blame.parting.kind)
    return str(Kind.TEXT if record.told is End.PARTED else record.told)


def lost(record: Record) -> int:
    """About how many tokens were computed again that an earlier request had computed."""
    if record.blame is not None:
        return record.blame.lost
    if record.told not in _AVOIDABLE:
        return 0
    return max((record.elsewhere if record.told is End.SCOPE else record.shared) - record.cached, 0)


def position(record: Record) -> int:
    """Behind how many tokens a match ended, or would have ended."""
    if record.blame is not None:
        return record.blame.position
    return record.cached if record.told in (End.EVICTED, End.RESET, End.NOT_KEPT) else max(record.shared, record.cached)


def fix(record: Record) -> str:
    """What to do about it, in one sentence; "" where nothing is to be done."""
    return record.blame.parting.fix if record.blame is not None else _FIXES.get(record.told, "")


def part_name(part: Part, show_text: bool) -> str:
    """A part of a prompt. A tool's name is text of the prompt, and so is a role that is not one of those in use."""
    hidden = part.kind == "tool" or (part.kind == "message" and part.label not in _ROLES)
    return f"{part.kind} {part.number}" if hidden and not show_text else str(part)


def detail_of(kind: str, detail: str, names: tuple[Sequence[str], Sequence[str]], show_text: bool) -> str:
    """What is known besides a kind. Tools that came or went are named where text is shown, else counted."""
    if kind != Kind.TOOLS or show_text:
        return detail
    said = zip(("added", "removed"), names, strict=True)
    return "; ".join(f"{len(each)} {word}" for word, each in said if each)


def example_of(fault: Fault, later: Record, earlier: Record | None, show_text: bool) -> Example:
    """What differs, masked unless text is shown."""
    shown = clipped if show_text else masked
    sides = [" ".join(pair[side] for pair in fault.parting.difference.pairs) for side in (0, 1)]
    return Example(shown(sides[0], 120), shown(sides[1], 120), earlier.id if earlier is not None else "", later.id)


def _of_suspect(suspect: Suspect, records: Sequence[Record], by_number: dict[int, Record], show_text: bool) -> Reason:
    faults = [record.blame for record in records if record.blame is not None]
    parts = Counter(part_name(fault.parting.part, show_text) for fault in faults)
    first = min(faults, key=lambda fault: fault.position)
    moved = [
        tuple(dict.fromkeys(name for fault in faults for name in fault.parting.moved_names[side])) for side in (0, 1)
    ]
    return Reason(
        part=parts.most_common(1)[0][0] if len(parts) == 1 else suspect.part_kind,
        kind=str(suspect.kind),
        detail=detail_of(suspect.kind, suspect.detail, (moved[0], moved[1]), show_text),
        position=first.position,
        line=first.line,
        column=first.column,
        requests=len(records),
        tokens=sum(fault.lost for fault in faults),
        avoidable=True,
        example=example_of(faults[0], records[0], by_number.get(faults[0].earlier), show_text),
        fix=fix_for(suspect.kind, suspect.part_kind),
        newest=records[0].when,
    )


def _of_end(kind: str, records: Sequence[Record]) -> Reason:
    one = records[0]
    avoidable = one.blame is None and one.told in _AVOIDABLE
    return Reason(
        part="",
        kind=kind,
        detail=one.why,
        position=min(map(position, records)),
        line=0,
        column=0,
        requests=len(records),
        tokens=sum(map(lost if avoidable else _computed, records)),
        avoidable=avoidable,
        example=None,
        fix=fix(one) if avoidable else "",
        newest=one.when,
    )


def _computed(record: Record) -> int:
    return record.computed
