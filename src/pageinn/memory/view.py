"""Who holds which block at one moment: for a screen, which may look at it while the memory goes on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pageinn.memory.accounts import Usage
from pageinn.memory.sequence import Sequence
from pageinn.memory.shares import Shares
from pageinn.memory.tree import PrefixTree


class NodeView(NamedTuple):
    """A node of the tree. parent: the parent's place in the list, -1 for the root's children.

    account: its scope's number; tenant: that scope's name in counters. tokens: packed. blocks: on the device. host: how
    many slots of the host it has. pins, retains, hits: as in `Node`.
    """

    parent: int
    account: int
    tenant: str
    tokens: bytes
    blocks: list[int]
    host: int
    pins: int
    retains: int
    hits: int


class PrivateView(NamedTuple):
    """Blocks that belong to one running sequence alone."""

    tenant: str
    blocks: list[int]


class MemoryView(NamedTuple):
    """All that is not free. Parents stand before their children."""

    usage: Usage
    nodes: list[NodeView]
    private: list[PrivateView]


def view(usage: Usage, tree: PrefixTree, shares: Shares, sequences: Iterable[Sequence]) -> MemoryView:
    """Walk the tree and the sequences; about a microsecond a node. Lists are copies, tokens are never changed."""
    labels: dict[str, str] = {}
    nodes: list[NodeView] = []
    stack = [(tree.root, -1)]
    while stack:
        above, place = stack.pop()
        for node in above.children.values():
            account = node.account
            tenant = account.scope.tenant
            if tenant not in labels:
                labels[tenant] = shares.label(tenant)
            if node.children:
                stack.append((node, len(nodes)))
            nodes.append(
                NodeView(
                    place,
                    account.number,
                    labels[tenant],
                    node.tokens,
                    node.blocks[:],
                    len(node.host),
                    node.pins,
                    node.retains,
                    node.hits,
                )
            )
    private = [
        PrivateView(shares.label(sequence.account.scope.tenant), sequence.table[sequence.shared :])
        for sequence in sequences
    ]
    return MemoryView(usage, nodes, private)
