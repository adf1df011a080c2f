"""A suspect's span rewritten in all prompts of a log: the value moved to the end, or one form given to what means the
same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pageinn.explain.align import leading
from pageinn.explain.culprit import partings
from pageinn.explain.kinds import MOVED, Kind
from pageinn.explain.parts import TEMPLATE, Piece
from pageinn.explain.prompts import Edit, Rewritten, edited, spliced
from pageinn.explain.replay import Match
from pageinn.explain.suspects import Place, Suspect
from pageinn.explain.units import Laid, Units
from pageinn.explain.values import frame_ends, shape

Prompts = list[Rewritten]
#: How far apart the two units around a place may lie, in units.
_REACH = 64
_SHORT_LINE_WORDS = 8
_NAMES = {Kind.USER: "user", Kind.FLAG: "switch", Kind.COUNTER: "count", Kind.OTHER: "value"}


def rewrite(suspect: Suspect, prompts: Prompts, matches: Sequence[Match], units: Units, number: int) -> Prompts:
    """All prompts with this suspect's span rewritten. `number` tells its placeholder from those of others."""
    if suspect.kind in (Kind.HISTORY, Kind.ORDER):
        return _as_before(suspect, prompts, matches, units)
    if suspect.kind is Kind.TOOLS:
        return _all_tools(suspect, prompts, units)
    if suspect.kind is Kind.TOOL_ORDER or (suspect.kind is Kind.KEY_ORDER and suspect.part_kind == "tool"):
        return _one_spelling(prompts, units)
    name = _NAMES.get(suspect.kind, suspect.kind.value)
    holder = f"<{name}>" if number == 1 else f"<{name}-{number}>"
    if suspect.frames:
        return _values_moved(suspect, prompts, units, holder)
    if suspect.kind in MOVED:
        return _texts_moved(suspect, prompts, units, holder)
    return _one_form(suspect, prompts, units)


def _values_moved(suspect: Suspect, prompts: Prompts, units: Units, holder: str) -> Prompts:
    varying = _units_of_frames(suspect, units)
    known = np.zeros(len(units.texts), dtype=bool)
    known[list(varying)] = True
    result: Prompts = []
    for prompt in prompts:
        laid = prompt.laid
        places = [
            place for place in np.flatnonzero(known[laid.units]).tolist() if _in_part(laid, place, suspect.part_kind)
        ]
        if not places:
            result.append(prompt)
            continue
        edits: list[Edit] = []
        moved: list[str] = []
        for place in places:
            text = units.texts[laid.units[place]]
            values = varying[int(laid.units[place])]
            if suspect.part_kind != "tool" and _is_label_line(text, values) and _begins_line(laid, place, units):
                edits.append(Edit(place, place + 1, ""))
                moved.append(text.strip("\n"))
            else:
                edits.append(Edit(place, place + 1, _with_holder(text, values, holder)))
                moved.append(f"{holder}: {' '.join(text[start:end] for start, end in values)}")
        result.append(Rewritten(edited(laid, edits, units), (*prompt.moved, *dict.fromkeys(moved))))
    return result


def _units_of_frames(suspect: Suspect, units: Units) -> dict[int, list[tuple[int, int]]]:
    """The units that have one of the frames, with where in their text the values that vary are."""
    ends = [frame_ends(frame) for frame in suspect.frames]
    found: dict[int, list[tuple[int, int]]] = {}
    for number, text in enumerate(units.texts):
        if any(text.startswith(head) and text.endswith(tail) for head, tail in ends):
            frame, values = shape(text)
            if frame in suspect.frames:
                found[number] = [(values[k].start, values[k].end) for k in sorted(suspect.frames[frame])]
    return found


def _in_part(laid: Laid, place: int, part_kind: str) -> bool:
    return laid.part_at(place).kind == part_kind


def _is_label_line(text: str, values: Sequence[tuple[int, int]]) -> bool:
    """A line that is hardly more than the value and its name."""
    if not text.endswith("\n"):
        return False
    rest = text[: values[0][0]] + text[values[-1][1] :]
    touching = text[values[0][0] - 1 : values[0][0]] + text[values[-1][1] : values[-1][1] + 1]
    return len(re.findall(r"\w+", rest)) <= _SHORT_LINE_WORDS and not set(touching) & set("/\\_{}") and "{" not in rest


def _begins_line(laid: Laid, place: int, units: Units) -> bool:
    return place in laid.starts or units.texts[laid.units[place - 1]].endswith("\n")


def _with_holder(text: str, values: Sequence[tuple[int, int]], holder: str) -> str:
    for start, end in reversed(values):
        text = text[:start] + holder + text[end:]
    return text


