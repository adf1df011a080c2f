"""A log request by request: what each prompt is made of, what it shares with which earlier one, and why no more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pageinn.explain.align import goes_on
from pageinn.explain.analysis import Explained
from pageinn.explain.rendering import Rendering
from pageinn.explain.values import clipped


class Each(NamedTuple):
    """A request. system, tools, messages: tokens of these parts, a template's own words in none. shared: leading tokens
    in common with the request `earlier`.

    what: new, the same prompt, goes on, content (of its own), or the fault where it parts, with its part of the prompt.
    """

    request: str
    tokens: int
    system: int
    tools: int
    messages: int
    shared: int
    earlier: str
    what: str


def each_request(explained: Explained, rendering: Rendering) -> Iterator[Each]:
    """The requests in the order they were replayed."""
    log = explained.log
    parted: dict[int, str] = {}
    for case in explained.cases:
        if case.parting.blamed:
            parted.setdefault(case.later, f"{case.parting.kind}, {case.parting.part}")
    for number, match in enumerate(explained.matches):
        tokens = dict.fromkeys(("system", "tool", "message", "prompt", "template"), 0)
        for piece in log.units.pieces(log.prompts[number]):
            tokens[piece.part.kind] += rendering.count(piece.text)
        shares = match.earlier is not None and match.tokens >= explained.report.block_size
        yield Each(
            request=log.name(number),
            tokens=log.length(number),
            system=tokens["system"],
            tools=tokens["tool"],
            messages=tokens["message"] + tokens["prompt"],
            shared=match.tokens if match.earlier is not None else 0,
            earlier=log.name(match.earlier) if match.earlier is not None and shares else "",
            what=(_continued(explained, number) if shares else "")
            or parted.get(number)
            or ("content" if shares else "new"),
        )


def _continued(explained: Explained, number: int) -> str:
    log, match = explained.log, explained.matches[number]
    if match.earlier is None or not goes_on(log.prompts[match.earlier], log.prompts[number]):
        return ""
    return "the same prompt" if log.packed[number] == log.packed[match.earlier] else "goes on"


def each_text(requests: Sequence[Each]) -> list[str]:
    """A table of at most 80 columns."""
    lines = [f"{'request':<18}{'tokens':>7}{'system':>7}{'tools':>7}{'rest':>7}{'shared':>7}  with, and why no more"]
    for one in requests:
        counts = (one.tokens, one.system, one.tools, one.messages, one.shared)
        line = f"{_short(one.request):<18}" + "".join(f"{count:>7,}" for count in counts)
        earlier = one.earlier.rpartition(":")[2]
        lines.append(f"{line}  {clipped(f'{earlier}: {one.what}' if earlier else one.what, 25)}")
    return lines


def each_json(requests: Sequence[Each]) -> list[dict[str, Any]]:
    """Values for json.dumps."""
    return [one._asdict() for one in requests]


def _short(name: str) -> str:
    return name if len(name) <= 17 else f"..{name[-15:]}"
