"""Reuse by whole blocks, as engines do that hash their blocks."""

from __future__ import annotations

from pageinn.memory.manager import MemoryManager
from pageinn.memory.matching import Match
from pageinn.memory.scopes import Scope
from pageinn.memory.sequence import Sequence
from pageinn.memory.tokens import TOKEN_BYTES


class WholeBlocks(MemoryManager):
    """Reuses full blocks only, never one that holds a prompt's last token, and keeps no partly filled one.

    That is vLLM's rule: `get_computed_blocks` looks up full blocks of all tokens but the last.
    """

    def match(self, scope: Scope, packed: bytes) -> Match:
        """The longest run of whole known blocks that leaves at least one token to compute."""
        return super().match(scope, packed[:-TOKEN_BYTES])._replace(partial=None)

    def release(self, sequence: Sequence) -> None:
        """End a sequence; its partly filled block is freed."""
        sequence.stored -= sequence.stored % self.block_size
        super().release(sequence)
