"""Who sits where in the persistent batch, and what of that the next plan has to say."""

from __future__ import annotations

from typing import NamedTuple

from pageinn.memory.sequence import TableEdit
from pageinn.scheduling.choice import Choice
from pageinn.scheduling.plan import SeatEdit


class Changes(NamedTuple):
    """Seats that were left, and block tables that changed, since the last plan."""

    vacated: list[int]
    edits: list[SeatEdit]


class Seats:
    """A fixed number of seats. `taken` holds each one's choice, or None."""

    def __init__(self, count: int) -> None:
        self.taken: list[Choice | None] = [None] * count
        self._free = list(range(count - 1, -1, -1))
        self._vacated: list[int] = []
        self._edits: list[SeatEdit] = []

    @property
    def any_free(self) -> bool:
        """Whether one more choice finds a seat."""
        return bool(self._free)

    def sit(self, choice: Choice) -> None:
        """Give a choice the seat that was left last. Raises IndexError if none is free."""
        choice.seat = self._free.pop()
        self.taken[choice.seat] = choice

    def edit(self, choice: Choice, edit: TableEdit | None) -> None:
        """Note a change of a choice's block table, if it is one."""
        if edit is not None:
            self._edits.append(SeatEdit(choice.seat, edit))

    def leave(self, choice: Choice) -> None:
        """Free a choice's seat, and forget what was to be said of its table."""
        seat, choice.seat = choice.seat, -1
        self.taken[seat] = None
        self._edits = [edit for edit in self._edits if edit.seat != seat]
        self._vacated.append(seat)
        self._free.append(seat)

    def drain(self) -> Changes:
        """What has changed since the last call."""
        changes = Changes(self._vacated, self._edits)
        self._vacated, self._edits = [], []
        return changes
