"""Where the slots of running sequences go: what paging loses, and what sharing saves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pageinn.memory.sequence import Sequence


class Occupancy(NamedTuple):
    """Slots of the blocks that running sequences hold.

    stored: slots with keys and values, each physical one counted once. reserved: slots of blocks taken for tokens that
    are still to be computed. last_block: slots left empty in the block that a sequence's newest token is in. saved:
    slots that would be needed besides if every sequence had its own copy of what it shares.
    """

    stored: int
    reserved: int
    last_block: int
    saved: int

    @property
    def held(self) -> int:
        """Slots of all blocks that running sequences hold."""
        return self.stored + self.reserved + self.last_block

    @property
    def wasted(self) -> float | None:
        """The share of the held slots that holds nothing; None where nothing is held."""
        return (self.reserved + self.last_block) / self.held if self.held else None


def occupancy(sequences: Iterable[Sequence], pinned_blocks: int, block_size: int) -> Occupancy:
    """Add up the running sequences of a pool. pinned_blocks: those of the tree that they hold, each counted once.

    A sequence's shared blocks are full, so that what it has stored beyond them lies in blocks of its own.
    """
    stored = reserved = last_block = shared = 0
    for sequence in sequences:
        begun = -(-sequence.stored // block_size)
        stored += sequence.stored - sequence.shared * block_size
        last_block += begun * block_size - sequence.stored
        reserved += (len(sequence.table) - begun) * block_size
        shared += sequence.shared
    return Occupancy(stored + pinned_blocks * block_size, reserved, last_block, (shared - pinned_blocks) * block_size)
