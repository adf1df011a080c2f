"""Prompts as arrays of units: lines, and clauses where lines are long. Equal units are equal text.

What is the same in two prompts is found on units, a few hundred to a prompt, and only what differs is read as text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pageinn.explain.parts import Part, Piece

Ids = NDArray[np.int32]

#: A longer line is cut into clauses, at marks that do not depend on where the line began, and not inside dates.
_LONG_LINE = 160
_CLAUSES = re.compile(r"(?<=[.;!?,}\]])(?<!\d,)(?<!day,)(?=[\s\"{\[])")
_LONGEST = 500
#: Characters of English text and code to a token, where no tokenizer says better.
CHARACTERS_PER_TOKEN = 3.5


class Laid(NamedTuple):
    """A prompt: unit ids, and the parts they belong to. parts[k] begins at unit starts[k]."""

    units: Ids
    starts: tuple[int, ...]
    parts: tuple[Part, ...]

    def part_at(self, unit: int) -> Part:
        """The part that this unit belongs to; that of the last unit for the end of the prompt."""
        return self.parts[max(bisect_right(self.starts, unit) - 1, 0)]

    def part_start(self, unit: int) -> int:
        """The first unit of the piece that this unit is in."""
        return self.starts[max(bisect_right(self.starts, unit) - 1, 0)]

    def part_end(self, unit: int) -> int:
        """The end of the piece that this unit is in."""
        following = bisect_right(self.starts, unit)
        return self.starts[following] if following < len(self.starts) else len(self.units)


class Units(dict[str, int]):
    """The ids of all units met so far, and what they stand for."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._weights = np.zeros(1024, dtype=np.float32)

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self.texts)
        self.texts.append(text)
        if number >= len(self._weights):
            self._weights = np.concatenate([self._weights, np.zeros_like(self._weights)])
        self._weights[number] = len(text) / CHARACTERS_PER_TOKEN
        return number

    @property
    def weights(self) -> NDArray[np.float32]:
        """About how many tokens each unit is."""
        return self._weights[: len(self.texts)]

    def lay(self, pieces: Iterable[Piece]) -> Laid:
        """A prompt in units; a unit never spans two pieces."""
        ids: list[int] = []
        starts: list[int] = []
        parts: list[Part] = []
        for part, text in pieces:
            starts.append(len(ids))
            parts.append(part)
            ids += [self[unit] for unit in cut(text)]
        return Laid(np.array(ids, dtype=np.int32), tuple(starts), tuple(parts))

    def text(self, ids: Ids | Sequence[int]) -> str:
        """The text of a run of units."""
        texts = self.texts
        return "".join([texts[i] for i in (ids.tolist() if isinstance(ids, np.ndarray) else ids)])

    def pieces(self, laid: Laid) -> list[Piece]:
        """The pieces a prompt was laid from."""
        ends = (*laid.starts[1:], len(laid.units))
        return [
            Piece(part, self.text(laid.units[start:end]))
            for part, start, end in zip(laid.parts, laid.starts, ends, strict=True)
        ]


def cut(text: str) -> list[str]:
    """A text's units; joined, they are the text."""
    units: list[str] = []
    for line in text.splitlines(keepends=True):
        if len(line) <= _LONG_LINE:
            units.append(line)
            continue
        for clause in _CLAUSES.split(line):
            if len(clause) <= _LONGEST:
                units.append(clause)
            else:
                units += [clause[i : i + _LONGEST] for i in range(0, len(clause), _LONGEST)]
    return units
