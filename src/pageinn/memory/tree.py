"""The prefix tree: which computed blocks hold which tokens.

A compressed radix tree after SGLang's RadixAttention (Zheng et al., 2024, arXiv:2312.07104), with edges that split at
block boundaries only, real tokens compared instead of hashes, and scopes that cannot read each other.
"""

from __future__ import annotations

from typing import NamedTuple

from pageinn.memory.accounts import Account, Ledger
from pageinn.memory.eviction import EvictionPolicy, EvictionQueue, ranking_of
from pageinn.memory.node import ChildKey, Node
from pageinn.memory.pool import BlockPool
from pageinn.memory.tokens import TOKEN_BYTES, common_blocks, common_tokens


class Place(NamedTuple):
    """A block boundary: after the first `taken` blocks of a node, `offset` bytes from where the match began."""

    node: Node
    taken: int
    offset: int


class Partial(NamedTuple):
    """A block whose first `tokens` slots continue a match, to be copied."""

    node: Node
    logical: int
    tokens: int


class Match(NamedTuple):
    """The longest known prefix: whole blocks up to `place`, then perhaps some slots of one more block."""

    place: Place
    partial: Partial | None


class PrefixTree:
    """Matching, growing, pinning and evicting. Takes no blocks from the pool; gives back those that it drops."""

    def __init__(self, block_size: int, ledger: Ledger, pool: BlockPool, policy: EvictionPolicy) -> None:
        self.block_size = block_size
        self.block_bytes = block_size * TOKEN_BYTES
        self._ledger = ledger
        self._public = ledger.public
        self._pool = pool
        self._queue = EvictionQueue(ranking_of(policy, pool.num_blocks), block_size)
        self._tick = 0
        self.root = Node(None, ledger.public, b"", [])
        self.num_nodes = 0
        #: Blocks in nodes without pins. A pin counts along the path, so all of them can be evicted, leaves first.
        self.num_kept = 0
        self.num_pinned = 0

    # --- matching: reads only ---

    def match(self, account: Account, packed: bytes) -> Match:
        """The longest prefix of `packed` that `account` may read. Raises nothing, changes nothing."""
        places = self._places(self.root, 0, account, packed)
        furthest = max(place.offset for place in places)
        best = places[0]
        partial: Partial | None = None
        for place in places:
            if place.offset == furthest:
                found = self._partial(place, account, packed)
                if best.offset < furthest or (found and (partial is None or found.tokens > partial.tokens)):
                    best, partial = place, found
        return Match(best, partial)

    def _places(self, node: Node, offset: int, account: Account, packed: bytes) -> list[Place]:
        """Where a descent may end: all public, or public to some node and private below it."""
        if account is self._public or self._public.number not in node.order:
            return [self._descend(node, offset, account.number, packed)]
        places = []
        if account.number in node.order:
            places.append(self._descend(node, offset, account.number, packed))
        while (step := self._step(node, offset, self._public.number, packed)) is not None:
            if step.taken < len(step.node.blocks):
                places.append(step)
                return places
            node, offset = step.node, step.offset
            if account.number in node.order:
                places.append(self._descend(node, offset, account.number, packed))
        places.append(Place(node, len(node.blocks), offset))
        return places

    def _step(self, node: Node, offset: int, account: int, packed: bytes) -> Place | None:
        """Follow one edge as far as it goes; None if not one block of it matches."""
        block_bytes = self.block_bytes
        first = packed[offset : offset + block_bytes]
        if len(first) < block_bytes:
            return None
        child = node.children.get(ChildKey(account, first))
        if child is None:
            return None
        edge = child.tokens
        if packed.startswith(edge, offset):
            return Place(child, len(child.blocks), offset + len(edge))
        taken = common_blocks(packed, offset, edge, 0, block_bytes)
        return Place(child, taken, offset + taken * block_bytes)

    def _descend(self, node: Node, offset: int, account: int, packed: bytes) -> Place:
        """Follow one account's edges to the end of the match: `_step` in a loop, unrolled because prompts are deep."""
        block_bytes = self.block_bytes
        last = len(packed) - block_bytes
        while offset <= last:
            child = node.children.get(ChildKey(account, packed[offset : offset + block_bytes]))
            if child is None:
                break
            edge = child.tokens
            if not packed.startswith(edge, offset):
                taken = common_blocks(packed, offset, edge, 0, block_bytes)
                return Place(child, taken, offset + taken * block_bytes)
            node = child
            offset += len(edge)
        return Place(node, len(node.blocks), offset)

    def _partial(self, place: Place, account: Account, packed: bytes) -> Partial | None:
        rest = packed[place.offset : place.offset + self.block_bytes]
        if not rest:
            return None
        node, taken = place.node, place.taken
        if taken < len(node.blocks):
            edge = node.tokens[taken * self.block_bytes : (taken + 1) * self.block_bytes]
            shared = common_tokens(edge, rest)
            return Partial(node, taken, shared) if shared else None
        best: Partial | None = None
        for number in {account.number: None, self._public.number: None}:
            for first in node.neighbours(number, rest):
                shared = common_tokens(first, rest)
                if shared and (best is None or shared > best.tokens):
                    best = Partial(node.children[ChildKey(number, first)], 0, shared)
        return best

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
            assert node.parent is not None
            node = node.parent

    def unpin(self, node: Node) -> None:
        """Count one sequence less on the path to `node`, which is thereby the most recently used."""
        self._tick += 1
        while node is not self.root:
            node.pins -= 1
            node.last_used = self._tick
            if node.pins == 0:
                self._set_kept(node, len(node.blocks))
                if not node.children:
                    self._queue.push(node)
            assert node.parent is not None
            node = node.parent

    def kept_on_path(self, place: Place) -> int:
        """Kept blocks that pinning the path to `place` would take out of reach of eviction."""
        node, kept = place.node, 0
        if node.pins == 0 and node is not self.root:
            kept = place.taken - len(node.blocks)
        while node is not self.root and node.pins == 0:
            kept += len(node.blocks)
            assert node.parent is not None
            node = node.parent
        return kept

    def _set_kept(self, node: Node, blocks: int) -> None:
        self.num_kept += blocks
        self.num_pinned -= blocks
        node.account.kept += blocks
        node.account.pinned -= blocks

    # --- growing ---

    def settle(self, place: Place) -> Node:
        """The node that ends exactly at `place`; splits an edge if need be, the lower part staying the same object."""
        node, taken, _ = place
        if taken == len(node.blocks):
            return node
        parent = node.parent
        assert parent is not None
        cut = taken * self.block_bytes
        upper = Node(parent, node.account, node.tokens[:cut], node.blocks[:taken])
        upper.pins, upper.last_used, upper.residency = node.pins, node.last_used, node.residency
        upper.hits = node.hits
        # It begins with the same block, so it takes the node's place among the siblings.
        parent.children[node.key(self.block_bytes)] = upper
        node.tokens, node.blocks, node.parent = node.tokens[cut:], node.blocks[taken:], upper
        upper.attach(node, self.block_bytes)
        self.num_nodes += 1
        return upper

    def extend(self, node: Node, account: Account, tokens: bytes, blocks: list[int]) -> tuple[Node, list[int]]:
        """Enter computed whole blocks below `node`, which the caller has pinned; its pin moves to the returned node.

        tokens: packed, len(blocks) whole blocks. Returns the new end of the path and the blocks that now hold the
        tokens: the tree's own where it had them already. The caller keeps those of its blocks that are not among them.
        """
        places = self._places(node, 0, account, tokens)
        place = max(places, key=lambda place: place.offset)
        known: list[int] = []
        if place.offset:
            end = self.settle(place)
            self.pin(end, above=node)
            above: Node | None = end
            while above is not node:
                assert above is not None
                known[:0] = above.blocks
                above = above.parent
            node = end
        fresh, rest = blocks[len(known) :], tokens[place.offset :]
        if not fresh:
            return node, known
        self._drop_tails(node, account, rest[: self.block_bytes])
        if node.account is account and node.pins == 1 and not node.children and node is not self.root:
            node.tokens += rest
            node.blocks.extend(fresh)
        else:
            child = Node(node, account, rest, list(fresh))
            child.pins = 1
            node.attach(child, self.block_bytes)
            self.num_nodes += 1
            node = child
        self.num_pinned += len(fresh)
        account.pinned += len(fresh)
        return node, known + fresh

    def keep_tail(self, node: Node, account: Account, tokens: bytes, block: int) -> bool:
        """Keep a partly filled block below `node`, which was used just now.

        False, and nothing kept, if a child covers it already: then that child's first block was used just now.
        """
        for number in {account.number: None, self._public.number: None}:
            firsts = node.neighbours(number, tokens)
            if firsts and firsts[-1].startswith(tokens):
                self._touch(self.settle(Place(node.children[ChildKey(number, firsts[-1])], 1, 0)))
                return False
        self._drop_tails(node, account, tokens)
        tail = Node(node, account, tokens, [block])
        tail.last_used = self._tick
        node.attach(tail, self.block_bytes)
        self.num_nodes += 1
        self.num_kept += 1
        account.kept += 1
        self._queue.push(tail)
        return True

    def _touch(self, node: Node) -> None:
        """Make a node as recently used as the newest."""
        node.last_used = self._tick
        if node.evictable_leaf:
            self._queue.push(node)

    def _drop_tails(self, node: Node, account: Account, covering: bytes) -> None:
        """Drop the account's unpinned tails that `covering` begins with."""
        if not node.tails:
            return
        for length in range(TOKEN_BYTES, min(len(covering), self.block_bytes), TOKEN_BYTES):
            tail = node.children.get(ChildKey(account.number, covering[:length]))
            if tail is not None and tail.pins == 0:
                self._pool.give(tail.blocks)
                self._remove(tail)

    # --- evicting ---

    def evict(self, count: int) -> int:
        """Free up to `count` kept blocks, each the tail of the unpinned leaf that ranks lowest; says how many.

        O(log n) a block: a leaf gives its tail blocks together, and the queue is asked once a leaf.
        """
        evicted = 0
        while evicted < count and (leaf := self._queue.peek()) is not None:
            number = min(count - evicted, len(leaf.blocks))
            evicted += number
            self._queue.ranking.evicted(leaf, self._tick)
            self._pool.give(leaf.blocks[-number:])
            if number == len(leaf.blocks):
                self._remove(leaf)
            else:
                self.num_kept -= number
                leaf.account.kept -= number
                del leaf.blocks[-number:]
                leaf.tokens = leaf.tokens[: -number * self.block_bytes]
        return evicted

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None
        self._queue.discard(leaf)
        parent.detach(leaf, self.block_bytes)
        self.num_nodes -= 1
        self.num_kept -= len(leaf.blocks)
        leaf.account.kept -= len(leaf.blocks)
        self._ledger.close_if_idle(leaf.account)
        if parent.evictable_leaf:
            self._queue.push(parent)

    def nodes(self) -> list[Node]:
        """All nodes but the root; walks the tree, for checks and views."""
        found: list[Node] = []
        stack = [self.root]
        while stack:
            children = stack.pop().children.values()
            found.extend(children)
            stack.extend(children)
        return found
