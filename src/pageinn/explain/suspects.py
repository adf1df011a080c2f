"""Differences of many pairs of prompts, gathered by what they are: each a suspect to be proved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pageinn.explain.culprit import Parting
from pageinn.explain.kinds import Kind
from pageinn.explain.values import counts_up, granularity

#: Requests and distinct values that a difference of no known kind must show before it is a suspect.
_EVIDENCE = 3
_FIXED_PARTS = ("system", "tool", "template")
#: Kinds of which all differences in one part of the prompt are one suspect, wherever they lie.
_WHEREVER = frozenset({Kind.HISTORY, Kind.WHITESPACE, Kind.ORDER, Kind.KEY_ORDER, Kind.TOOL_ORDER, Kind.TOOLS})


class Case(NamedTuple):
    """Prompt `later` parts from prompt `earlier`, both by their number."""

    earlier: int
    later: int
    parting: Parting


class Place(NamedTuple):
    """Where a difference lies: between two units that are equal everywhere, on one of the lines between them."""

    before: int
    after: int
    line: int
    of: int


@dataclass(slots=True)
class Suspect:
    """frames: the texts, without their values, in which values differ; each with the numbers of the values that do.

    places: where the difference lies if it is not one of values.
    """

    kind: Kind
    detail: str
    part_kind: str
    cases: list[Case] = field(default_factory=list)
    frames: dict[str, set[int]] = field(default_factory=dict)
    places: set[Place] = field(default_factory=set)

    @property
    def gain(self) -> float:
        """About how many tokens it costs."""
        return sum(case.parting.gain for case in self.cases)

    def values(self) -> Counter[str]:
        """What is read where the prompts differ, with how often."""
        pairs = [pair for case in self.cases for pair in case.parting.difference.pairs]
        return Counter(later for _, later in pairs) + Counter(pairs[0][:1] if pairs else ())


def gather(cases: Iterable[Case]) -> list[Suspect]:
    """The suspects among these differences, costliest first."""
    found: dict[tuple[object, ...], Suspect] = {}
    for case in cases:
        parting = case.parting
        difference = parting.difference
        place = Place(parting.before, parting.after, parting.line, parting.of)
        mark: object = difference.frame or place
        if parting.kind in _WHEREVER:
            mark = None
        part_kind = parting.part.kind
        suspect = found.setdefault((part_kind, parting.kind, mark), Suspect(parting.kind, difference.detail, part_kind))
        suspect.cases.append(case)
        if difference.frame:
            suspect.frames.setdefault(difference.frame, set()).update(difference.places)
        else:
            suspect.places.add(place)
    judged = [suspect for suspect in _merged(list(found.values())) if _judge(suspect)]
    return sorted(judged, key=lambda suspect: -suspect.gain)


def _merged(suspects: list[Suspect]) -> list[Suspect]:
    """One value in several lines is one suspect: those whose values are mostly the same are joined."""
    kept: list[Suspect] = []
    for suspect in sorted(suspects, key=lambda one: -len(one.cases)):
        values = set(suspect.values())
        for other in kept if suspect.frames else ():
            if other.kind is not suspect.kind or not other.frames:
                continue
            if len(values & set(other.values())) * 2 > len(values):
                other.cases += suspect.cases
                for frame, places in suspect.frames.items():
                    other.frames.setdefault(frame, set()).update(places)
                break
        else:
            kept.append(suspect)
    return kept


def _judge(suspect: Suspect) -> bool:
    """Name what only many values can tell; False for what is content after all."""
    pairs = [pair for case in suspect.cases for pair in case.parting.difference.pairs]
    values = suspect.values()
    enough = len(suspect.cases) >= _EVIDENCE and len(values) >= _EVIDENCE
    if suspect.kind is Kind.CLOCK:
        fine = granularity(value for pair in pairs for value in pair)
        suspect.kind, suspect.detail = (Kind.DATE, "day") if fine == "day" else (Kind.CLOCK, fine)
    elif suspect.kind is Kind.DATE:
        suspect.detail = "day"
    elif suspect.kind is Kind.COUNTER:
        fixed = suspect.part_kind in _FIXED_PARTS
        if counts_up(pairs) and (fixed or enough):
            return True
        if enough and any(len(value) >= 5 for value in values):
            suspect.kind, suspect.detail = Kind.ID, "number"
            return True
        suspect.kind, suspect.detail = Kind.OTHER, "number"
        return enough or (fixed and len(suspect.cases) > 1)
    elif suspect.kind is Kind.OTHER:
        if suspect.part_kind in _FIXED_PARTS and len(values) < _EVIDENCE:
            suspect.kind, suspect.detail = Kind.FLAG, f"{len(values)} variants"
            return True
        return enough
    elif suspect.kind is Kind.TOOLS:
        _name_tools(suspect)
    return True


def _name_tools(suspect: Suspect) -> None:
    added = dict.fromkeys(name for case in suspect.cases for name in case.parting.moved_names[0])
    removed = dict.fromkeys(name for case in suspect.cases for name in case.parting.moved_names[1])
    said = [f"{word} {', '.join(names)}" for word, names in (("added", added), ("removed", removed)) if names]
    suspect.detail = "; ".join(said)
