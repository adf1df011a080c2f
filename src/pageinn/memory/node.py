"""A node of the prefix tree: an edge of tokens and the blocks that hold their keys and values."""

from __future__ import annotations

from bisect import bisect_left, insort
from enum import IntFlag
from typing import NamedTuple

from pageinn.memory.accounts import Account


class Residency(IntFlag):
    """Where a node's blocks are; a copy may be in more than one place."""

    DEVICE = 1
    HOST = 2
    DISK = 4


class ChildKey(NamedTuple):
    """A child is found by its account's number and its first block's tokens (all of them, for a tail).

    The dictionary compares tokens, so equal hashes of different tokens do no harm.
    """

    account: int
    first: bytes


class Node:
    """A run of whole blocks, or a tail: one block that is only partly filled, always a leaf.

    pins counts the running sequences whose path goes through or ends here; last_used is a tick of the tree's counter;
    hits counts the sequences that found it computed. `order` lists, per account, the children's first blocks sorted,
    so that the best partial match is a neighbour.
    """

    __slots__ = (
        "account",
        "blocks",
        "children",
        "hits",
        "last_used",
        "order",
        "parent",
        "pins",
        "residency",
        "tails",
        "tokens",
    )

    def __init__(self, parent: Node | None, account: Account, tokens: bytes, blocks: list[int]) -> None:
        self.parent = parent
        self.account = account
        self.tokens = tokens
        self.blocks = blocks
        self.children: dict[ChildKey, Node] = {}
        self.order: dict[int, list[bytes]] = {}
        self.tails = 0
        self.pins = 0
        self.hits = 0
        self.last_used = 0
        self.residency = Residency.DEVICE

    @property
    def evictable_leaf(self) -> bool:
        """Whether the node is in the tree (the root is not evictable), unpinned, and has no children."""
        return self.pins == 0 and not self.children and self.parent is not None

    def key(self, block_bytes: int) -> ChildKey:
        """Under which key the parent holds this node."""
        return ChildKey(self.account.number, self.tokens[:block_bytes])

    def attach(self, child: Node, block_bytes: int) -> None:
        """Enter a child that is not there yet."""
        key = child.key(block_bytes)
        self.children[key] = child
        insort(self.order.setdefault(key.account, []), key.first)
        self.tails += len(child.tokens) < block_bytes

    def detach(self, child: Node, block_bytes: int) -> None:
        """Remove a child."""
        key = child.key(block_bytes)
        del self.children[key]
        firsts = self.order[key.account]
        del firsts[bisect_left(firsts, key.first)]
        if not firsts:
            del self.order[key.account]
        self.tails -= len(child.tokens) < block_bytes
        child.parent = None

    def neighbours(self, account: int, first: bytes) -> list[bytes]:
        """The at most two first blocks of an account's children that stand beside `first` in sorted order."""
        firsts = self.order.get(account)
        if firsts is None:
            return []
        place = bisect_left(firsts, first)
        return firsts[max(place - 1, 0) : place + 1]
