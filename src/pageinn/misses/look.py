"""Where a prompt parts from an earlier one, by its text, with the culprit finder of `pageinn explain`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from pageinn.explain.culprit import WORTH, Parting, Span, partings
from pageinn.explain.parts import pieces_of_text
from pageinn.explain.units import CHARACTERS_PER_TOKEN, Laid, Units
from pageinn.memory.tokens import TOKEN_BYTES, common_blocks, unpack
from pageinn.misses.record import Fault, Record

#: Text of token ids, control tokens by name.
Decode = Callable[[list[int]], str]

#: What is kept of a parting: so many differences, each with so many characters.
_PAIRS, _CHARACTERS = 4, 200
_NAMES, _NAME = 8, 64


class Tokens(NamedTuple):
    """The number of a request, and its tokens: taken out, since its record may lose them at any time."""

    number: int
    packed: bytes


def look(record: Record, prompt: bytes, candidates: Sequence[Tokens], decode: Decode) -> Fault | None:
    """The fault that cost most, against the nearest of these earlier requests or the one most alike; None if the prompt
    parts by content of its own. prompt: the record's, packed.
    """
    text = decode(unpack(prompt))
    worst: Fault | None = None
    for earlier in candidates:
        fault = _fault(record, prompt, text, earlier, decode)
        if fault is not None and (worst is None or fault.lost > worst.lost):
            worst = fault
        if worst is not None and worst.lost * 2 > record.computed:
            break
    return worst


def _fault(record: Record, prompt: bytes, text: str, earlier: Tokens, decode: Decode) -> Fault | None:
    units = Units()
    laid = units.lay(pieces_of_text(text))
    found = partings(units.lay(pieces_of_text(decode(unpack(earlier.packed)))), laid, units)
    parting = next((parting for parting in found if parting.blamed), None)
    if parting is None:
        return None
    position = common_blocks(earlier.packed, 0, prompt, 0, TOKEN_BYTES)
    # What was found behind the difference, left by another request, was not lost by it.
    gain = parting.gain * CHARACTERS_PER_TOKEN * record.tokens / len(text)
    lost = round(min(gain - max(record.cached - position, 0), record.computed))
    if lost < WORTH:
        return None
    line, column = _place(laid, parting, units)
    return Fault(earlier.number, position, line, column, lost, _short(parting))


def _place(laid: Laid, parting: Parting, units: Units) -> tuple[int, int]:
    """The line (from 1) and the column of a parting in its piece of the prompt."""
    start = laid.part_start(min(parting.later.start, len(laid.units) - 1))
    inside = units.text(laid.units[start : parting.later.start])
    inside += units.text(laid.units[parting.later.start : parting.later.end])[: parting.difference.offset]
    return inside.count("\n") + 1, len(inside) - inside.rfind("\n") - 1


def _short(parting: Parting) -> Parting:
    """A parting without its place in a prompt that is not kept, and with little text."""
    difference = parting.difference
    pairs = tuple((one[:_CHARACTERS], other[:_CHARACTERS]) for one, other in difference.pairs[:_PAIRS])
    frame = blake2b(difference.frame.encode(), digest_size=8).hexdigest() if difference.frame else ""
    names = tuple(tuple(name[:_NAME] for name in side[:_NAMES]) for side in parting.moved_names)
    return parting._replace(
        part=parting.part._replace(label=parting.part.label[:_NAME]),
        difference=difference._replace(
            pairs=pairs, frame=frame, places=difference.places[:_PAIRS], detail=difference.detail[:_CHARACTERS]
        ),
        earlier=Span(0, 0),
        later=Span(0, 0),
        before=-1,
        after=-1,
        moved_names=(names[0], names[1]),
    )
