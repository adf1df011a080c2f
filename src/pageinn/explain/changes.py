"""Two logs of the same service: why the hit rate of the second is another than that of the first."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from pageinn.explain.analysis import Explained
from pageinn.explain.culprit import WORTH, Parting, partings
from pageinn.explain.kinds import Kind
from pageinn.explain.log import Log
from pageinn.explain.report import Finding, Report
from pageinn.explain.schemas import listed
from pageinn.explain.similar import common_weight

#: Prompts of each log that are looked at to see how the prompts themselves were changed.
_SAMPLED = 60


class Edit(NamedTuple):
    """A change of the prompts between the logs. requests: of the sampled ones, those that show it."""

    part: str
    kind: Kind
    detail: str
    requests: int
    earlier: str
    later: str


class Changes(NamedTuple):
    """The difference of two hit rates, later minus earlier, in two parts that sum to it.

    traffic: what is left with all findings of both logs fixed: other conversations, lengths and mixes. faults: what the
    findings cost now, less what they cost before. appeared, gone: findings of one log alone. edits: how the later
    prompts differ from the earlier ones they resemble most.
    """

    earlier: Report
    later: Report
    total: float
    traffic: float
    faults: float
    appeared: tuple[Finding, ...]
    gone: tuple[Finding, ...]
    edits: tuple[Edit, ...]


def changes(earlier: Explained, later: Explained) -> Changes:
    """Compare two explained logs. They must have been read into the same units."""
    before, after = earlier.report, later.report
    total = after.now.hit_rate - before.now.hit_rate
    traffic = after.fixed.hit_rate - before.fixed.hit_rate
    known, found = ({_mark(finding) for finding in report.findings} for report in (before, after))
    return Changes(
        earlier=before,
        later=after,
        total=total,
        traffic=traffic,
        faults=total - traffic,
        appeared=tuple(finding for finding in after.findings if _mark(finding) not in known),
        gone=tuple(finding for finding in before.findings if _mark(finding) not in found),
        edits=tuple(_edits(earlier.log, later.log)),
    )


def _mark(finding: Finding) -> tuple[str, str, str]:
    return finding.kind, finding.part.kind, finding.detail


def _edits(earlier: Log, later: Log) -> list[Edit]:
    units = later.units
    old = [earlier.prompts[k] for k in _sample(len(earlier.prompts))]
    found: Counter[tuple[str, Kind, str]] = Counter()
    shown: dict[tuple[str, Kind, str], tuple[str, str]] = {}
    for number in _sample(len(later.prompts)):
        laid = later.prompts[number]
        like = max(old, key=lambda one: common_weight(one.units, laid.units, units.weights), default=None)
        if like is None:
            continue
        for parting in partings(like, laid, units):
            if parting.gain < WORTH or parting.part.kind == "message":
                break
            if parting.part.kind == "template" and parting.kind is Kind.WHITESPACE:
                # What a template writes around parts that one of the logs has not.
                continue
            mark = _what(parting)
            found[mark] += 1
            pairs = parting.difference.pairs
            shown.setdefault(mark, (" ".join(one for one, _ in pairs), " ".join(other for _, other in pairs)))
    return [Edit(*mark, requests, *shown[mark]) for mark, requests in found.most_common(5)]


def _what(parting: Parting) -> tuple[str, Kind, str]:
    """A difference in words; one of tools whatever their order."""
    if parting.kind is not Kind.TOOLS:
        return str(parting.part), parting.kind, parting.difference.detail
    added, removed = (listed(sorted(names)) for names in parting.moved_names)
    said = [f"{word} {names}" for word, names in (("added", added), ("removed", removed)) if names]
    return "tools", parting.kind, "; ".join(said)


def _sample(count: int) -> list[int]:
    return sorted({int(k) for k in np.linspace(0, count - 1, min(count, _SAMPLED))}) if count else []
