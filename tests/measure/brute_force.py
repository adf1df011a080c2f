"""The same answers by lists and loops: prefixes as tuples, caches as lists."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

Prefix = tuple[int, ...]


class Request(NamedTuple):
    """A prompt of tokens, and when it runs."""

    tokens: tuple[int, ...]
    arrival: float = 0.0
    end: float = 0.0


def blocks(tokens: Sequence[int], size: int) -> list[Prefix]:
    """A prompt's full blocks, each named by the whole prefix up to its end."""
    return [tuple(tokens[: size * n]) for n in range(1, len(tokens) // size + 1)]


def known_tokens(requests: list[Request]) -> list[int]:
    """For each prompt, how many leading tokens some earlier one begins with too."""
    return [
        max((_common(request.tokens, other.tokens) for other in requests[:number]), default=0)
        for number, request in enumerate(requests)
    ]


def live_tokens(requests: list[Request]) -> list[int]:
    """As known_tokens, but of the earlier ones only those that still run."""
    return [
        max(
            (_common(request.tokens, other.tokens) for other in requests[:number] if other.end > request.arrival),
            default=0,
        )
        for number, request in enumerate(requests)
    ]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def lru_hits(paths: list[list[Prefix]], size: int) -> int:
    """Blocks found, one request at a time, by a list whose front was used last."""
    recent: list[Prefix] = []
    hits = 0
    for path in paths:
        for block in path:
            if block not in recent:
                break
            hits += 1
        recent = (path + [block for block in recent if block not in path])[:size]
    return hits


def fifo_hits(paths: list[list[Prefix]], size: int) -> list[int]:
    """Blocks that each request finds, by a queue: what is missing comes in behind, and what is in front goes."""
    queue: list[Prefix] = []
    hits = []
    for path in paths:
        hits.append(next((depth for depth, block in enumerate(path) if block not in queue), len(path)))
        for block in path:
            if block not in queue:
                queue = [*queue, block][-size:]
    return hits


def best_hits(paths: list[list[Prefix]], size: int) -> int:
    """Blocks found by the best of all choices of what to keep: every choice is tried."""

    @cache
    def best(number: int, kept: frozenset[Prefix]) -> int:
        if number == len(paths):
            return 0
        path = paths[number]
        found = sum(block in kept for block in path)
        return found + max(best(number + 1, choice) for choice in _choices(kept, frozenset(path), size))

    return best(0, frozenset())


def _choices(kept: frozenset[Prefix], path: frozenset[Prefix], size: int) -> list[frozenset[Prefix]]:
    """What can be held after a request: it held its whole path, and as much of the rest as fitted."""
    others = sorted(kept - path)
    room = size - len(path)
    return [
        path | {block for place, block in enumerate(others) if mask >> place & 1}
        for mask in range(1 << len(others))
        if mask.bit_count() == min(room, len(others))
    ]
