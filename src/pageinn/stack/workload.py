"""Conversations of known lengths: what each lever is measured on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


class WorkloadError(ValueError):
    """Lengths, turns and answers that do not fit together; the message names the flag and the way out."""


@dataclass(frozen=True)
class Shape:
    """How the conversations are built. shared: tokens that all of them begin with. answer: tokens of each answer.

    A length counts tokens that have keys and values: prompt and answer but for its last token, which nothing attends
    to. A conversation of final length L has `turns` turns that grow evenly: turn t is shared + t (L - shared) / turns
    tokens long and repeats all of the turn before it.
    """

    shared: int = 0
    turns: int = 1
    answer: int = 32


class Conversation:
    """lengths: of each turn, in tokens with keys and values."""

    def __init__(
        self, lengths: Sequence[int], shape: Shape, head: Sequence[int], rng: random.Random, vocab: int
    ) -> None:
        self.lengths = list(lengths)
        self._shape = shape
        self._known = list(head)
        self._rng = rng
        self._vocab = vocab
        self._turn = 0

    def next_prompt(self) -> tuple[int, ...]:
        """The prompt of the next turn: all so far, and fresh tokens up to where its answer begins."""
        length = self.lengths[self._turn] - self._shape.answer + 1
        self._turn += 1
        self._known += [self._rng.randrange(self._vocab) for _ in range(length - len(self._known))]
        return tuple(self._known)

    def answered(self, tokens: Sequence[int]) -> bool:
        """Take in an answer; whether another turn follows."""
        self._known += tokens
        return self._turn < len(self.lengths)


def turn_lengths(final: int, shape: Shape) -> list[int]:
    """The length of each turn. Raises WorkloadError where a turn would have no token of its own."""
    lengths = [shape.shared + turn * (final - shape.shared) // shape.turns for turn in range(1, shape.turns + 1)]
    if lengths[0] - shape.shared - shape.answer < 1:
        least = shape.shared + shape.turns * (shape.answer + 1)
        raise WorkloadError(
            f"a length of {final} tokens leaves no prompt beside --shared-prefix {shape.shared} and {shape.turns} "
            f"answers of {shape.answer}; give lengths of at least {least}, or a smaller --answer"
        )
    return lengths


def conversations(lengths: Sequence[int], count: int, shape: Shape, vocab: int) -> list[Conversation]:
    """So many conversations, their lengths taken from the sample in an order in which any part is like the whole."""
    rng = random.Random(0)
    head = [rng.randrange(vocab) for _ in range(shape.shared)]
    return [Conversation(turn_lengths(one, shape), shape, head, rng, vocab) for one in spread(lengths, count)]


def spread(sample: Sequence[int], count: int) -> list[int]:
    """Values of the sample at the quantiles of van der Corput's sequence (base 2): each stretch covers all of it."""
    ordered = sorted(sample)
    return [ordered[int(_radical_inverse(number) * len(ordered))] for number in range(count)]


def _radical_inverse(number: int) -> float:
    value, digit = 0.0, 0.5
    while number:
        value += digit * (number & 1)
        number >>= 1
        digit /= 2
    return value
