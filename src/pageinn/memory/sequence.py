"""A running sequence's memory, and what is said of it."""

from __future__ import annotations

from typing import NamedTuple

from pageinn.memory.accounts import Account
from pageinn.memory.node import Node
from pageinn.memory.tokens import TOKEN_BYTES


class TableEdit(NamedTuple):
    """From logical block `start` on, a sequence's table now holds `blocks`."""

    start: int
    blocks: list[int]


class LeaderKey(NamedTuple):
    """What a leader computes: the block with these tokens, after a node, for an account's number."""

    node: Node
    account: int
    following: bytes


class Sequence:
    """A running sequence's memory. Only the manager changes it.

    packed: all known tokens. stored: how many of them have keys and values in place. table: its physical blocks, the
    first `shared` of which belong to the tree, the others to the sequence alone. loaded: blocks that came from the host
    when it started. unshared: none of its own enters the tree.
    """

    __slots__ = ("account", "leads", "loaded", "node", "packed", "shared", "stored", "table", "unshared")

    def __init__(self, account: Account, node: Node, packed: bytes) -> None:
        self.account = account
        self.node = node
        self.packed = bytearray(packed)
        self.table: list[int] = []
        self.shared = 0
        self.stored = 0
        self.loaded = 0
        self.unshared = False
        self.leads: LeaderKey | None = None

    @property
    def num_tokens(self) -> int:
        """How many tokens are known."""
        return len(self.packed) // TOKEN_BYTES
