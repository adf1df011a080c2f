"""What an endpoint's answers look like, to the code that sends them whole or piece by piece."""

from __future__ import annotations

from typing import Any, Protocol

from pageinn.engine.messages import Delta
from pageinn.server.generation import Answer

#: JSON has no infinity; this is what OpenAI and vLLM send for an impossible token.
LEAST_LOGPROB = -9999.0


class Shape(Protocol):
    """One endpoint's words. A shape lives as long as its request and may remember what it has sent."""

    whole_object: str
    piece_object: str

    def whole(self, choice: int, answer: Answer) -> dict[str, Any]:
        """An element of `choices` with a complete answer."""

    def piece(self, choice: int, delta: Delta) -> dict[str, Any] | None:
        """An element of `choices` with a piece of one; None if there is nothing to send yet."""


def finite(logprob: float) -> float:
    """A log-probability that JSON can hold."""
    return max(logprob, LEAST_LOGPROB)
