"""Which blocks are on disk, as the step loop knows it: asked in memory, never of the disk."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pageinn.memory.scopes import PUBLIC, Scope
from pageinn.store.block_keys import block_keys, root_key
from pageinn.store.disk import Address


class Run(NamedTuple):
    """Blocks of one scope, one after another, the first of them being a prompt's block `start`."""

    scope: Scope
    start: int
    addresses: list[Address]


class DiskIndex:
    """The keys that are on disk, and those on their way there."""

    def __init__(self, fingerprint: str, block_bytes: int, keys: Iterable[bytes]) -> None:
        """block_bytes: of one block's packed tokens."""
        self._fingerprint = fingerprint
        self._block_bytes = block_bytes
        self._keys = set(keys)
        self._coming: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def expected(self, key: bytes) -> bool:
        """Whether a block is there or on its way."""
        return key in self._keys or key in self._coming

    def addresses(self, scope: Scope, packed: bytes) -> list[Address]:
        """Where a scope's blocks with these tokens would be, one for each whole block."""
        size, parent = self._block_bytes, root_key(self._fingerprint, scope)
        found = []
        for place, key in enumerate(block_keys(parent, packed, size)):
            found.append(Address(key, parent, packed[place * size : (place + 1) * size]))
            parent = key
        return found

    def runs(self, scope: Scope, packed: bytes, start: int, below_public: bool) -> list[Run]:
        """The blocks on disk from block `start` on that a scope may read: its own, or public ones and then its own.

        below_public: whether all before `start` is public. Empty runs are left out.
        """
        own = self.addresses(scope, packed)
        found = [Run(scope, start, self._there(own, start))]
        if below_public and scope != PUBLIC:
            public = Run(PUBLIC, start, self._there(self.addresses(PUBLIC, packed), start))
            after = start + len(public.addresses)
            split = [public, Run(scope, after, self._there(own, after))]
            if sum(len(run.addresses) for run in split) > len(found[0].addresses):
                found = split
        return [run for run in found if run.addresses]

    def _there(self, addresses: list[Address], start: int) -> list[Address]:
        end = start
        while end < len(addresses) and addresses[end].key in self._keys:
            end += 1
        return addresses[start:end]

    def send(self, keys: Iterable[bytes]) -> None:
        """Blocks are on their way to the disk."""
        self._coming.update(keys)

    def arrive(self, keys: list[bytes], stored: bool) -> None:
        """They are there, or never will be."""
        if stored:
            self._keys.update(key for key in keys if key in self._coming)
        self._coming.difference_update(keys)

    def discard(self, keys: Iterable[bytes]) -> None:
        """Blocks are not on disk any more."""
        self._keys.difference_update(keys)

    def empty(self) -> None:
        """Nothing is on disk; what is on its way comes all the same."""
        self._keys.clear()

    def clear(self) -> None:
        """Nothing is on disk, nor on its way."""
        self._keys.clear()
        self._coming.clear()
