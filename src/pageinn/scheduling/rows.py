"""The rows of a step: which tokens of running choices are computed next."""

from __future__ import annotations

from collections.abc import Iterable

from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.scheduling.choice import Choice
from pageinn.scheduling.plan import Work

#: Makes a NamedTuple of a tuple in half the time, where it is done for each token.
fast = tuple.__new__


def decodes(running: Iterable[Choice]) -> tuple[list[Work], list[Choice]]:
    """A token for each choice that needs one, and the choices that need more."""
    work: list[Work] = []
    prefills: list[Choice] = []
    for choice in running:
        row = choice.row
        if row is not None:
            work.append(row)
        elif remaining(choice) == 1:
            work.append(chunk(choice, 1))
        else:
            prefills.append(choice)
    return work, prefills


def remaining(choice: Choice) -> int:
    """Tokens to compute before the next one can be sampled: at least the last, also when it is in the store."""
    assert choice.sequence is not None
    return max(choice.sequence.num_tokens - choice.sequence.stored, 1)


def chunk(choice: Choice, count: int) -> Work:
    """The next `count` tokens of a choice."""
    sequence = choice.sequence
    assert sequence is not None
    start = min(sequence.stored, sequence.num_tokens - 1)
    end = start + count
    tokens = bytes(sequence.packed[start * TOKEN_BYTES : end * TOKEN_BYTES])
    return Work(choice.seat, start, tokens, sequence.stored, end == sequence.num_tokens)
