"""A node of the prefix tree: an edge of tokens and the blocks that hold their keys and values."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

from pageinn.memory.accounts import Account


class ChildKey(NamedTuple):
    """A child is found by its account's number and its first block's tokens (all of them, for a tail).

    The dictionary compares tokens, so equal hashes of different tokens do no harm.
    """

    account: int
    first: bytes


class Node:
    """A run of whole blocks, or a tail: one block that is only partly filled, always a leaf.

    Where it resides: `blocks` on the device, `host` in slots of the host pool; one of them may be empty, and both are
    whole otherwise. A node on the device has only such ancestors. pins counts the running sequences whose path goes
    through or ends here, holds the parked ones, retains what keeps it for a time or by the operator's pin; below, the
    children that are on the device. last_used is a tick of the tree's counter, used the same moment in seconds of the
    driver's clock, of the beginning of a use too; hits counts the sequences that found it
    computed; flight is the step that brings the host copy. `order` lists, per account, the children's first blocks
    sorted, so that the best partial match is a neighbour.
    """

    __slots__ = (
        "account",
        "below",
        "blocks",
        "children",
        "flight",
        "hits",
        "holds",
        "host",
        "last_used",
        "order",
        "parent",
        "pins",
        "retains",
        "tails",
        "tokens",
        "used",
    )

    def __init__(self, parent: Node | None, account: Account, tokens: bytes, blocks: list[int]) -> None:
        self.parent = parent
        self.account = account
        self.tokens = tokens
        self.blocks = blocks
        self.host: list[int] = []
        self.children: dict[ChildKey, Node] = {}
        self.order: dict[int, list[bytes]] = {}
        self.tails = 0
        self.below = 0
        self.pins = 0
        self.hits = 0
        self.retains = 0
        self.holds = 0
        self.last_used = 0
        self.used = 0.0
        self.flight = 0

    @property
    def size(self) -> int:
        """How many blocks long the run is, wherever they are."""
        return len(self.blocks) or len(self.host)

    @property
    def evictable_leaf(self) -> bool:
        """Whether the node is in the tree (the root is not evictable), wanted by nobody, and the last on device."""
        wanted = self.pins or self.retains or self.below
        return not wanted and bool(self.blocks) and self.parent is not None

    @property
    def host_leaf(self) -> bool:
        """Whether the node is in the tree, on the host alone, wanted by no sequence, and has no children."""
        return bool(self.host) and not (self.blocks or self.children or self.pins or self.holds) and bool(self.parent)

    @property
    def spare_copy(self) -> bool:
        """Whether the host has a copy of what is on the device, for no parked sequence."""
        return bool(self.host) and bool(self.blocks) and self.holds == 0 and self.parent is not None

    def key(self, block_bytes: int) -> ChildKey:
        """Under which key the parent holds this node."""
        return ChildKey(self.account.number, self.tokens[:block_bytes])

    def attach(self, child: Node, block_bytes: int) -> None:
        """Enter a child that is not there yet."""
        key = child.key(block_bytes)
        self.children[key] = child
        insort(self.order.setdefault(key.account, []), key.first)
        self.tails += len(child.tokens) < block_bytes
        self.below += bool(child.blocks)

    def detach(self, child: Node, block_bytes: int) -> None:
        """Remove a child."""
        key = child.key(block_bytes)
        del self.children[key]
        firsts = self.order[key.account]
        del firsts[bisect_left(firsts, key.first)]
        if not firsts:
            del self.order[key.account]
        self.tails -= len(child.tokens) < block_bytes
        self.below -= bool(child.blocks)
        child.parent = None

    def neighbours(self, account: int, first: bytes) -> list[bytes]:
        """The at most two first blocks of an account's children that stand beside `first` in sorted order."""
        firsts = self.order.get(account)
        if firsts is None:
            return []
        place = bisect_left(firsts, first)
        return firsts[max(place - 1, 0) : place + 1]
