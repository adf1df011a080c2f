"""What looks like a fault and is none, or is not the prompts'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pageinn.explain.culprit import WORTH
from pageinn.explain.kinds import Kind
from pageinn.explain.log import Log
from pageinn.explain.pairs import Compared
from pageinn.explain.replay import Match, replay
from pageinn.explain.report import Note
from pageinn.explain.suspects import Case

#: Share of a log's tokens from which a note on the order of content is worth its line.
_SHARE = 0.02
#: A provider's count of cached tokens this far below what the prompts allow is worth a line.
_REPORTED = 0.1


def notes(log: Log, matches: Sequence[Match], compared: Compared, block_size: int) -> Iterator[Note]:
    """The notes of a log, in the order in which they are shown."""
    yield from _below_granularity(log, matches, compared, block_size)
    yield from _at_the_end(compared)
    yield from _content_first(log, compared)
    yield from _not_reused(log, matches)
    yield from _inside_blocks(log, matches, block_size)
    yield from _of_other_tenants(log, matches, block_size)
    if log.skipped:
        text = "Requests of which only ids or lengths are known: why they miss cannot be read from them."
        yield Note("no text", log.skipped, 0, text)


def _below_granularity(log: Log, matches: Sequence[Match], compared: Compared, block_size: int) -> Iterator[Note]:
    blamed = {case.later for case in compared.cases if case.parting.blamed}
    short = [number for number in range(len(matches)) if log.length(number) < block_size]
    if short:
        text = f"Prompts shorter than one block of {block_size} tokens: below granularity, not a broken cache."
        yield Note("below granularity", len(short), sum(map(log.length, short)), text)
    small = [
        number
        for number, match in enumerate(matches)
        if 0 < match.tokens < block_size <= log.length(number) and number not in blamed
    ]
    if small:
        text = f"Shared prefixes shorter than one block of {block_size} tokens: below granularity, not a broken cache."
        yield Note("below granularity", len(small), sum(matches[number].tokens for number in small), text)


def _at_the_end(compared: Compared) -> Iterator[Note]:
    ends = [
        case
        for case in compared.cases
        if case.parting.kind in (Kind.CLOCK, Kind.DATE, Kind.ID) and case.parting.gain < WORTH
    ]
    if ends:
        kinds = ", ".join(sorted({str(case.parting.kind) for case in ends}))
        text = f"Nothing long and equal stands behind what differs near the end ({kinds}): it costs no reuse."
        yield Note("at the end", len({case.later for case in ends}), 0, text)


def _content_first(log: Log, compared: Compared) -> Iterator[Note]:
    cases = [
        case
        for case in compared.cases
        if case.parting.kind is Kind.TEXT and case.parting.gain >= WORTH and _in_one_part(log, case)
    ]
    tokens = int(sum(case.parting.gain for case in cases))
    if tokens >= _SHARE * sum(map(log.length, range(len(log.packed)))):
        text = (
            "Text of a request's own stands before text that others share. It is no fault, but shared text first, "
            f"and each request's own behind it, would reuse about {tokens:,} tokens more."
        )
        yield Note("content before shared text", len({case.later for case in cases}), tokens, text)


def _inside_blocks(log: Log, matches: Sequence[Match], block_size: int) -> Iterator[Note]:
    ends = [match.tokens % block_size for match in matches if match.tokens >= block_size and match.tokens % block_size]
    if sum(ends) >= _SHARE * sum(map(log.length, range(len(matches)))):
        text = (
            f"Shared prefixes end inside a block of {block_size} tokens. An engine that shares whole blocks only "
            "computes the rest again: smaller blocks help, or an engine that shares to the token."
        )
        yield Note("inside a block", len(ends), sum(ends), text)


def _of_other_tenants(log: Log, matches: Sequence[Match], block_size: int) -> Iterator[Note]:
    if log.share_tenants or len({record.tenant for record in log.records}) < 2:
        return
    together, _ = replay(log.packed, block_size, [record.model for record in log.records])
    more = [one.tokens - alone.tokens for one, alone in zip(together, matches, strict=True)]
    tokens = sum(more)
    if tokens >= _SHARE * sum(map(log.length, range(len(matches)))):
        text = (
            f"About {tokens:,} tokens were known of other tenants only, who keep their prefixes to themselves. Where "
            "they may share, as a public prefix or with --share-tenants, these are reused too."
        )
        yield Note("other tenants", sum(count > 0 for count in more), tokens, text)


def _not_reused(log: Log, matches: Sequence[Match]) -> Iterator[Note]:
    lost = requests = 0
    for number, match in enumerate(matches):
        reported = log.records[number].reported
        if reported is not None:
            allowed = match.tokens / max(log.length(number), 1) * reported.prompt
            if allowed - reported.cached > max(_REPORTED * reported.prompt, WORTH):
                requests += 1
                lost += int(allowed) - reported.cached
    if requests:
        text = (
            "The log says these were cached less than their prompts allow. The prompts are not to blame: look for "
            "eviction, another replica, a minimum length, or a request sent before the one it repeats was answered."
        )
        yield Note("not reused", requests, lost, text)


def _in_one_part(log: Log, case: Case) -> bool:
    """Whether what is shared follows in the part that differs, which an application writes or a first user message is:
    later on, two conversations may well hear and say the same.
    """
    part, (_, end) = case.parting.part, case.parting.later
    laid = log.prompts[case.later]
    first = next((one for one in laid.parts if one.kind == "message"), None)
    if part.kind == "message" and part != first:
        return False
    if end >= len(laid.units) or laid.part_at(end) != part:
        return False
    theirs = set(log.prompts[case.earlier].units[case.parting.earlier.end :].tolist())
    inside = [unit for unit in laid.units[end : laid.part_end(end)].tolist() if unit in theirs]
    return float(log.units.weights[inside].sum()) >= WORTH
