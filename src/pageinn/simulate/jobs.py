"""Requests of a trace as the scheduler sees them, with what the model is going to answer."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from pageinn.memory.scopes import DEFAULT, Scope
from pageinn.memory.tokens import pack
from pageinn.scheduling.plan import Request

#: The token that ends an answer.
END = (1 << 32) - 1
#: Generated tokens are taken from here on, prompts' from below.
_GENERATED = 7 << 29
_NUM_GENERATED = END - _GENERATED


class TokenRangeError(ValueError):
    """A trace has more distinct prompt tokens than 32-bit ids leave room for."""


class Job(NamedTuple):
    """time: when the request arrives, in seconds. output: tokens after which its answer ends, if its limit allows."""

    time: float
    request: Request
    output: int


def job(
    number: int,
    time: float,
    prompt: bytes,
    output: int,
    max_tokens: int,
    scope: Scope = DEFAULT,
) -> Job:
    """A job whose request does not give away how long its answer gets."""
    request = Request(str(number), prompt, scope, max_tokens, eos_ids=frozenset([END]))
    return Job(time, request, output)


def prompt_of_blocks(ids: Sequence[int], block_size: int, tokens: int) -> bytes:
    """Packed tokens such that prompts share tokens exactly where they share block ids.

    ids: dense numbers from 0 on. Raises TokenRangeError for an id too large to give each of its tokens a number.
    """
    if ids and (max(ids) + 1) * block_size > _GENERATED:
        raise TokenRangeError(f"block id {max(ids)} of {block_size} tokens is beyond 32-bit token ids")
    flat = array("Q")
    for one in ids:
        flat.extend(range(one * block_size, (one + 1) * block_size))
    return pack(flat[:tokens])


def generated(number: int, position: int) -> int:
    """The token at a position of a request's answer: another request's are others."""
    return _GENERATED + (number * 1_000_003 + position) % _NUM_GENERATED
