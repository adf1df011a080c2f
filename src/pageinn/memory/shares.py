"""Whose blocks go: each tenant's part of the pool, and the queues of what can be evicted.

A minimum is a guarantee for what is kept: while a tenant holds no more than its minimum, others take nothing from it. A
maximum bounds what a tenant uses and keeps together; what it keeps gives way first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from pageinn.memory.eviction import EvictionQueue, Ranking
from pageinn.memory.scopes import DEFAULT, PUBLIC

if TYPE_CHECKING:
    from pageinn.memory.node import Node

#: Names in counters for what is public, and for tenants that no configuration names.
PUBLIC_LABEL, OTHER_LABEL = "(public)", "(other)"


class SharesError(ValueError):
    """Shares that contradict each other; the message names the tenant and the way out."""


class Share(NamedTuple):
    """A tenant's part of the pool, from 0 to 1."""

    minimum: float = 0.0
    maximum: float = 1.0


def check_shares(shares: Mapping[str, Share]) -> None:
    """Raises SharesError unless each is a part of the pool and the minimums fit in it together."""
    for tenant, share in shares.items():
        if not 0 <= share.minimum <= share.maximum <= 1 or share.maximum == 0:
            raise SharesError(
                f"tenant {tenant!r} has min_share {share.minimum:g} and max_share {share.maximum:g}; they must lie "
                "between 0 and 1, max_share above 0 and not below min_share"
            )
    total = sum(share.minimum for share in shares.values())
    if total > 1 + 1e-9:
        raise SharesError(f"the min_share of all tenants add up to {total:g}; lower them to 1 or less together")


class Holding:
    """What one tenant has in all its scopes, in blocks, and between which bounds.

    active: used by running sequences; kept: not used, of which retained ones cannot be evicted; held: all retained
    ones, used or not.
    """

    __slots__ = ("accounts", "active", "held", "kept", "maximum", "minimum", "queue", "retained", "tenant")

    def __init__(self, tenant: str, maximum: int = 0) -> None:
        self.tenant = tenant
        self.accounts = 0
        self.active = 0
        self.kept = 0
        self.retained = 0
        self.held = 0
        self.minimum = 0
        self.maximum = maximum
        self.queue: EvictionQueue | None = None

    @property
    def usage(self) -> int:
        """All blocks of the tenant."""
        return self.active + self.kept

    @property
    def evictable(self) -> int:
        """Blocks that eviction can reach."""
        return self.kept - self.retained

    @property
    def sheltered(self) -> int:
        """Evictable blocks that others may not take."""
        return max(self.evictable - max(self.usage - self.minimum, 0), 0)


class Victim(NamedTuple):
    """The leaf to take from, and how many blocks at most before asking again."""

    leaf: Node
    most: int