def _texts_moved(suspect: Suspect, prompts: Prompts, units: Units, holder: str) -> Prompts:
    """What differs in words. The words around it that are the same everywhere stay."""
    found = [list(_places(suspect, prompt.laid, units)) for prompt in prompts]
    texts = {text for edits in found for _, _, text in edits}
    head = _common_head(list(texts))
    head = head[: _word_start(head)]
    tail = _common_head([text[len(head) :][::-1] for text in texts])[::-1]
    tail = tail[len(tail) - _word_start(tail[::-1]) :]
    optional = any(len(text) <= len(head) + len(tail) for text in texts)
    result: Prompts = []
    for prompt, edits in zip(prompts, found, strict=True):
        if not edits:
            result.append(prompt)
            continue
        inner = [text[len(head) : len(text) - len(tail)] for _, _, text in edits]
        kept = head + tail if optional or "" in inner else head + holder + tail
        new = [Edit(start, end, kept) for start, end, _ in edits]
        moved = [text.strip("\n") if optional else f"{holder}: {text}" for text in inner if text.strip()]
        result.append(Rewritten(edited(prompt.laid, new, units), (*prompt.moved, *dict.fromkeys(moved))))
    return result


def _common_head(texts: list[str]) -> str:
    first, last = min(texts, default=""), max(texts, default="")
    return first[
        : next((k for k, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    ]


def _word_start(text: str) -> int:
    """Where the last word of `text`, which may be cut off, begins."""
    match = re.search(r"\w*\Z", text)
    return match.start() if match else 0


def _places(suspect: Suspect, laid: Laid, units: Units) -> Iterator[Edit]:
    """The spans of the suspect's places in a prompt, with their text, in order and apart."""
    spans: list[tuple[int, int]] = []
    for place in suspect.places:
        span = _span_at(place, laid)
        if span and _in_part(laid, min(span[0], len(laid.units) - 1), suspect.part_kind):
            spans.append(span)
    done = 0
    for start, end in sorted(set(spans)):
        if start >= done and (end > start or start > done or start == 0):
            done = end
            yield Edit(start, end, units.text(laid.units[start:end]))


def _span_at(place: Place, laid: Laid) -> tuple[int, int] | None:
    ids = laid.units
    starts = np.flatnonzero(ids == place.before) + 1 if place.before >= 0 else np.zeros(1, dtype=np.int64)
    for start in starts.tolist():
        behind = np.flatnonzero(ids[start : start + _REACH] == place.after)
        if not len(behind):
            continue
        end = start + int(behind[0])
        if place.of == 1:
            return start, end
        if end - start == place.of:
            return start + place.line, start + place.line + 1
    return None


def _one_form(suspect: Suspect, prompts: Prompts, units: Units) -> Prompts:
    """Texts that mean the same take the spelling that came first."""
    meaning = _MEANINGS[suspect.kind]
    first: dict[object, str] = {}
    for case in suspect.cases:
        for text in (pair[0] for pair in case.parting.difference.pairs):
            first.setdefault(meaning(text), text)
    result: Prompts = []
    for prompt in prompts:
        edits = [
            Edit(start, end, first[meaning(text)])
            for start, end, text in _places(suspect, prompt.laid, units)
            if meaning(text) in first
        ]
        changed = [edit for edit in edits if units.text(prompt.laid.units[edit.start : edit.end]) != edit.text]
        result.append(prompt._replace(laid=edited(prompt.laid, changed, units)) if changed else prompt)
    return result


def _without_space(text: str) -> object:
    return "".join(text.split())


def _words_in_any_order(text: str) -> object:
    return tuple(sorted(re.findall(r"\w+|[^\w\s,]", text)))


#: What texts of one meaning have in common, by what differs between them.
_MEANINGS: dict[Kind, Callable[[str], object]] = {
    Kind.WHITESPACE: _without_space,
    Kind.KEY_ORDER: _words_in_any_order,
}


def _one_spelling(prompts: Prompts, units: Units) -> Prompts:
    """Tools in the order of their names, each as it was first written."""
    spelling: dict[object, str] = {}
    result: Prompts = []
    for prompt in prompts:
        pieces = units.pieces(prompt.laid)
        slots = [k for k, piece in enumerate(pieces) if piece.part.kind == "tool"]
        tools = sorted((pieces[k] for k in slots), key=lambda piece: (piece.part.label, meaning_of(piece.text)))
        new = list(pieces)
        for k, (slot, tool) in enumerate(zip(slots, tools, strict=True), 1):
            text = spelling.setdefault(meaning_of(tool.text), tool.text)
            new[slot] = tool._replace(part=tool.part._replace(number=k), text=text)
        result.append(prompt._replace(laid=units.lay(new)) if new != pieces else prompt)
    return result


def meaning_of(tool: str) -> str:
    """The same text for schemas that differ in the order of keys alone."""
    try:
        return json.dumps(json.loads(tool), sort_keys=True)
    except ValueError:
        return tool


def _all_tools(suspect: Suspect, prompts: Prompts, units: Units) -> Prompts:
    """Every prompt of a family declares from the start what any of them does, in the order of first appearance.

    Lists of tools of which one followed the other are of one family.
    """
    pieces_of = [units.pieces(prompt.laid) for prompt in prompts]
    names_of = [_tool_names(pieces) for pieces in pieces_of]
    family: dict[tuple[str, ...], tuple[str, ...]] = {}

    def root(one: tuple[str, ...]) -> tuple[str, ...]:
        while family.setdefault(one, one) != one:
            one = family[one]
        return one

    for case in suspect.cases:
        family[root(names_of[case.later])] = root(names_of[case.earlier])
    declared: dict[tuple[str, ...], dict[str, str]] = {}
    for names, pieces in zip(names_of, pieces_of, strict=True):
        if names in family:
            tools = declared.setdefault(root(names), {})
            for piece in pieces:
                if piece.part.kind == "tool":
                    tools.setdefault(piece.part.label, piece.text)
    exemplars = [pieces for names, pieces in zip(names_of, pieces_of, strict=True) if names and names in family]
    result: Prompts = []
    for prompt, names, pieces in zip(prompts, names_of, pieces_of, strict=True):
        placed = pieces if names else _with_place_for_tools(pieces, exemplars)
        if names not in family or placed is None:
            result.append(prompt)
        else:
            result.append(prompt._replace(laid=units.lay(_declaring(declared[root(names)], placed))))
    return result


def _with_place_for_tools(pieces: list[Piece], exemplars: Sequence[list[Piece]]) -> list[Piece] | None:
    """A prompt without tools, begun as one with tools and the same text in front of them; None if there is none."""
    own = [piece for piece in pieces if piece.part.kind != "template"]
    for other in exemplars:
        last = max(k for k, piece in enumerate(other) if piece.part.kind == "tool")
        behind = next((k for k in range(last, len(other)) if other[k].part.kind not in ("tool", "template")), None)
        if behind is None:
            continue
        front = [piece for piece in other[:behind] if piece.part.kind not in ("tool", "template")]
        if own[: len(front)] == front and len(own) > len(front) and own[len(front)].part == other[behind].part:
            return other[:behind] + pieces[pieces.index(own[len(front)]) :]
    return None


def _declaring(tools: dict[str, str], pieces: list[Piece]) -> list[Piece]:
    slots = [k for k, piece in enumerate(pieces) if piece.part.kind == "tool"]
    first = pieces[slots[0]]
    between = len(slots) > 1 and slots[1] == slots[0] + 2
    glue = pieces[slots[0] + 1] if between else Piece(TEMPLATE, "\n")
    listed: list[Piece] = []
    for number, (name, text) in enumerate(tools.items(), 1):
        listed += [glue] if number > 1 else []
        listed.append(Piece(first.part._replace(number=number, label=name), text))
    return [*pieces[: slots[0]], *listed, *pieces[slots[-1] + 1 :]]


def _tool_names(pieces: Sequence[Piece]) -> tuple[str, ...]:
    return tuple(piece.part.label for piece in pieces if piece.part.kind == "tool")


def _as_before(suspect: Suspect, prompts: Prompts, matches: Sequence[Match], units: Units) -> Prompts:
    """Each prompt that told otherwise what an earlier one told tells it as that did, and those that followed it too."""
    earlier = {case.later: case.earlier for case in suspect.cases}
    result: Prompts = []
    cuts: dict[int, tuple[int, int]] = {}
    for number, prompt in enumerate(prompts):
        followed = earlier.get(number, matches[number].earlier)
        if followed is None:
            result.append(prompt)
            continue
        base = prompts[followed].laid
        if number in earlier:
            edits = [
                parting
                for parting in partings(base, prompt.laid, units, same_session=True)
                if parting.kind is suspect.kind and parting.blamed
            ]
            theirs, ours = (edits[-1].earlier.end, edits[-1].later.end) if edits else (0, 0)
        else:
            theirs = ours = leading(base.units, prompt.laid.units)
        old, new = cuts.get(followed, (0, 0))
        ahead = max(old - theirs, 0)
        if ahead and np.array_equal(base.units[theirs:old], prompt.laid.units[ours : ours + ahead]):
            theirs, ours = old, ours + ahead
        if (number not in earlier and not new) or theirs < old or ours == 0:
            result.append(prompt)
            continue
        kept = theirs + new - old
        result.append(prompt._replace(laid=spliced(result[followed].laid, kept, prompt.laid, ours)))
        cuts[number] = (ours, kept)
    return result
