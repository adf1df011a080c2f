"""Two prompts side by side, for a terminal and as JSON."""

from __future__ import annotations

from typing import Any, NamedTuple

from pageinn.explain.culprit import WORTH, Parting, partings
from pageinn.explain.json_report import VERSION
from pageinn.explain.kinds import Kind
from pageinn.explain.rendering import Rendering
from pageinn.explain.replay import Matcher
from pageinn.explain.text_report import WIDTH, wrapped
from pageinn.explain.units import Units
from pageinn.explain.values import clipped, masked
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.traffic import ReadError, Record


class Pair(NamedTuple):
    """names: of both. tokens: of both. shared: leading tokens in common. partings: all differences, in order."""

    names: tuple[str, str]
    tokens: tuple[int, int]
    shared: int
    partings: tuple[Parting, ...]
    assumed: tuple[str, ...]


def compare_prompts(earlier: Record, later: Record, rendering: Rendering) -> Pair:
    """Compare two prompts. Raises ReadError if one of them is not known as text."""
    units = Units()
    laid, packed = [], []
    for record in (earlier, later):
        pieces = rendering.pieces(record)
        if pieces is None:
            raise ReadError(f"{record.source}:{record.line}: the prompt is not known as text")
        laid.append(units.lay(pieces))
        packed.append(rendering.pack("".join(piece.text for piece in pieces), record))
    matcher = Matcher()
    matcher.add(packed[0], 0)
    return Pair(
        names=(f"{earlier.source}:{earlier.line}", f"{later.source}:{later.line}"),
        tokens=(len(packed[0]) // TOKEN_BYTES, len(packed[1]) // TOKEN_BYTES),
        shared=matcher.add(packed[1], 1).tokens,
        partings=tuple(partings(laid[0], laid[1], units)),
        assumed=tuple(rendering.assumed),
    )


def pair_text(pair: Pair, show_text: bool) -> list[str]:
    """Lines of at most 80 characters."""
    shown = clipped if show_text else masked
    lines = [
        clipped(f"earlier  {pair.names[0]}: {pair.tokens[0]:,} tokens", WIDTH),
        clipped(f"later    {pair.names[1]}: {pair.tokens[1]:,} tokens", WIDTH),
        f"shared   {pair.shared:,} leading tokens",
    ]
    lines += ["", "The same prompt."] if not pair.partings and pair.tokens[0] == pair.tokens[1] else []
    for number, parting in enumerate(pair.partings, 1):
        lines.append("")
        lines += wrapped(f"{number}. {parting.part}: {_named(parting)}", "", "   ")
        if not parting.difference.pairs:
            continue
        for word, text in zip(("earlier", "later  "), _sides(parting), strict=True):
            lines.append(f"   {word}  {shown(text, WIDTH - 12) or '(nothing)'}")
        if parting.blamed:
            lines += wrapped(f"about {parting.gain:,.0f} equal tokens behind it are computed again", "   ", "   ")
            lines += wrapped(parting.fix, "   fix      ", " " * 12)
        elif parting.kind is Kind.TEXT and parting.gain >= WORTH:
            lines += wrapped(f"content of its own, before about {parting.gain:,.0f} equal tokens", "   ", "   ")
        else:
            lines += wrapped("not to be blamed: hardly anything equal follows", "   ", "   ")
    said = [f"assumed: {sentence}" for sentence in pair.assumed]
    return [*lines, *([""] if said else []), *(line for one in said for line in wrapped(one, "", "  "))]


def pair_json(pair: Pair, show_text: bool) -> dict[str, Any]:
    """A value for json.dumps."""

    def shown(text: str) -> str:
        return text[:500] if show_text else masked(text, limit=500)

    return {
        "version": VERSION,
        "earlier": {"request": pair.names[0], "tokens": pair.tokens[0]},
        "later": {"request": pair.names[1], "tokens": pair.tokens[1]},
        "shared_tokens": pair.shared,
        "masked": not show_text,
        "differences": [
            {
                "part": parting.part._asdict(),
                "kind": str(parting.kind),
                "detail": parting.difference.detail,
                "blamed": parting.blamed,
                "equal_tokens_behind": round(parting.gain),
                "earlier": shown(_sides(parting)[0]),
                "later": shown(_sides(parting)[1]),
                "tools_added": list(parting.moved_names[0]),
                "tools_removed": list(parting.moved_names[1]),
                "fix": parting.fix if parting.blamed else "",
            }
            for parting in pair.partings
        ],
        "assumed": list(pair.assumed),
    }


def _named(parting: Parting) -> str:
    detail = parting.difference.detail
    if not parting.difference.pairs:
        return "one prompt ends, the other goes on"
    return f"{parting.kind}, {detail}" if detail else str(parting.kind)


def _sides(parting: Parting) -> tuple[str, str]:
    pairs = parting.difference.pairs
    return " ".join(one for one, _ in pairs), " ".join(other for _, other in pairs)
