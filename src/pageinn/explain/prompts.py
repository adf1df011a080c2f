"""Prompts under rewriting: what is left in its place, and what was moved to the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pageinn.explain.parts import TEMPLATE, Part, Piece
from pageinn.explain.units import Laid, Units, cut

#: Heads the lines that were moved behind what is stable.
MOVED_HEADER = "[request context]"


class Rewritten(NamedTuple):
    """A prompt. moved: lines taken out of it, to be written at the end of its last message."""

    laid: Laid
    moved: tuple[str, ...] = ()


class Edit(NamedTuple):
    """Units start up to end give way to a text."""

    start: int
    end: int
    text: str


def edited(laid: Laid, edits: Sequence[Edit], units: Units) -> Laid:
    """The prompt with these edits, in order and apart, each within one piece."""
    runs: list[list[int]] = []
    shifts: list[tuple[int, int]] = []
    done = 0
    ids = laid.units.tolist()
    for edit in edits:
        new = [units[unit] for unit in cut(edit.text)]
        runs += [ids[done : edit.start], new]
        shifts.append((edit.start, len(new) - (edit.end - edit.start)))
        done = edit.end
    runs.append(ids[done:])
    starts = tuple(start + sum(shift for place, shift in shifts if place < start) for start in laid.starts)
    return Laid(np.array([unit for run in runs for unit in run], dtype=np.int32), starts, laid.parts)


def spliced(head: Laid, head_end: int, tail: Laid, tail_start: int) -> Laid:
    """head[:head_end] and then tail[tail_start:]."""
    kept = sum(start < head_end for start in head.starts)
    first = tail.part_at(tail_start)
    rest = [(start, part) for start, part in zip(tail.starts, tail.parts, strict=True) if start > tail_start]
    joins = head_end > 0 and head.part_at(head_end - 1) == first
    starts = [*head.starts[:kept], *(() if joins else (head_end,)), *(head_end + s - tail_start for s, _ in rest)]
    parts = [*head.parts[:kept], *(() if joins else (first,)), *(part for _, part in rest)]
    return Laid(np.concatenate([head.units[:head_end], tail.units[tail_start:]]), tuple(starts), tuple(parts))


def whole_pieces(prompt: Rewritten, units: Units) -> list[Piece]:
    """The prompt's pieces with what was moved at the end of the last one that is not the template's."""
    pieces = units.pieces(prompt.laid)
    if not prompt.moved:
        return pieces
    last = max((k for k, piece in enumerate(pieces) if piece.part.kind not in ("template", "tool")), default=-1)
    block = moved_block(prompt.moved)
    if last < 0:
        return [*pieces, Piece(TEMPLATE, block)]
    pieces[last] = Piece(pieces[last].part, pieces[last].text.rstrip("\n") + block)
    return pieces


def moved_block(moved: Sequence[str]) -> str:
    """What is appended to the last message; nothing if nothing was moved."""
    return "" if not moved else "\n\n" + "\n".join([MOVED_HEADER, *moved]) + "\n"


def whole_text(prompt: Rewritten, units: Units) -> str:
    """The prompt's text, what was moved included."""
    if not prompt.moved:
        return units.text(prompt.laid.units)
    return "".join(piece.text for piece in whole_pieces(prompt, units))


def text_of(laid: Laid, part: Part, units: Units) -> str:
    """All text of one part of a prompt."""
    return "".join(piece.text for piece in units.pieces(laid) if piece.part == part)
