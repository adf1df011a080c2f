"""Matching: which computed blocks hold the tokens of a prompt. Reads only."""

from __future__ import annotations

from typing import NamedTuple

from pageinn.memory.accounts import Account, Ledger
from pageinn.memory.moves import Outbox
from pageinn.memory.node import ChildKey, Node
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


class Matching:
    """The root, and the ways down from it.

    What is on the host alone and still in flight is passed over by `match`, as if it were not there.
    """

    def __init__(self, block_size: int, ledger: Ledger, outbox: Outbox) -> None:
        self.block_size = block_size
        self.block_bytes = block_size * TOKEN_BYTES
        self._public = ledger.public
        self._outbox = outbox
        self.root = Node(None, ledger.public, b"", [])

    def match(self, account: Account, packed: bytes) -> Match:
        """The longest prefix of `packed` that `account` may read. Raises nothing, changes nothing."""
        places = self._places(self.root, 0, account, packed, self._outbox.settled, self._outbox.settled)
        if len(places) == 1:
            return Match(places[0], self._partial(places[0], account, packed))
        furthest = max(place.offset for place in places)
        best = places[0]
        partial: Partial | None = None
        for place in places:
            if place.offset == furthest:
                found = self._partial(place, account, packed)
                if best.offset < furthest or (found and (partial is None or found.tokens > partial.tokens)):
                    best, partial = place, found
        return Match(best, partial)

    def _places(
        self, node: Node, offset: int, account: Account, packed: bytes, flight: int, public_flight: int
    ) -> list[Place]:
        """Where a descent may end: all public, or public to some node and private below it.

        flight: the last one whose stores count, of the account's own nodes; public_flight, of public ones beside them.
        """
        if account is self._public or self._public.number not in node.order:
            return [self._descend(node, offset, account.number, packed, flight)]
        places = []
        if account.number in node.order:
            places.append(self._descend(node, offset, account.number, packed, flight))
        while (step := self._step(node, offset, self._public.number, packed, public_flight)) is not None:
            if step.taken < step.node.size:
                places.append(step)
                return places
            node, offset = step.node, step.offset
            if account.number in node.order:
                places.append(self._descend(node, offset, account.number, packed, flight))
        places.append(Place(node, node.size, offset))
        return places

    def _step(self, node: Node, offset: int, account: int, packed: bytes, flight: int) -> Place | None:
        """Follow one edge as far as it goes; None if not one block of it matches."""
        block_bytes = self.block_bytes
        first = packed[offset : offset + block_bytes]
        if len(first) < block_bytes:
            return None
        child = node.children.get(ChildKey(account, first))
        if child is None or (not child.blocks and child.flight > flight):
            return None
        edge = child.tokens
        if packed.startswith(edge, offset):
            return Place(child, child.size, offset + len(edge))
        taken = common_blocks(packed, offset, edge, 0, block_bytes)
        return Place(child, taken, offset + taken * block_bytes)

    def _descend(self, node: Node, offset: int, account: int, packed: bytes, flight: int) -> Place:
        """Follow one account's edges to the end of the match: `_step` in a loop, unrolled because prompts are deep."""
        block_bytes = self.block_bytes
        last = len(packed) - block_bytes
        while offset <= last:
            child = node.children.get(ChildKey(account, packed[offset : offset + block_bytes]))
            if child is None or (not child.blocks and child.flight > flight):
                break
            edge = child.tokens
            if not packed.startswith(edge, offset):
                taken = common_blocks(packed, offset, edge, 0, block_bytes)
                return Place(child, taken, offset + taken * block_bytes)
            node = child
            offset += len(edge)
        return Place(node, node.size, offset)

    def _partial(self, place: Place, account: Account, packed: bytes) -> Partial | None:
        rest = packed[place.offset : place.offset + self.block_bytes]
        if not rest:
            return None
        node, taken = place.node, place.taken
        if taken < node.size:
            edge = node.tokens[taken * self.block_bytes : (taken + 1) * self.block_bytes]
            shared = common_tokens(edge, rest)
            return Partial(node, taken, shared) if shared else None
        best: Partial | None = None
        for number in {account.number: None, self._public.number: None}:
            for first in node.neighbours(number, rest):
                shared = common_tokens(first, rest)
                if shared and (best is None or shared > best.tokens):
                    child = node.children[ChildKey(number, first)]
                    if child.blocks or child.flight <= self._outbox.settled:
                        best = Partial(child, 0, shared)
        return best

    def absent_blocks(self, place: Place) -> int:
        """How many blocks on the path to `place` are not on the device."""
        if place.node.blocks or place.node is self.root:
            return 0
        return sum(len(node.host) for node in self.absent(place.node)) - (place.node.size - place.taken)

    def absent(self, node: Node) -> list[Node]:
        """The nodes on the path to `node` that are not on the device, from the top down."""
        nodes = []
        while not node.blocks and node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def in_flight(self, place: Place, account: Account, packed: bytes) -> bool:
        """Whether what follows a match, a tail too, is on its way to the host, so that the next step can match it."""
        node = place.node
        if place.taken < node.size:
            return False
        rest = packed[place.offset : place.offset + self.block_bytes]
        ends = range(TOKEN_BYTES, len(rest), TOKEN_BYTES) if node.tails else []
        for number in (account.number, self._public.number):
            for end in (*ends, len(rest)):
                child = node.children.get(ChildKey(number, rest[:end]))
                if child is not None and not child.blocks and child.flight > self._outbox.settled:
                    return True
        return False
