"""Who wants which path of the prefix tree: running sequences pin it, and what is to be kept for a time retains it.

Both count along the path, node by node, so that what nobody wants can be evicted from its leaves on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pageinn.memory.accounts import Account, Ledger
from pageinn.memory.ages import Ages
from pageinn.memory.matching import Matching, Place
from pageinn.memory.moves import Outbox
from pageinn.memory.node import Node
from pageinn.memory.shares import Shares

if TYPE_CHECKING:
    from pageinn.memory.host import HostTier


class OnPath(NamedTuple):
    """Kept blocks on a path, by account, and how many of all of them can be evicted."""

    kept: dict[Account, int]
    evictable: int


class Pinning(Matching):
    """Counts pins and retains, and the blocks that they take into use or hold back."""

    host: HostTier

    def __init__(self, block_size: int, ledger: Ledger, shares: Shares, outbox: Outbox, ages: Ages) -> None:
        super().__init__(block_size, ledger, outbox)
        self._queue = shares
        self.ages = ages
        self.tick = 0
        #: Device blocks in nodes without pins. A pin counts along the path, so all can be evicted, leaves first, but
        #: for the retained ones. Held are all that are retained, in nodes with pins too.
        self.num_kept = 0
        self.num_retained = 0
        self.num_held = 0
        self.num_pinned = 0

    # --- pinning ---

    def pin(self, node: Node, above: Node | None = None) -> None:
        """Count one more sequence on the path from below `above` (the root if None) to `node`."""
        stop = self.root if above is None else above
        while node is not stop:
            if node.pins == 0:
                self._set_kept(node, -len(node.blocks))
            node.pins += 1
            assert node.parent is not None
            node = node.parent

    def count_reuse(self, node: Node) -> None:
        """Note that a sequence found the path to `node` computed."""
        while node is not self.root:
            node.hits += 1
            self.ages.find(node.size, node.used)
            node.used = self.ages.now
            assert node.parent is not None
            node = node.parent

    def unpin(self, node: Node) -> None:
        """Count one sequence less on the path to `node`, which is thereby the most recently used."""
        self.tick += 1
        while node is not self.root:
            node.pins -= 1
            node.last_used, node.used = self.tick, self.ages.now
            if node.pins == 0:
                self._set_kept(node, len(node.blocks))
                if node.evictable_leaf:
                    self._queue.push(node)
            if node.host:
                self.host.note(node)
            assert node.parent is not None
            node = node.parent

    def kept_on_path(self, place: Place) -> OnPath:
        """Kept blocks that pinning the path to `place` would take into use."""
        node = place.node
        kept: dict[Account, int] = {}
        evictable = beyond = 0
        if node.pins == 0 and node.blocks:
            beyond = len(node.blocks) - place.taken
        while node is not self.root and node.pins == 0:
            blocks, beyond = len(node.blocks) - beyond, 0
            kept[node.account] = kept.get(node.account, 0) + blocks
            evictable += 0 if node.retains else blocks
            assert node.parent is not None
            node = node.parent
        return OnPath(kept, evictable)

    # --- retaining ---

    def retain(self, node: Node) -> None:
        """Keep the path to `node`, which is on the device, out of eviction."""
        while node is not self.root:
            if node.retains == 0:
                self._set_held(node, len(node.blocks))
            node.retains += 1
            assert node.parent is not None
            node = node.parent

    def let_go(self, node: Node) -> None:
        """Undo one `retain`."""
        while node is not self.root:
            node.retains -= 1
            if node.retains == 0:
                self._set_held(node, -len(node.blocks))
                if node.evictable_leaf:
                    self._queue.push(node)
            assert node.parent is not None
            node = node.parent

    def _set_held(self, node: Node, blocks: int) -> None:
        self.num_held += blocks
        node.account.holding.held += blocks
        if node.pins == 0:
            self.num_retained += blocks
            node.account.holding.retained += blocks

    def _set_kept(self, node: Node, blocks: int) -> None:
        if node.retains:
            self.num_retained += blocks
            node.account.holding.retained += blocks
        self.num_kept += blocks
        self.num_pinned -= blocks
        node.account.kept += blocks
        node.account.pinned -= blocks
