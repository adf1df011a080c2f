"""Requests of a trace as the scheduler sees them, with what the model is going to answer."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

from pageinn.memory.scopes import DEFAULT, Scope
from pageinn.memory.tokens import TOKEN_BYTES, pack
from pageinn.scheduling.plan import Request

#: The token that ends an answer.
END = (1 << 32) - 1
#: Generated tokens are taken from here on, those of prompts known by their blocks from below.
_GENERATED = 7 << 29
_NUM_GENERATED = END - _GENERATED


class TokenRangeError(ValueError):
    """A trace has more distinct prompt tokens than 32-bit ids leave room for."""


class Job(NamedTuple):
    """time: when the request arrives, in seconds. output: the tokens after which its answer ends by itself.

    answer: the packed tokens of it, as far as they are known; others are made up, different for each request.
    session: what a router may keep together; "" for none. breakpoints: up to where the body asks Anthropic to cache it,
    in tokens; None where the log says nothing of them.
    """

    time: float
    request: Request
    output: int
    answer: bytes = b""
    session: str = ""
    breakpoints: tuple[int, ...] | None = None


def job(
    number: int,
    time: float,
    prompt: bytes,
    output: int,
    max_tokens: int,
    scope: Scope = DEFAULT,
    answer: bytes = b"",
    session: str = "",
) -> Job:
    """A job whose request does not give away how long its answer gets."""
    request = Request(str(number), prompt, scope, max_tokens, eos_ids=frozenset([END]))
    return Job(time, request, output, answer, session)


def told(one: Job) -> Job:
    """The same job, but that the request says how long its answer gets."""
    length = min(one.output, one.request.max_tokens)
    return one._replace(request=replace(one.request, max_tokens=length, eos_ids=frozenset(), ignore_eos=True))


class BlockTokens:
    """Makes up tokens for blocks that are known by their ids only: equal ids get equal tokens, others other ones."""

    def __init__(self) -> None:
        self._first: dict[Hashable, int] = {}
        self._next = 0

    def prompt(self, ids: Sequence[Hashable], block_size: int, tokens: int) -> bytes:
        """Packed tokens of a prompt. Raises TokenRangeError when 32 bits are used up."""
        flat = array("Q")
        for one in ids:
            first = self._first.get((one, block_size))
            if first is None:
                first = self._first[one, block_size] = self._take(block_size)
            flat.extend(range(first, first + block_size))
        return pack(flat[:tokens])

    def fresh(self, tokens: int) -> bytes:
        """Packed tokens that no other prompt has. Raises TokenRangeError when 32 bits are used up."""
        first = self._take(tokens)
        return pack(range(first, first + tokens))

    def _take(self, tokens: int) -> int:
        first = self._next
        self._next += tokens
        if self._next > _GENERATED:
            raise TokenRangeError(
                f"the trace has more than {_GENERATED:,} distinct prompt tokens; simulate a part of it"
            )
        return first


def generated(number: int, job: Job, position: int) -> int:
    """The token at a position of an answer: its own, or one that no other request generates."""
    at = position * TOKEN_BYTES
    if at < len(job.answer):
        return int.from_bytes(job.answer[at : at + TOKEN_BYTES], "little")
    return _GENERATED + (number * 1_000_003 + position) % _NUM_GENERATED
