"""Suspects proved: the span rewritten in all prompts, and the log replayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from pageinn.explain.culprit import WORTH
from pageinn.explain.kinds import MOVED, WRITTEN, Kind
from pageinn.explain.log import Log, Progress
from pageinn.explain.prompts import Rewritten, whole_text
from pageinn.explain.rendering import Rendering
from pageinn.explain.replay import Match, Rate, replay
from pageinn.explain.report import Example, Finding, Position, Share
from pageinn.explain.rewrite import rewrite
from pageinn.explain.suspects import Case, Suspect
from pageinn.memory.tokens import TOKEN_BYTES, common_blocks

#: The costliest suspects are proved, as many as this; more of them have a cause in common.
_PROVED = 12
#: A finding wins back at least this share of the log's tokens.
_SHARE = 0.001
_SHOWN_VALUES = 8
#: Pairs that a suspect is tried on before the whole log is rewritten.
_TRIED = 20
#: Characters of a difference that are kept to be shown.
_SHOWN = 500
_SHORT_LINE = 120


class Proof(NamedTuple):
    """findings, in the order of their place in the prompt; the replay with all fixed, its matches and its prompts; the
    prompts with what a fixed log may change.
    """

    findings: list[Finding]
    rate: Rate
    matches: list[Match]
    prompts: list[Rewritten]
    written: list[Rewritten]


def prove(
    suspects: Sequence[Suspect],
    log: Log,
    matches: list[Match],
    now: Rate,
    rendering: Rendering,
    block_size: int,
    progress: Progress,
) -> Proof:
    """Rewrite one suspect after the other, those first that stand first in prompts, and keep what helps."""
    prompts = written = [Rewritten(laid) for laid in log.prompts]
    packed, rate, scopes = log.packed, now, log.scopes
    findings: list[Finding] = []
    numbers: Counter[str] = Counter()
    worth = max(WORTH, _SHARE * now.tokens)
    likely = [suspect for suspect in suspects[:_PROVED] if suspect.gain >= worth / 2]
    for suspect in sorted(likely, key=_place):
        if not _promising(suspect, prompts, log, rendering):
            continue
        numbers[suspect.kind] += 1
        tried = rewrite(suspect, prompts, matches, log.units, numbers[suspect.kind])
        tried_packed = [
            old if new is before else rendering.pack(whole_text(new, log.units), record)
            for old, before, new, record in zip(packed, prompts, tried, log.records, strict=True)
        ]
        tried_matches, tried_rate = replay(tried_packed, block_size, scopes)
        progress("proving", 1)
        if tried_rate.matched - rate.matched < worth or tried_rate.hit_rate <= rate.hit_rate:
            continue
        better = sum(new.tokens - old.tokens >= WORTH / 2 for new, old in zip(tried_matches, matches, strict=True))
        findings.append(_finding(suspect, log, rendering, rate, tried_rate, better))
        if suspect.kind in WRITTEN:
            written = (
                tried if written is prompts else rewrite(suspect, written, matches, log.units, numbers[suspect.kind])
            )
        prompts, packed, matches, rate = tried, tried_packed, tried_matches, tried_rate
    return Proof(findings, rate, matches, prompts, written)


def _promising(suspect: Suspect, prompts: list[Rewritten], log: Log, rendering: Rendering) -> bool:
    """Whether its rewriting lengthens what a few of the pairs share: most suspects that are none fall here, cheaply."""
    if suspect.kind not in MOVED:
        return True
    cases = suspect.cases[:: max(len(suspect.cases) // _TRIED, 1)]
    numbers = [number for case in cases for number in (case.earlier, case.later)]
    before = [prompts[number] for number in numbers]
    after = rewrite(suspect, before, (), log.units, 1)
    shared = []
    for side in (before, after):
        packed = [
            rendering.pack(whole_text(prompt, log.units), log.records[number])
            for number, prompt in zip(numbers, side, strict=True)
        ]
        shared.append(
            sum(common_blocks(a, 0, b, 0, TOKEN_BYTES) for a, b in zip(packed[::2], packed[1::2], strict=True))
        )
    return shared[1] - shared[0] >= len(cases) * WORTH / 2


def _place(suspect: Suspect) -> int:
    return min(case.parting.later.start for case in suspect.cases)


def _finding(suspect: Suspect, log: Log, rendering: Rendering, before: Rate, after: Rate, requests: int) -> Finding:
    case = min(suspect.cases, key=lambda case: (case.parting.later.start, case.later))
    parting = case.parting
    values = suspect.values()
    return Finding(
        kind=suspect.kind,
        detail=suspect.detail,
        part=parting.part,
        position=_position(log, case, rendering),
        requests=requests,
        times=len({case.later for case in suspect.cases}),
        values=len(values),
        tokens=after.matched - before.matched,
        before=before,
        after=after,
        fix=parting._replace(difference=parting.difference._replace(kind=suspect.kind)).fix,
        written=suspect.kind in WRITTEN,
        example=Example(log.name(case.earlier), log.name(case.later), *_shown(log, case)),
        shares=tuple(Share(text[:_SHOWN], count) for text, count in values.most_common(_SHOWN_VALUES)),
        added=tuple(dict.fromkeys(name for one in suspect.cases for name in one.parting.moved_names[0])),
        removed=tuple(dict.fromkeys(name for one in suspect.cases for name in one.parting.moved_names[1])),
    )


def _shown(log: Log, case: Case) -> tuple[str, str]:
    """The lines that differ, if they are short, or what differs in them."""
    parting = case.parting
    if parting.kind is not Kind.TOOLS and parting.kind is not Kind.TOOL_ORDER:
        sides = (case.earlier, parting.earlier), (case.later, parting.later)
        lines = [log.units.text(log.prompts[number].units[span.start : span.end]) for number, span in sides]
        if all(len(line) <= _SHORT_LINE for line in lines):
            return lines[0].strip("\n"), lines[1].strip("\n")
    pairs = parting.difference.pairs
    return " ".join(one for one, _ in pairs)[:_SHOWN], " ".join(other for _, other in pairs)[:_SHOWN]


def _position(log: Log, case: Case, rendering: Rendering) -> Position:
    laid, parting = log.prompts[case.later], case.parting
    before = log.units.text(laid.units[: parting.later.start])
    before += log.units.text(laid.units[parting.later.start : parting.later.end])[: parting.difference.offset]
    start = 0
    for piece in log.units.pieces(laid):
        if start + len(piece.text) > len(before):
            break
        start += len(piece.text)
    inside = before[start:]
    return Position(
        tokens=rendering.count(before),
        of=log.length(case.later),
        line=inside.count("\n") + 1,
        column=len(inside) - inside.rfind("\n") - 1,
    )
