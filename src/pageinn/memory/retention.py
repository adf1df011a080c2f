"""Prefixes that are kept whatever eviction wants: for a time, or pinned by the operator until it says otherwise.

Both hold the nodes of a path, whole blocks only, and are capped together, so that the pool never starves. A request
that could not run otherwise, with nothing else running, still gets their blocks.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pageinn.memory.scopes import Scope

if TYPE_CHECKING:
    from pageinn.memory.accounts import Account
    from pageinn.memory.node import Node
    from pageinn.memory.tree import PrefixTree

#: What may be held of the pool where nothing else is said, and how much of that one tenant may hold for a time.
DEFAULT_MOST_RETAINED = 0.5
TENANTS_PART = 0.5


class Retain(NamedTuple):
    """Keep the first `tokens` of a prompt, in whole blocks, for `seconds` after they were computed or found."""

    tokens: int
    seconds: float


class Pin(NamedTuple):
    """A pinned prefix: whose, how many tokens, and how many of its blocks are held; 0 once they had to be given up."""

    name: str
    scope: Scope
    tokens: int
    blocks: int


@dataclass
class RetentionCounters:
    """What became of prefixes that were to be kept: kept, beyond the cap, at their time's end, or given up for room."""

    kept: int = 0
    capped: int = 0
    expired: int = 0
    given_up: int = 0


class _Pinned(NamedTuple):
    pin: Pin
    node: Node | None


class Retention:
    """All that is held. A node is held once for a time, with the latest end asked for, and once for each pin."""

    def __init__(self, tree: PrefixTree, num_blocks: int, most_retained: float) -> None:
        if not 0 <= most_retained < 1:
            raise ValueError(f"most_retained is {most_retained}; it must lie between 0 and 1, 1 not included")
        self.counters = RetentionCounters()
        #: The cap for all, and for one tenant's prefixes that are kept for a time, in blocks.
        self.most = int(num_blocks * most_retained)
        self.most_of_tenant = int(num_blocks * most_retained * TENANTS_PART)
        self._tree = tree
        self._ends: dict[Node, float] = {}
        self._heap: list[tuple[float, int, Node]] = []
        self._entries = 0
        self._pins: dict[str, _Pinned] = {}

    # --- for a time ---

    def keep(self, node: Node, account: Account, end: float) -> bool:
        """Hold the path to a node on the device until then; False, and nothing held, if that is beyond a cap."""
        if node not in self._ends:
            own = sum(len(each.blocks) for each in self._unheld(node) if each.account.holding is account.holding)
            most = min(self.most_of_tenant, account.holding.maximum)
            if account.holding.held + own > most or not self._fits(node):
                self.counters.capped += 1
                return False
            self._tree.retain(node)
            self.counters.kept += 1
        elif self._ends[node] >= end:
            return True
        self._ends[node] = end
        self._entries += 1
        heapq.heappush(self._heap, (end, self._entries, node))
        return True

    def expire(self, now: float) -> int:
        """Let go of what was to be kept until now; says of how many prefixes."""
        expired = 0
        while self._heap and self._heap[0][0] <= now:
            expired += self._pop()
        self.counters.expired += expired
        return expired

    def _pop(self) -> bool:
        """Take the entry with the earliest end; whether it was its node's."""
        end, _, node = heapq.heappop(self._heap)
        if self._ends.get(node) != end:
            return False
        del self._ends[node]
        self._tree.let_go(node)
        return True

    # --- pinned ---

    def pin(self, name: str, node: Node, scope: Scope, tokens: int) -> Pin | None:
        """Hold the path to a node on the device until `unpin`; None, and nothing held, if that is beyond the cap.

        Raises ValueError if the name is taken.
        """
        if name in self._pins:
            raise ValueError(f"pin {name} exists")
        if not self._fits(node):
            self.counters.capped += 1
            return None
        self._tree.retain(node)
        pin = Pin(name, scope, tokens, tokens // self._tree.block_size)
        self._pins[name] = _Pinned(pin, node)
        return pin

    def unpin(self, name: str) -> Pin | None:
        """Let go of a pin; None if there is none of this name."""
        pinned = self._pins.pop(name, None)
        if pinned is None:
            return None
        if pinned.node is not None:
            self._tree.let_go(pinned.node)
        return pinned.pin

    def pins(self) -> list[Pin]:
        """All pins, the oldest first."""
        return [pinned.pin for pinned in self._pins.values()]

    # --- for both ---

    def give_up(self) -> bool:
        """Let go of one: what ends first, then the newest pin, which stays listed. False if none is left."""
        while self._heap:
            if self._pop():
                self.counters.given_up += 1
                return True
        for name, (pin, node) in reversed(self._pins.items()):
            if node is not None:
                self._pins[name] = _Pinned(pin._replace(blocks=0), None)
                self._tree.let_go(node)
                self.counters.given_up += 1
                return True
        return False

    def clear(self) -> None:
        """Let go of everything, pins included."""
        while self._heap:
            self._pop()
        for name in list(self._pins):
            self.unpin(name)

    def _unheld(self, node: Node) -> list[Node]:
        path = []
        while node.parent is not None and not node.retains:
            path.append(node)
            node = node.parent
        return path

    def _fits(self, node: Node) -> bool:
        return self._tree.num_held + sum(len(each.blocks) for each in self._unheld(node)) <= self.most

    def nodes(self) -> list[Node]:
        """The node of every hold, for checks."""
        return [*self._ends, *(pinned.node for pinned in self._pins.values() if pinned.node is not None)]
