"""Block traffic: one ordered list of whole-block moves for each step."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class MoveKind(StrEnum):
    """Within the device's pool."""

    COPY = "copy"


class Move(NamedTuple):
    """Move a whole block. COPY: block to block."""

    kind: MoveKind
    source: int
    destination: int


class Outbox:
    """The moves that the next step performs in order, before it writes anything.

    Whoever plans a block's way may therefore reason in sequence: what a move reads is what all earlier moves left, and
    a block that was freed keeps its contents until a later move or the step itself writes to it.
    """

    def __init__(self) -> None:
        self._moves: list[Move] = []

    def copy(self, source: int, destination: int) -> None:
        """Copy a block to another."""
        self._moves.append(Move(MoveKind.COPY, source, destination))

    def drain(self) -> list[Move]:
        """The moves so far, for the plan that performs them."""
        moves, self._moves = self._moves, []
        return moves
