"""Block traffic: one ordered list of whole-block moves for each step."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import NamedTuple


class MoveKind(StrEnum):
    """Within the device's pool, out of it to a host slot, or from a host slot into it."""

    COPY = "copy"
    STORE = "store"
    LOAD = "load"


class Move(NamedTuple):
    """Move a whole block. COPY: block to block. STORE: block to host slot. LOAD: host slot to block."""

    kind: MoveKind
    source: int
    destination: int


class Outbox:
    """The moves that the next step performs in order, before it writes anything.

    Whoever plans a block's way may therefore reason in sequence: what a move reads is what all earlier moves left, and
    a block that was freed keeps its contents until a later move or the step itself writes to it. Only a store may fail,
    so what a store brings to the host counts from the step's commit on: until then it is in flight.

    flight numbers the step whose moves are being collected, settled the last one that was committed.
    """

    def __init__(self) -> None:
        self.flight = 1
        self.settled = 0
        self._moves: list[Move] = []

    def add(self, kind: MoveKind, source: int, destination: int) -> None:
        """Put one more move behind the others."""
        self._moves.append(Move(kind, source, destination))

    def touches(self, slots: Collection[int]) -> bool:
        """Whether a move that is still to be drained writes or reads one of these host slots."""
        stores = (move.destination for move in self._moves if move.kind is MoveKind.STORE)
        loads = (move.source for move in self._moves if move.kind is MoveKind.LOAD)
        return any(slot in slots for slot in (*stores, *loads))

    def drain(self) -> list[Move]:
        """The moves so far, for the plan that performs them."""
        self.flight += 1
        moves, self._moves = self._moves, []
        return moves

    def settle(self) -> None:
        """The moves that were drained have been performed."""
        self.settled = self.flight - 1
