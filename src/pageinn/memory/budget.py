"""What a tenant may take of the pool now, and taking it: from what is free, else from what others keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pageinn.memory.pool import BlockPool, NoSpaceError
from pageinn.memory.retention import Retention
from pageinn.memory.scopes import PUBLIC
from pageinn.memory.shares import Holding, Shares

if TYPE_CHECKING:
    from pageinn.memory.pinning import OnPath
    from pageinn.memory.tree import PrefixTree


class Budget:
    """Free blocks and evictable ones, under the tenants' shares and beside what is retained.

    A sequence is alone when no other one runs: then no minimum and no retained prefix stands in its way, so that
    whatever fits in the pool is served.
    """

    def __init__(self, pool: BlockPool, tree: PrefixTree, shares: Shares, retention: Retention) -> None:
        self.evicted_blocks = 0
        self._pool = pool
        self._tree = tree
        self._shares = shares
        self._retention = retention

    @property
    def available(self) -> int:
        """Blocks that are free or can be evicted, whoever keeps them."""
        return self._pool.num_free + self._tree.num_kept - self._tree.num_retained

    def available_to(self, tenant: str, alone: bool = False) -> int:
        """Blocks that are free or that this tenant may take from those who keep them."""
        if alone:
            return self._pool.num_free + self._tree.num_kept
        if not self._shares.guarantees:
            return self.available
        return self.available - self._shares.sheltered_from(tenant) - self._tree.sheltered()

    def has(self, tenant: str, count: int, alone: bool = False) -> bool:
        """Whether so many blocks are available to a tenant; looks at what is public only where that decides."""
        available = self.available
        if alone:
            return count <= available + self._tree.num_retained
        if not self._shares.guarantees:
            return count <= available
        available -= self._shares.sheltered_from(tenant)
        public = self._shares.find(PUBLIC.tenant)
        if public is None or count <= available - public.evictable or count > available:
            return count <= available
        return count <= available - self._tree.sheltered()

    def admits(self, tenant: str, path: OnPath, needed: int, reserve: int, alone: bool) -> bool:
        """Whether `needed` blocks can be had on top of a matched path, with `reserve` left over."""
        taken_up = sum(path.kept.values()) if alone else path.evictable
        return self.within_maximum(tenant, path, needed) and self.has(tenant, needed + reserve + taken_up, alone)

    def within_maximum(self, tenant: str, path: OnPath, needed: int) -> bool:
        """Whether a tenant's maximum lets it use so many blocks more, on top of a matched path.

        A tenant's first running sequence is not held to it, lest one that came under a higher one waits for ever; who
        asks for more than the present maximum is for the caller to refuse.
        """
        holding = self._shares.find(tenant)
        if holding is None or not holding.active or holding.maximum >= self._pool.num_blocks:
            return True
        own = sum(blocks for account, blocks in path.kept.items() if account.holding is holding)
        return holding.active + own + needed <= holding.maximum

    def take(self, count: int, holding: Holding, alone: bool) -> list[int]:
        """Take blocks, evicting for them. Raises NoSpaceError, and takes none, when there are too few.

        A tenant that gets beyond its maximum loses what it keeps itself first.
        """
        if not self.has(holding.tenant, count, alone):
            raise NoSpaceError(f"{count} blocks asked for, {self.available_to(holding.tenant, alone)} available")
        if holding.usage + count > holding.maximum:
            self._evict_own(holding, holding.usage + count - holding.maximum)
        missing = count - self._pool.num_free
        while missing > 0:
            evicted = self._tree.evict(missing, holding, everyone=alone)
            self.evicted_blocks += evicted
            missing -= evicted
            if missing and not (alone and self._retention.give_up()):
                raise AssertionError(f"{missing} of the blocks counted as available cannot be evicted")
        taken = self._pool.take(count)
        self._tree.ages.take(taken)
        return taken

    def trim(self, holding: Holding) -> None:
        """What a tenant keeps gives way where it has more than its maximum."""
        self._evict_own(holding, holding.usage - holding.maximum)

    def trim_all(self) -> None:
        """`trim` each tenant."""
        for holding in self._shares.bounded:
            self.trim(holding)

    def _evict_own(self, holding: Holding, count: int) -> None:
        if count > 0:
            self.evicted_blocks += self._tree.evict_own(holding, min(count, holding.evictable))
