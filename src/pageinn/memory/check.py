"""The integrity check: recomputes every count and owner from scratch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pageinn.memory.recency import RecencyQueue
from pageinn.memory.scopes import PUBLIC
from pageinn.memory.tokens import TOKEN_BYTES

if TYPE_CHECKING:
    from pageinn.memory.manager import MemoryManager
    from pageinn.memory.node import Node
    from pageinn.memory.sequence import Sequence


def check(manager: MemoryManager, sequences: Iterable[Sequence]) -> None:
    """Raise AssertionError if an owner, a pin, an order or a sum is wrong."""
    sequences = list(sequences)
    nodes = manager.tree.nodes()
    _check_owners(manager, sequences, nodes)
    _check_pins(manager, sequences, nodes)
    _check_sequences(manager, sequences)
    _check_tree(manager, nodes)
    _check_accounts(manager, sequences, nodes)
    _check_host(manager, nodes)
    _check_residency(manager, nodes)
    _check_retention(manager, nodes)
    _check_holdings(manager)


def _check_owners(manager: MemoryManager, sequences: list[Sequence], nodes: list[Node]) -> None:
    owners = Counter(manager.pool.free_blocks())
    for sequence in sequences:
        owners.update(sequence.table[sequence.shared :])
    for node in nodes:
        owners.update(node.blocks)
    assert all(count == 1 for count in owners.values()), "a block has two owners"
    assert set(owners) == set(range(manager.pool.num_blocks)), "a block has no owner, or does not exist"


def _check_pins(manager: MemoryManager, sequences: list[Sequence], nodes: list[Node]) -> None:
    pins: Counter[int] = Counter()
    for sequence in sequences:
        node: Node | None = sequence.node
        while node is not None:
            pins[id(node)] += 1
            node = node.parent
    for node in nodes:
        assert node.pins == pins[id(node)], "a node's pins are not the sequences whose path goes through it"
    kept = sum(len(node.blocks) for node in nodes if node.pins == 0)
    pinned = sum(len(node.blocks) for node in nodes if node.pins)
    assert (manager.tree.num_kept, manager.tree.num_pinned) == (kept, pinned), "kept or pinned is miscounted"
    # What is counted as evictable must be reachable by the queue, leaf by leaf.
    queued = Counter(id(node) for node in manager.shares.leaves())
    assert queued == Counter(id(node) for node in nodes if node.evictable_leaf), "the eviction queue lost a leaf"
    # A bound on tails takes the oldest without a look at whether it may go.
    short = Counter(id(node) for node in nodes if node.evictable_leaf and len(node.tokens) < manager.tree.block_bytes)
    assert Counter(id(node) for node in manager.shares.tails()) == short, "the queue's tails are not those it may take"


def _check_recency(queue: RecencyQueue, takeable: list[Node]) -> None:
    """What may be taken must be reachable by the queue: the least recent one is found."""
    first = queue.peek()
    oldest = min((node.last_used for node in takeable), default=None)
    assert (first.last_used if first else None) == oldest, "a queue of the host lost a node"


def _check_sequences(manager: MemoryManager, sequences: list[Sequence]) -> None:
    for sequence in sequences:
        path = b""
        blocks: list[int] = []
        node = sequence.node
        while node.parent is not None:
            path = node.tokens + path
            blocks = node.blocks + blocks
            assert node.account is sequence.account or node.account.scope == PUBLIC, "a path crosses scopes"
            node = node.parent
        assert node is manager.tree.root, "a path is cut off from the root"
        assert sequence.table[: sequence.shared] == blocks, "a table does not hold its path's blocks"
        assert bytes(sequence.packed[: len(path)]) == path, "a path holds other tokens than its sequence"
        assert len(path) == sequence.shared * manager.tree.block_bytes
        assert len(sequence.table) <= manager.blocks_for(sequence.num_tokens), "blocks beyond the known tokens"
        assert sequence.stored <= len(sequence.table) * manager.block_size, "stored tokens without a block"
        assert sequence.shared <= sequence.stored // manager.block_size, "uncomputed blocks are in the tree"


def _check_tree(manager: MemoryManager, nodes: list[Node]) -> None:
    tree, block_bytes = manager.tree, manager.tree.block_bytes
    assert tree.num_nodes == len(nodes), "nodes are miscounted"
    for node in [tree.root, *nodes]:
        firsts: dict[int, list[bytes]] = {}
        for key, child in node.children.items():
            assert child.parent is node, "a child has another parent"
            assert key == child.key(block_bytes), "a child stands under a wrong key"
            firsts.setdefault(key.account, []).append(key.first)
            assert child.last_used <= node.last_used or node is tree.root or node.pins, "a child outlives its parent"
        assert node.order == {account: sorted(keys) for account, keys in firsts.items()}, "siblings out of order"
        assert node.tails == sum(len(child.tokens) < block_bytes for child in node.children.values())
        if node is not tree.root and len(node.tokens) < block_bytes:
            assert node.size == 1, "a tail has one block"
            assert len(node.tokens) >= TOKEN_BYTES, "an empty tail"
            assert not node.children, "a tail has children"
        else:
            assert len(node.tokens) == node.size * block_bytes, "tokens and blocks of a node differ"


def _check_accounts(manager: MemoryManager, sequences: list[Sequence], nodes: list[Node]) -> None:
    usage = manager.usage()
    assert usage.total == manager.pool.num_blocks, "free + kept + in use is not the pool"
    accounts = manager.ledger.all()
    assert all(not account.idle or account.scope == PUBLIC for account in accounts), "an idle account is open"
    for account in accounts:
        private = sum(len(s.table) - s.shared for s in sequences if s.account is account)
        kept = sum(len(node.blocks) for node in nodes if node.account is account and node.pins == 0)
        pinned = sum(len(node.blocks) for node in nodes if node.account is account and node.pins)
        assert (account.private, account.kept, account.pinned) == (private, kept, pinned), account.scope
        assert account.hosted == sum(len(node.host) for node in nodes if node.account is account), account.scope
        assert account.sequences == sum(s.account is account for s in sequences)
    assert sum(account.private for account in accounts) == manager.num_private
    assert sum(account.kept for account in accounts) == usage.kept


def _check_host(manager: MemoryManager, nodes: list[Node]) -> None:
    host = manager.host
    usage = host.usage()
    assert usage.total == host.num_slots, "free + kept + held is not the host pool"
    owners = Counter(host.pool.free_blocks())
    for node in nodes:
        owners.update(node.host)
    assert all(count == 1 for count in owners.values()), "a slot has two owners"
    assert set(owners) <= set(range(host.num_slots)), "a slot does not exist"
    assert len(owners) + host.num_lent == host.num_slots, "a slot has no owner"
    holds: Counter[int] = Counter()
    for parked in host.parked:
        above = parked.node
        assert above is not None, "a parked sequence is lost and held"
        while above.parent is not None:
            holds[id(above)] += 1
            above = above.parent
        assert above is manager.tree.root, "a parked path is cut off from the root"
    for node in nodes:
        assert node.holds == holds[id(node)], "a node's holds are not the parked sequences whose path goes through it"
    assert host.num_kept == sum(len(node.host) for node in nodes if node.holds == 0), "kept slots are miscounted"
    _check_recency(host.spares, [node for node in nodes if node.spare_copy])
    _check_recency(host.leaves, [node for node in nodes if node.host_leaf])


def _check_residency(manager: MemoryManager, nodes: list[Node]) -> None:
    root, outbox = manager.tree.root, manager.outbox
    for node in [root, *nodes]:
        assert node.below == sum(bool(child.blocks) for child in node.children.values()), "children are miscounted"
    for node in nodes:
        assert node.size, "a node is nowhere"
        assert not node.host or not node.blocks or len(node.host) == len(node.blocks), "a copy is not whole"
        parent = node.parent
        assert not node.blocks or parent is root or (parent and parent.blocks), "a device block hangs from the host"
        assert node.blocks or not node.pins, "a sequence runs on blocks that are not on the device"
        assert node.flight <= outbox.flight, "a store is in a flight to come"


def _check_retention(manager: MemoryManager, nodes: list[Node]) -> None:
    retains: Counter[int] = Counter()
    for held in manager.retention.nodes():
        node: Node | None = held
        while node is not None:
            retains[id(node)] += 1
            node = node.parent
    assert manager.tree.root.retains == 0
    for node in nodes:
        assert node.retains == retains[id(node)], "a node's retains are not the holds whose path goes through it"
    held_nodes = [node for node in nodes if node.retains]
    assert manager.tree.num_held == sum(len(node.blocks) for node in held_nodes) <= manager.retention.most
    assert manager.tree.num_retained == sum(len(node.blocks) for node in held_nodes if node.pins == 0)
    for holding in manager.shares.all():
        own = [node for node in held_nodes if node.account.holding is holding]
        assert holding.held == sum(len(node.blocks) for node in own)
        assert holding.retained == sum(len(node.blocks) for node in own if node.pins == 0)


def _check_holdings(manager: MemoryManager) -> None:
    accounts = manager.ledger.all()
    for holding in manager.shares.all():
        own = [account for account in accounts if account.holding is holding]
        assert all(account.scope.tenant == holding.tenant for account in own), "an account is charged to another tenant"
        assert holding.accounts == len(own)
        assert holding.kept == sum(account.kept for account in own)
        assert holding.active == sum(account.private + account.pinned for account in own)
        over = holding.usage > holding.maximum and holding.evictable
        assert not over, "a tenant keeps more than its maximum"
    assert sum(holding.accounts for holding in manager.shares.all()) == len(accounts)
