"""The pool of physical blocks."""

from __future__ import annotations


class NoSpaceError(Exception):
    """The blocks asked for are neither free nor evictable. Nothing was changed."""


class BlockPool:
    """Hands out block numbers. It knows which blocks are free, not who owns the others."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        # The block that was freed last is handed out first: its memory is the warmest.
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """How many blocks nobody owns."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Take `count` free blocks. Raises NoSpaceError, and takes none, when there are fewer."""
        if count > len(self._free):
            raise NoSpaceError(f"{count} blocks asked for, {len(self._free)} free")
        if count == 0:
            return []
        taken = self._free[-count:]
        del self._free[-count:]
        taken.reverse()
        return taken

    def give(self, blocks: list[int]) -> None:
        """Give blocks back."""
        self._free.extend(reversed(blocks))

    def free_blocks(self) -> frozenset[int]:
        """The free block numbers; walks the pool, for checks. Raises AssertionError if one is listed twice."""
        free = frozenset(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        return free