class Shares:
    """All tenants' holdings. One with a minimum or a maximum has a queue of its own; the others have one together."""

    def __init__(self, num_blocks: int, ranking: Ranking, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.ranking = ranking
        #: Blocks evicted, by label.
        self.evicted: Counter[str] = Counter()
        self._block_size = block_size
        self._common = EvictionQueue(ranking, block_size)
        self._shares: Mapping[str, Share] = {}
        self._holdings: dict[str, Holding] = {}
        #: The tenants with a minimum or a maximum.
        self.bounded: list[Holding] = []
        #: Whether any tenant has a minimum.
        self.guarantees = False

    # --- who there is ---

    def configure(self, shares: Mapping[str, Share]) -> None:
        """Take these tenants' shares in place of the former ones. Raises SharesError and changes nothing."""
        check_shares(shares)
        leaves = [leaf for queue in self._queues() for leaf in queue.leaves()]
        self._shares = dict(shares)
        self._common = EvictionQueue(self.ranking, self._block_size)
        for tenant in [*self._holdings, *shares]:
            self._bound(self._holdings.setdefault(tenant, Holding(tenant)))
        self.bounded = [holding for holding in self._holdings.values() if holding.queue is not None]
        self.guarantees = any(holding.minimum for holding in self.bounded)
        for tenant in [tenant for tenant, holding in self._holdings.items() if not holding.accounts]:
            if tenant not in shares:
                del self._holdings[tenant]
        for leaf in sorted(leaves, key=lambda leaf: leaf.last_used):
            self.push(leaf)

    def _bound(self, holding: Holding) -> None:
        share = self._shares.get(holding.tenant, Share())
        holding.minimum = int(share.minimum * self.num_blocks)
        holding.maximum = max(int(share.maximum * self.num_blocks), 1)
        bounded = holding.minimum or holding.maximum < self.num_blocks
        holding.queue = EvictionQueue(self.ranking, self._block_size) if bounded else None

    def open(self, tenant: str) -> Holding:
        """A tenant's holding, for one more account."""
        holding = self._holdings.get(tenant)
        if holding is None:
            holding = self._holdings[tenant] = Holding(tenant)
            self._bound(holding)
        holding.accounts += 1
        return holding

    def close(self, holding: Holding) -> None:
        """One account less; a tenant that nobody configured is forgotten with its last."""
        holding.accounts -= 1
        if not holding.accounts and holding.tenant not in self._shares:
            del self._holdings[holding.tenant]

    def find(self, tenant: str) -> Holding | None:
        """The holding of a tenant that is configured or owns something, or None."""
        return self._holdings.get(tenant)

    def all(self) -> list[Holding]:
        """The holdings of all tenants that are configured or own something."""
        return list(self._holdings.values())

    def label(self, tenant: str) -> str:
        """The tenant's name in counters, of which there are no more than were configured and three."""
        if tenant == PUBLIC.tenant:
            return PUBLIC_LABEL
        return tenant if tenant in self._shares or tenant == DEFAULT.tenant else OTHER_LABEL

    def most_blocks(self, tenant: str) -> int:
        """How many blocks a tenant can ever use."""
        return max(int(self._shares.get(tenant, Share()).maximum * self.num_blocks), 1)

    # --- what can be evicted, and what next ---

    def sheltered_from(self, tenant: str) -> int:
        """Evictable blocks of the other tenants that this one may not take."""
        return sum(holding.sheltered for holding in self.bounded if holding.tenant != tenant)

    def push(self, leaf: Node) -> None:
        """Enter a leaf that is evictable now, or was used since it was entered."""
        (leaf.account.holding.queue or self._common).push(leaf)

    def discard(self, leaf: Node) -> None:
        """Forget a leaf that leaves the tree."""
        (leaf.account.holding.queue or self._common).discard(leaf)

    def count_eviction(self, leaf: Node, number: int, tick: int) -> None:
        """Learn that a leaf loses so many blocks."""
        self.ranking.evicted(leaf, tick)
        self.evicted[self.label(leaf.account.holding.tenant)] += number

    def victim(self, taker: Holding | None, everyone: bool) -> Victim | None:
        """What goes next for `taker`: from those above their minimum, then its own, then, with `everyone`, from all.

        Among those above their minimum, and those who have none, the policy decides.
        """
        if not self.bounded:
            head = self._common.head()
            return None if head is None else Victim(head.leaf, self.num_blocks)
        best: tuple[int, float, int] | None = None
        victim: Victim | None = None
        for level, queue, most in self._levels(taker, everyone):
            head = queue.head()
            if head is not None and (best is None or (level, head.rank, head.last_used) < best):
                best, victim = (level, head.rank, head.last_used), Victim(head.leaf, most)
        return victim

    def own_victim(self, holding: Holding) -> Victim | None:
        """What goes next of a tenant with a maximum, from it alone."""
        head = None if holding.queue is None else holding.queue.head()
        return None if head is None else Victim(head.leaf, self.num_blocks)

    def _levels(self, taker: Holding | None, everyone: bool) -> list[tuple[int, EvictionQueue, int]]:
        levels = [(0, self._common, self.num_blocks)]
        for holding in self.bounded:
            assert holding.queue is not None
            surplus = holding.usage - holding.minimum
            if surplus > 0:
                levels.append((0, holding.queue, surplus))
            elif holding is taker or everyone:
                levels.append((1 if holding is taker else 2, holding.queue, self.num_blocks))
        return levels

    def _queues(self) -> list[EvictionQueue]:
        return [self._common, *(holding.queue for holding in self.bounded if holding.queue is not None)]

    def leaves(self) -> list[Node]:
        """All that is queued, for checks."""
        return [leaf for queue in self._queues() for leaf in queue.leaves()]

    def tails(self) -> list[Node]:
        """All tails that are queued, for checks."""
        return [tail for queue in self._queues() for tail in queue.tails()]
