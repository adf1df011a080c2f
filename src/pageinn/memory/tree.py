"""The prefix tree: which computed blocks hold which tokens.

A compressed radix tree after SGLang's RadixAttention (Zheng et al., 2024, arXiv:2312.07104), with edges that split at
block boundaries only, real tokens compared instead of hashes, and scopes that cannot read each other.
"""

from __future__ import annotations

from pageinn.memory.accounts import Account, Ledger
from pageinn.memory.ages import Ages
from pageinn.memory.host import HostTier
from pageinn.memory.matching import Place
from pageinn.memory.moves import Outbox
from pageinn.memory.node import ChildKey, Node
from pageinn.memory.pinning import Pinning
from pageinn.memory.pool import BlockPool
from pageinn.memory.shares import Holding, Shares, Victim
from pageinn.memory.tokens import TOKEN_BYTES

#: Before any flight: nothing that is on the host alone counts.
_NEVER = -1


class PrefixTree(Pinning):
    """Growing and evicting. Takes no blocks from the pool; gives back those that it drops."""

    def __init__(
        self, block_size: int, ledger: Ledger, pool: BlockPool, shares: Shares, outbox: Outbox, host_slots: int
    ) -> None:
        super().__init__(block_size, ledger, shares, outbox, Ages(pool.num_blocks))
        self._ledger = ledger
        self._pool = pool
        self.host = HostTier(self, outbox, host_slots)
        self.num_nodes = 0

    # --- growing ---

    def settle(self, place: Place) -> Node:
        """The node that ends exactly at `place`; splits an edge if need be, the lower part staying the same object."""
        node, taken, _ = place
        if taken == node.size:
            return node
        parent = node.parent
        assert parent is not None
        cut = taken * self.block_bytes
        upper = Node(parent, node.account, node.tokens[:cut], node.blocks[:taken])
        upper.host, node.host = node.host[:taken], node.host[taken:]
        upper.pins, upper.holds, upper.last_used, upper.flight = node.pins, node.holds, node.last_used, node.flight
        upper.hits, upper.retains, upper.used = node.hits, node.retains, node.used
        # It begins with the same block, so it takes the node's place among the siblings.
        parent.children[node.key(self.block_bytes)] = upper
        node.tokens, node.blocks, node.parent = node.tokens[cut:], node.blocks[taken:], upper
        upper.attach(node, self.block_bytes)
        self.num_nodes += 1
        if upper.host:
            self.host.note(upper)
        return upper

    def extend(self, node: Node, account: Account, tokens: bytes, blocks: list[int]) -> tuple[Node, list[int]]:
        """Enter computed whole blocks below `node`, which the caller has pinned; its pin moves to the returned node.

        tokens: packed, len(blocks) whole blocks. Returns the new end of the path and the blocks that now hold the
        tokens: the tree's own where it had them on the device already. The caller keeps those of its blocks that are
        not among them.
        """
        known: list[int] = []
        if node.children:
            node, known = self._follow(node, account, tokens, blocks)
        fresh, rest = blocks[len(known) :], tokens[len(known) * self.block_bytes :]
        if not fresh:
            return node, known
        self._drop_tails(node, account, rest[: self.block_bytes])
        # In place only where nobody else's path ends at the node, and no copy of it would be left behind.
        grows = node.account is account and node.pins == 1 and node.holds == 0 and node is not self.root
        if grows and not (node.children or node.host or node.retains):
            node.tokens += rest
            node.blocks.extend(fresh)
        else:
            node = self.hang(node, account, rest, list(fresh))
            node.pins = 1
        self.num_pinned += len(fresh)
        account.pinned += len(fresh)
        return node, known + fresh

    def _follow(self, node: Node, account: Account, tokens: bytes, blocks: list[int]) -> tuple[Node, list[int]]:
        """Move a pin down from `node` along the tokens as far as they are known: to where, and over which blocks."""
        # A node of its own that is on the host alone takes over its blocks; a public one does not: a block that others
        # will read is not to come from one tenant's computation.
        places = self._places(node, 0, account, tokens, self._outbox.flight, _NEVER)
        place = max(places, key=lambda place: place.offset)
        known: list[int] = []
        if not place.offset:
            return node, known
        end = self.settle(place)
        self.pin(end, above=node)
        for each in self._between(node, end):
            if not each.blocks:
                self.arrive(each, blocks[len(known) : len(known) + each.size])
            known += each.blocks
        return end, known

    def hang(self, parent: Node, account: Account, tokens: bytes, blocks: list[int]) -> Node:
        """Enter a node below another one, used just now; its blocks are not counted yet."""
        node = Node(parent, account, tokens, blocks)
        node.last_used, node.used = self.tick, self.ages.now
        parent.attach(node, self.block_bytes)
        self.num_nodes += 1
        return node

    def ending(self, node: Node, end: int, blocks: int) -> Node:
        """On the path to `node`, which ends after `end` blocks, the node that ends after `blocks` of them."""
        while end - node.size >= blocks and node.parent is not None:
            end -= node.size
            node = node.parent
        return self.settle(Place(node, node.size - (end - blocks), 0))

    def furthest(self, account: Account, packed: bytes) -> Place:
        """Where the known whole blocks of a prompt end, those included that are still on their way to the host."""
        flight = self._outbox.flight
        return max(self._places(self.root, 0, account, packed, flight, flight), key=lambda place: place.offset)

    def _between(self, above: Node, end: Node) -> list[Node]:
        """The nodes from below `above` to `end`, from the top down."""
        path = []
        while end is not above:
            path.append(end)
            assert end.parent is not None
            end = end.parent
        path.reverse()
        return path

    def keep_tail(self, node: Node, account: Account, tokens: bytes, block: int) -> bool:
        """Keep a partly filled block below `node`, which was used just now.

        False, and nothing kept, if a child covers it already: then that child's first block was used just now.
        """
        for number in {account.number: None, self._public.number: None}:
            firsts = node.neighbours(number, tokens)
            if firsts and firsts[-1].startswith(tokens):
                covering = self.settle(Place(node.children[ChildKey(number, firsts[-1])], 1, 0))
                self.touch(covering)
                if covering.blocks or covering.tokens != tokens or covering.account is not account:
                    return False
                self.arrive(covering, [block])
                return True
        self._drop_tails(node, account, tokens)
        tail = self.hang(node, account, tokens, [block])
        self.num_kept += 1
        account.kept += 1
        self._queue.push(tail)
        return True

    def touch_path(self, node: Node) -> None:
        """Make all nodes on a path the most recently used."""
        self.tick += 1
        while node.parent is not None:
            self.touch(node)
            node = node.parent

    def touch(self, node: Node) -> None:
        """Make a node as recently used as the newest."""
        node.last_used, node.used = self.tick, self.ages.now
        if node.evictable_leaf:
            self._queue.push(node)
        self.host.note(node)

    def _drop_tails(self, node: Node, account: Account, covering: bytes) -> None:
        """Drop the account's tails that no sequence wants and that `covering` begins with."""
        if not node.tails:
            return
        for length in range(TOKEN_BYTES, min(len(covering), self.block_bytes), TOKEN_BYTES):
            tail = node.children.get(ChildKey(account.number, covering[:length]))
            if tail is not None and tail.pins == 0 and tail.holds == 0:
                self.remove(tail)

    # --- arriving on the device, and leaving it ---

    def arrive(self, node: Node, blocks: list[int]) -> None:
        """Let a node that is on the host alone be on the device too, in these blocks."""
        node.blocks = blocks
        assert node.parent is not None
        node.parent.below += 1
        if node.pins:
            self.num_pinned += len(blocks)
            node.account.pinned += len(blocks)
        else:
            self.num_kept += len(blocks)
            node.account.kept += len(blocks)
            if node.evictable_leaf:
                self._queue.push(node)
        self.host.note(node)

    def evict(self, count: int, taker: Holding | None = None, *, everyone: bool = True, demote: bool = True) -> int:
        """Free up to `count` kept blocks, each the tail of an unpinned leaf; says how many.

        Whose, and which of them, is said by `Shares.victim`. demote: they give way to others, so they are counted, and
        what finds room in the host pool is kept there; what a parked sequence wants is, whatever it says. O(log n) a
        block, beside a look at each tenant with a share: a leaf gives its tail blocks together, and the queue is asked
        once a leaf.
        """
        evicted = 0
        while evicted < count and (victim := self._queue.victim(taker, everyone)) is not None:
            evicted += self._evict_from(victim, count - evicted, demote)
        return evicted

    def evict_own(self, holding: Holding, count: int) -> int:
        """Free up to `count` kept blocks of a tenant with a maximum; says how many."""
        evicted = 0
        while evicted < count and (victim := self._queue.own_victim(holding)) is not None:
            evicted += self._evict_from(victim, count - evicted, demote=True)
        return evicted

    def _evict_from(self, victim: Victim, count: int, demote: bool) -> int:
        leaf = victim.leaf
        number = min(count, victim.most, len(leaf.blocks))
        if demote:
            self._queue.count_eviction(leaf, number, self.tick)
            self.ages.evict(leaf.blocks[-number:], leaf.used)
        if self.host.num_slots:
            self.host.demote(leaf, number, demote)
        else:
            self.shorten(leaf, number)
        return number

    def sheltered(self) -> int:
        """Evictable public blocks that only go after something of a tenant with a minimum. Walks what is public."""
        number = self._public.number
        order, blocks = [self.root], 0
        for node in order:
            order.extend(node.children[ChildKey(number, first)] for first in node.order.get(number, ()))
        under: set[Node] = set()
        for node in reversed(order[1:]):
            if node in under or any(child.account.holding.minimum and child.blocks for child in node.children.values()):
                blocks += 0 if node.pins or node.retains else len(node.blocks)
                assert node.parent is not None
                under.add(node.parent)
        return blocks

    def leave(self, leaf: Node) -> None:
        """Let an unpinned leaf that is on the host be there alone."""
        parent = leaf.parent
        assert parent is not None
        self._queue.discard(leaf)
        self._pool.give(leaf.blocks)
        self._count_out(leaf, len(leaf.blocks))
        leaf.blocks = []
        parent.below -= 1
        self.host.note(leaf)
        if parent.evictable_leaf:
            self._queue.push(parent)

    def shorten(self, leaf: Node, number: int) -> None:
        """Drop the last `number` blocks of an unpinned leaf, wherever they are."""
        if number == leaf.size:
            self.remove(leaf)
            return
        if leaf.blocks:
            self._pool.give(leaf.blocks[-number:])
            del leaf.blocks[-number:]
            self._count_out(leaf, number)
        if leaf.host:
            self.host.release(leaf, number)
        leaf.tokens = leaf.tokens[: -number * self.block_bytes]

    def remove(self, leaf: Node) -> None:
        """Drop an unpinned node without children, wherever it is."""
        parent = leaf.parent
        assert parent is not None
        self._queue.discard(leaf)
        parent.detach(leaf, self.block_bytes)
        self.num_nodes -= 1
        if leaf.blocks:
            self._pool.give(leaf.blocks)
            self._count_out(leaf, len(leaf.blocks))
        if leaf.host:
            self.host.release(leaf, len(leaf.host))
        self._ledger.close_if_idle(leaf.account)
        if parent.evictable_leaf:
            self._queue.push(parent)
        if parent.host_leaf:
            self.host.note(parent)

    def _count_out(self, leaf: Node, number: int) -> None:
        self.num_kept -= number
        leaf.account.kept -= number

    def nodes(self) -> list[Node]:
        """All nodes but the root; walks the tree, for checks and views."""
        found: list[Node] = []
        stack = [self.root]
        while stack:
            children = stack.pop().children.values()
            found.extend(children)
            stack.extend(children)
        return found
