"""Free-running comparison: contenders answer the same prompts greedily, and part where one token differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pageinn.drift.forced import Contender
from pageinn.model.decoder import Batch
from pageinn.text.tool_calls import ToolCall, ToolCallParser


class Answer(NamedTuple):
    """Token ids, without the one that ended it."""

    tokens: tuple[int, ...]


class Parting(NamedTuple):
    """answered: tokens of the reference's answer. at: how many of them came before the first difference, None for none.

    calls: tool calls that parse in the contender's answer.
    """

    answered: int
    at: int | None
    calls: int


def answers(
    contender: Contender, prompts: Sequence[Sequence[int]], longest: int, ends: frozenset[int]
) -> Iterator[list[Answer]]:
    """Answer all prompts greedily, together; yields what there is after every step, so that a run can be cut short.

    longest: tokens of an answer. The store must have room for the sum of all prompts and answers.
    """
    seats = _seats(contender.store.block_size, prompts, longest)
    written: list[list[int]] = [[] for _ in prompts]
    pending: list[int | None] = [_prefill(contender, prompt, seat) for prompt, seat in zip(prompts, seats, strict=True)]
    while True:
        live = []
        for number, token in enumerate(pending):
            if token is None:
                continue
            if token in ends or len(written[number]) == longest:
                pending[number] = None
                continue
            written[number].append(token)
            live.append(number)
        yield [Answer(tuple(tokens)) for tokens in written]
        if not live:
            return
        positions = [len(prompts[number]) + len(written[number]) - 1 for number in live]
        batch = _decode([written[n][-1] for n in live], positions, [seats[n] for n in live])
        logits = contender.model.forward(batch, contender.store)
        for number, row in zip(live, logits, strict=True):
            pending[number] = int(row.argmax())


def parting(reference: Answer, other: Answer, decode: Callable[[Sequence[int]], str]) -> Parting:
    """Where two answers to one prompt part."""
    same = next(
        (at for at, pair in enumerate(zip(reference.tokens, other.tokens, strict=False)) if pair[0] != pair[1]),
        min(len(reference.tokens), len(other.tokens)),
    )
    parted = None if reference == other else same
    return Parting(len(reference.tokens), parted, calls_in(decode(other.tokens)))


def calls_in(text: str) -> int:
    """How many tool calls of an answer have arguments that parse."""
    return sum(isinstance(item, ToolCall) for item in ToolCallParser().feed(text, last=True))


class _Seat(NamedTuple):
    """A sequence's own blocks, one after another."""

    first: int
    blocks: int
    block_size: int

    def slots(self, positions: np.ndarray) -> np.ndarray:
        return positions.astype(np.int64) + self.first * self.block_size

    def table(self) -> np.ndarray:
        return np.arange(self.first, self.first + self.blocks, dtype=np.int32)


def blocks_for(block_size: int, prompts: Sequence[Sequence[int]], longest: int) -> int:
    """How many blocks `answers` uses."""
    return sum(seat.blocks for seat in _seats(block_size, prompts, longest))


def _seats(block_size: int, prompts: Sequence[Sequence[int]], longest: int) -> list[_Seat]:
    seats, first = [], 0
    for prompt in prompts:
        blocks = -(-(len(prompt) + longest) // block_size)
        seats.append(_Seat(first, blocks, block_size))
        first += blocks
    return seats


def _prefill(contender: Contender, prompt: Sequence[int], seat: _Seat) -> int:
    """Compute a prompt in chunks; the token that follows."""
    logits = np.zeros((1, 1), np.float32)
    for start in range(0, len(prompt), contender.model.max_tokens):
        positions = np.arange(start, min(start + contender.model.max_tokens, len(prompt)), dtype=np.int32)
        batch = Batch(
            token_ids=np.array(prompt[start : start + len(positions)], np.int32),
            positions=positions,
            slots=seat.slots(positions),
            tables=seat.table()[None],
            query_starts=np.array([0, len(positions)], np.int32),
            context_lens=np.array([start + len(positions)], np.int32),
            logits_rows=np.array([len(positions) - 1], np.int32),
        )
        logits = contender.model.forward(batch, contender.store)
    return int(logits[0].argmax())


def _decode(tokens: list[int], positions: list[int], seats: list[_Seat]) -> Batch:
    """One token for each sequence."""
    at = np.array(positions, np.int32)
    tables = np.zeros((len(seats), max(seat.blocks for seat in seats)), np.int32)
    for row, seat in enumerate(seats):
        tables[row, : seat.blocks] = seat.table()
    rows = np.arange(len(tokens), dtype=np.int32)
    return Batch(
        token_ids=np.array(tokens, np.int32),
        positions=at,
        slots=np.array([seat.slots(at[row]) for row, seat in enumerate(seats)], np.int64),
        tables=tables,
        query_starts=np.arange(len(tokens) + 1, dtype=np.int32),
        context_lens=at + 1,
        logits_rows=rows,
    )
