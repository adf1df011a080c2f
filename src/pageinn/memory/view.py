"""Who holds which block at one moment: for a screen, which may look at it while the memory goes on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pageinn.memory.accounts import Usage
from pageinn.memory.sequence import Sequence
from pageinn.memory.shares import Shares
from pageinn.memory.tree import PrefixTree


class TreeView(NamedTuple):
    """The nodes of the tree, a list for each of their properties; parents stand before their children.

    Lists, because an object for each node takes twice the time, and more when the garbage collector wakes up for it.

    parents: the parent's place, -1 for the root's children. accounts: their scopes' numbers; tenants: their scopes'
    names in counters. tokens: packed. sizes: blocks on the device. host: slots of the host. pins, retains, hits: as in
    `Node`. blocks: those on the device, node by node.
    """

    parents: list[int]
    accounts: list[int]
    tenants: list[str]
    tokens: list[bytes]
    sizes: list[int]
    host: list[int]
    pins: list[int]
    retains: list[int]
    hits: list[int]
    blocks: list[int]


class PrivateView(NamedTuple):
    """Blocks that belong to one running sequence alone."""

    tenant: str
    blocks: list[int]


class MemoryView(NamedTuple):
    """All that is not free."""

    usage: Usage
    tree: TreeView
    private: list[PrivateView]


def view(usage: Usage, tree: PrefixTree, shares: Shares, sequences: Iterable[Sequence]) -> MemoryView:
    """Walk the tree and the sequences; some 1.3 microseconds a node. Lists are copies, tokens are never changed."""
    found = TreeView([], [], [], [], [], [], [], [], [], [])
    parents, accounts, tenants, tokens, sizes, host, pins, retains, hits, blocks = found
    labels: dict[str, str] = {}
    stack = [(tree.root, -1)]
    while stack:
        above, place = stack.pop()
        for node in above.children.values():
            if node.children:
                stack.append((node, len(parents)))
            account = node.account
            tenant = account.scope.tenant
            if tenant not in labels:
                labels[tenant] = shares.label(tenant)
            parents.append(place)
            accounts.append(account.number)
            tenants.append(labels[tenant])
            tokens.append(node.tokens)
            sizes.append(len(node.blocks))
            host.append(len(node.host))
            pins.append(node.pins)
            retains.append(node.retains)
            hits.append(node.hits)
            blocks.extend(node.blocks)
    private = [
        PrivateView(shares.label(sequence.account.scope.tenant), sequence.table[sequence.shared :])
        for sequence in sequences
    ]
    return MemoryView(usage, found, private)
