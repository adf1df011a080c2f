"""Prompts replayed in order through an exact prefix matcher that forgets nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from pageinn.memory.tokens import TOKEN_BYTES, common_blocks


class Match(NamedTuple):
    """tokens: the longest prefix shared with an earlier prompt. earlier: which one, or None for the first prompt."""

    tokens: int
    earlier: int | None


class Matcher:
    """Prompts of one scope in the order of their bytes: the longest common prefix is that with a neighbour."""

    def __init__(self) -> None:
        self._sorted: list[bytes] = []
        self._numbers: list[int] = []

    def add(self, prompt: bytes, number: int) -> Match:
        """Match one prompt against all before it, then keep it under its number."""
        place = bisect_left(self._sorted, prompt)
        best = Match(0, self._numbers[0] if self._numbers else None)
        for neighbour in (place - 1, place):
            if 0 <= neighbour < len(self._sorted):
                shared = common_blocks(self._sorted[neighbour], 0, prompt, 0, TOKEN_BYTES)
                if shared > best.tokens:
                    best = Match(shared, self._numbers[neighbour])
        if place == len(self._sorted) or self._sorted[place] != prompt:
            self._sorted.insert(place, prompt)
            self._numbers.insert(place, number)
        return best


class Rate(NamedTuple):
    """Over a log: prompt tokens, those found in an earlier prompt, and those of them in whole blocks."""

    tokens: int
    matched: int
    in_blocks: int

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens found in whole blocks; 0 for a log without tokens."""
        return self.in_blocks / self.tokens if self.tokens else 0.0


def replay(prompts: Iterable[bytes], block_size: int, scopes: Sequence[Hashable]) -> tuple[list[Match], Rate]:
    """Match each prompt against all before it of its scope. scopes: each prompt's."""
    matchers: defaultdict[Hashable, Matcher] = defaultdict(Matcher)
    matches: list[Match] = []
    tokens = 0
    for number, (prompt, scope) in enumerate(zip(prompts, scopes, strict=True)):
        matches.append(matchers[scope].add(prompt, number))
        tokens += len(prompt) // TOKEN_BYTES
    matched = sum(match.tokens for match in matches)
    in_blocks = sum(match.tokens // block_size * block_size for match in matches)
    return matches, Rate(tokens, matched, in_blocks)
