"""Each prompt of a log set against the earlier one it resembles most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pageinn.explain.culprit import partings
from pageinn.explain.log import Log, Progress
from pageinn.explain.replay import Match
from pageinn.explain.similar import Similar
from pageinn.explain.suspects import Case

#: Prompts that share this much of their content are of one family.
_FAMILY = 0.3


@dataclass(slots=True)
class Compared:
    """cases: all differences, the blamed and the others. families: sizes, largest first. new: share of content that no
    earlier prompt held.
    """

    cases: list[Case] = field(default_factory=list)
    families: tuple[int, ...] = ()
    new: float = 0.0


def compare(log: Log, matches: Sequence[Match], progress: Progress) -> Compared:
    """Find the differences of a log. Prompts that compute anew only what was never seen before have none."""
    weights = log.units.weights
    similar = Similar(log.prompts, weights)
    result = Compared()
    family = list(range(len(log.prompts)))

    def root(one: int) -> int:
        while family[one] != one:
            family[one] = family[family[one]]
            one = family[one]
        return one

    total = new = 0.0
    seen = np.zeros(len(weights), dtype=bool)
    scopes = log.scopes
    scope = None
    # Prompts of different scopes have nothing to do with each other.
    for number in sorted(range(len(matches)), key=scopes.__getitem__):
        laid, match = log.prompts[number], matches[number]
        if scopes[number] != scope:
            scope = scopes[number]
            similar.forget()
            seen.fill(False)
        units = laid.units
        total += float(weights[units].sum())
        new += float(weights[np.unique(units[~seen[units]])].sum())
        seen[units] = True
        likeness = similar.next(number, match.earlier)
        if match.earlier is not None and match.tokens >= _FAMILY * log.length(number):
            family[root(number)] = root(match.earlier)
        if likeness is not None:
            if likeness.share >= _FAMILY:
                family[root(number)] = root(likeness.earlier)
            sessions = log.records[number].session, log.records[likeness.earlier].session
            same_session = sessions[0] == sessions[1] if all(sessions) else None
            found = partings(log.prompts[likeness.earlier], laid, log.units, same_session)
            result.cases += [Case(likeness.earlier, number, parting) for parting in found]
        progress("comparing", 1)
    result.cases.sort(key=lambda case: case.later)
    result.families = tuple(sorted(Counter(map(root, range(len(family)))).values(), reverse=True))
    result.new = new / total if total else 0.0
    return result
