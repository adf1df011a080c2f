"""The host pool: what was evicted from the device and kept, and what parked sequences left there."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pageinn.memory.accounts import Account, HostUsage
from pageinn.memory.matching import Place
from pageinn.memory.moves import Move, MoveKind, Outbox
from pageinn.memory.node import ChildKey, Node
from pageinn.memory.pool import BlockPool
from pageinn.memory.recency import RecencyQueue

if TYPE_CHECKING:
    from pageinn.memory.tree import PrefixTree


class Parked:
    """A preempted sequence whose path is held on the host, until it is lost for want of room (`node` is None then)."""

    __slots__ = ("node", "stored")

    def __init__(self, node: Node, stored: int) -> None:
        self.node: Node | None = node
        #: Blocks that were stored for it.
        self.stored = stored


class HostTier:
    """Moves nodes of the tree between the device and the host, and drops from the host what makes room.

    Of a node that is in both places the host's copy goes first, and whole; then the tail of the least recently used
    leaf, unless it was used later than what asks for room.
    """

    def __init__(self, tree: PrefixTree, outbox: Outbox, num_slots: int) -> None:
        self._tree = tree
        self._outbox = outbox
        self.num_slots = num_slots
        self.pool = BlockPool(num_slots)
        self.spares = RecencyQueue(lambda node: node.spare_copy)
        self.leaves = RecencyQueue(lambda node: node.host_leaf)
        self.parked: set[Parked] = set()
        self.num_kept = 0
        self.num_held = 0
        #: Slots given out to be filled from elsewhere.
        self.num_lent = 0
        self.demoted_blocks = 0
        self.promoted_blocks = 0
        self.dropped_blocks = 0
        self.failed_stores = 0

    def usage(self) -> HostUsage:
        """Slots by state: free + kept + held = total."""
        return HostUsage(self.pool.num_free, self.num_kept, self.num_held + self.num_lent)

    # --- slots ---

    def note(self, node: Node) -> None:
        """Enter a node whose copy may be dropped, or that was used since, in the queue of its kind."""
        if node.spare_copy:
            self.spares.push(node)
        elif node.host_leaf:
            self.leaves.push(node)

    def take(self, count: int, newest: int) -> list[int]:
        """Up to `count` slots, dropping what was last used at the tick `newest` or before."""
        while self.pool.num_free < count:
            spare = self.spares.peek()
            if spare is not None:
                self.release(spare, len(spare.host))
                continue
            leaf = self.leaves.peek()
            if leaf is None or leaf.last_used > newest:
                break
            number = min(count - self.pool.num_free, len(leaf.host))
            self.dropped_blocks += number
            self._tree.shorten(leaf, number)
        return self.pool.take(min(count, self.pool.num_free))

    def release(self, node: Node, number: int) -> None:
        """Give back the slots of a node's last `number` blocks."""
        self.pool.give(node.host[-number:])
        del node.host[-number:]
        self._count(node, -number)

    def _count(self, node: Node, number: int) -> None:
        if node.holds:
            self.num_held += number
        else:
            self.num_kept += number
        node.account.hosted += number

    # --- between device and host ---

    def store(self, node: Node, slots: list[int]) -> None:
        """Copy a node's blocks from the device to these slots."""
        for block, slot in zip(node.blocks, slots, strict=True):
            self._outbox.add(MoveKind.STORE, block, slot)
        self.enter(node, slots, self._outbox.flight)

    def enter(self, node: Node, slots: list[int], flight: int) -> None:
        """Say that the slots hold the node's blocks from that step's commit on."""
        node.host, node.flight = slots, flight
        self._count(node, len(slots))

    def demote(self, leaf: Node, number: int, keep: bool) -> None:
        """Free the last `number` blocks of an unpinned device leaf, leaving on the host what finds room there.

        keep: whether to leave it there for anybody; if not, it is left for parked sequences only.
        """
        slots: list[int] = []
        if leaf.host:
            stay = number if keep or leaf.holds else 0
        else:
            slots = self._room(leaf, number) if keep or leaf.holds else []
            stay = len(slots)
            self.demoted_blocks += stay
        if stay < number:
            self.cut(leaf, number - stay)
        if stay == 0:
            return
        if stay < leaf.size:
            self._tree.settle(Place(leaf, leaf.size - stay, 0))
        if slots:
            self.store(leaf, slots)
        self._tree.leave(leaf)
        self.merge(leaf)

    def _room(self, leaf: Node, number: int) -> list[int]:
        """Slots for the end of a leaf; for want of others, those of what hangs below it."""
        slots = self.take(number, leaf.last_used)
        if len(slots) < number and leaf.children:
            for child in list(leaf.children.values()):
                self._lose(child)
            slots += self.take(number - len(slots), leaf.last_used)
        return slots

    def promote(self, node: Node, blocks: list[int]) -> None:
        """Load a node's slots into these blocks of the device."""
        for slot, block in zip(node.host, blocks, strict=True):
            self._outbox.add(MoveKind.LOAD, slot, block)
        self.promoted_blocks += len(blocks)
        self._tree.arrive(node, blocks)

    def merge(self, node: Node) -> None:
        """Make one node of a node on the host and its only child, where nothing tells the two apart.

        What is evicted block by block would else leave a node for each block. The child stays the same object.
        """
        if len(node.children) != 1:
            return
        [child] = node.children.values()
        parent, block_bytes = node.parent, self._tree.block_bytes
        alike = _traits(child) == _traits(node)
        if not alike or len(child.tokens) < block_bytes or parent is None:
            return
        parent.children[node.key(block_bytes)] = child
        child.parent = parent
        child.tokens = node.tokens + child.tokens
        child.host = node.host + child.host
        child.flight, child.used = max(child.flight, node.flight), max(child.used, node.used)
        node.parent = None
        self._tree.num_nodes -= 1

    # --- dropping ---

    def cut(self, node: Node, number: int) -> None:
        """Drop the last `number` blocks of an unpinned node and what hangs below it on the host."""
        for child in list(node.children.values()):
            self._lose(child)
        if node.holds:
            self._lose_holds(node)
        self._tree.shorten(node, number)

    def _lose(self, top: Node) -> None:
        """Drop a node that is on the host alone, and all that hangs below it."""
        if top.holds:
            self._lose_holds(top)
        nodes = [top]
        for node in nodes:
            nodes.extend(node.children.values())
        for node in reversed(nodes):
            self.dropped_blocks += len(node.host)
            self._tree.remove(node)

    def clear(self) -> int:
        """Drop everything that no parked sequence wants; says how many slots that freed."""
        free = self.pool.num_free
        while (spare := self.spares.peek()) is not None:
            self.release(spare, len(spare.host))
        while (leaf := self.leaves.peek()) is not None:
            self._tree.remove(leaf)
        return self.pool.num_free - free

    def settle(self, moves: list[Move], failed: Collection[int]) -> None:
        """Take in that these moves were performed, but for some stores, named by their place in the list."""
        self._outbox.settle()
        lost: set[int] = set()
        for index, move in enumerate(moves if failed else []):
            if index in failed:
                lost.add(move.destination)
            elif move.kind is MoveKind.STORE:
                # What an earlier store to this slot was for has gone by now.
                lost.discard(move.destination)
        self.failed_stores += len(failed)
        if lost:
            self._forget(lost)

    def _forget(self, lost: set[int]) -> None:
        """Drop the copies in these slots, and what nothing holds up without them."""
        for node in [node for node in self._tree.nodes() if not lost.isdisjoint(node.host)]:
            if node.parent is None:
                continue  # It hung below another one.
            if node.blocks:
                self.release(node, len(node.host))
            else:
                first = next(index for index, slot in enumerate(node.host) if slot in lost)
                self.cut(node, len(node.host) - first)

    # --- parked sequences ---

    def hold(self, node: Node) -> None:
        """Keep the copies on the path to `node` from being dropped."""
        while node.parent is not None:
            self._hold(node)
            node = node.parent

    def _hold(self, node: Node) -> None:
        if node.holds == 0:
            self.num_kept -= len(node.host)
            self.num_held += len(node.host)
        node.holds += 1

    def unhold(self, node: Node) -> None:
        """Undo one `hold`."""
        while node.parent is not None:
            self._unhold(node)
            node = node.parent

    def _unhold(self, node: Node) -> None:
        node.holds -= 1
        if node.holds == 0:
            self.num_kept += len(node.host)
            self.num_held -= len(node.host)
            self.note(node)

    def park(self, node: Node, account: Account, tail: bytes, block: int) -> Parked | None:
        """Unpin the path of a sequence that is to come back, moving to the host, and holding there, what only it holds.

        tail: the packed tokens of its partly filled block, if it has one. None, and nothing is changed, without room.
        """
        alone = self._alone(node)
        unstored = [each for each in alone if not each.host]
        end = node.children.get(ChildKey(account.number, tail)) if tail else node
        needed = sum(len(each.blocks) for each in unstored) + (end is None or bool(tail and not end.host))
        # Held before room is made, so that its own copies are not what goes.
        self.hold(end or node)
        if end is self._tree.root or needed > self.pool.num_free + self.num_kept:
            self.unhold(end or node)
            return None
        slots = self.take(needed, self._tree.tick)
        for each in unstored:
            self.store(each, slots[: len(each.blocks)])
            del slots[: len(each.host)]
        if end is None:
            end = self._tree.hang(node, account, tail, [])
            end.holds = 1
        if slots:
            self._outbox.add(MoveKind.STORE, block, slots[0])
            self.enter(end, slots, self._outbox.flight)
        self._tree.unpin(node)
        for each in alone:
            self._tree.leave(each)
            self.merge(each)
        if tail:
            self._tree.touch(end)
        parked = Parked(end, needed)
        self.parked.add(parked)
        return parked

    def _alone(self, node: Node) -> list[Node]:
        """From the bottom up, the nodes that one sequence alone pins, and nothing else keeps, on the device."""
        alone: list[Node] = []
        while node.pins == 1 and node.below == bool(alone) and not node.retains:
            alone.append(node)
            assert node.parent is not None
            node = node.parent
        return alone

    def unpark(self, parked: Parked) -> None:
        """Let go of a parked sequence's path; nothing to do where that was lost."""
        if parked.node is not None:
            self.unhold(parked.node)
            parked.node = None
            self.parked.remove(parked)

    def discard(self, parked: Parked) -> None:
        """Let go of a parked sequence's path, and drop what is left of it on the host alone and wanted by no other."""
        node = parked.node
        self.unpark(parked)
        while node is not None and node.host_leaf:
            parent = node.parent
            self._tree.remove(node)
            node = parent

    def _lose_holds(self, node: Node) -> None:
        """Let go of all parked sequences whose path goes through a node: they have to be computed again."""
        for parked in list(self.parked):
            above = parked.node
            while above is not None and above is not node:
                above = above.parent
            if above is node:
                self.unpark(parked)

    # --- from elsewhere ---

    def room(self, place: Place) -> int:
        """How many slots can be lent for what follows a place, without losing the path to it."""
        path = self._tree.absent(place.node)
        upheld = sum(len(each.host) for each in path if not each.holds)
        if path and not place.node.holds:
            upheld -= place.node.size - place.taken
        return self.pool.num_free + self.num_kept - upheld

    def lend(self, count: int, place: Place) -> list[int] | None:
        """Slots to be filled from elsewhere with what follows a place, for `insert` or `give`; None if too few.

        They are filled at once, beside the steps: one that a planned move is still to write or read will not do. A node
        of the host's that the place is inside of is split there, so that what is beyond may go.
        """
        if count > self.room(place):
            return None
        path = [] if place.node.blocks else self._tree.absent(self._tree.settle(place))
        for each in path:
            self._hold(each)
        slots = self.take(count, self._tree.tick)
        for each in path:
            self._unhold(each)
        if self._outbox.touches(slots):
            self.pool.give(slots)
            return None
        self.num_lent += count
        return slots

    def give(self, slots: list[int]) -> None:
        """Give back slots that `lend` gave out."""
        self.num_lent -= len(slots)
        self.pool.give(slots)

    def insert(self, account: Account, packed: bytes, start: int, slots: list[int]) -> int:
        """Enter lent slots that were filled with the blocks from `start` on of these tokens, on the host alone.

        Slots are given back where the tree has the blocks already, or not (any more) those before them. Says how many
        were entered; these count as used just now.
        """
        self.num_lent -= len(slots)
        place = self._tree.furthest(account, packed)
        block_bytes = self._tree.block_bytes
        first = place.offset // block_bytes
        known = min(first - start, len(slots)) if first >= start else len(slots)
        self.pool.give(slots[:known])
        fresh = slots[known:]
        if not fresh:
            return 0
        above = self._tree.settle(place)
        tokens = packed[place.offset : (start + len(slots)) * block_bytes]
        self._tree.touch_path(above)
        node = self._tree.hang(above, account, tokens, [])
        self.enter(node, fresh, 0)
        self.note(node)
        return len(fresh)


def _traits(node: Node) -> tuple[int, int, int, int]:
    return node.account.number, node.last_used, node.holds, node.hits
