"""The memory manager: sequences, their block tables, and the prefix tree behind them.

A block is free, private to one sequence, or in exactly one node of the tree. There are no reference counts: a running
sequence pins the node where its path ends.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from pageinn.memory.accounts import Account, Ledger, Usage
from pageinn.memory.eviction import EvictionPolicy
from pageinn.memory.moves import Move, Outbox
from pageinn.memory.node import Node
from pageinn.memory.pool import BlockPool, NoSpaceError
from pageinn.memory.scopes import PUBLIC, Scope
from pageinn.memory.tokens import TOKEN_BYTES, common_blocks
from pageinn.memory.tree import Match, Place, PrefixTree
from pageinn.memory.waste import Occupancy, occupancy


class PrefixCache(StrEnum):
    """How far blocks are shared: not at all, between running sequences, or also after a sequence has ended."""

    OFF = "off"
    LIVE = "live"
    KEEP = "keep"


class TableEdit(NamedTuple):
    """From logical block `start` on, a sequence's table now holds `blocks`."""

    start: int
    blocks: list[int]


class ResetCounts(NamedTuple):
    """Blocks that a reset freed, and blocks that running sequences still use."""

    freed: int
    in_use: int


class Sequence:
    """A running sequence's memory. Only the manager changes it.

    packed: all known tokens. stored: how many of them have keys and values in place. table: its physical blocks, the
    first `shared` of which belong to the tree, the others to the sequence alone.
    """

    __slots__ = ("account", "leads", "node", "packed", "shared", "stored", "table")

    def __init__(self, account: Account, node: Node, packed: bytes) -> None:
        self.account = account
        self.node = node
        self.packed = bytearray(packed)
        self.table: list[int] = []
        self.shared = 0
        self.stored = 0
        self.leads: LeaderKey | None = None

    @property
    def num_tokens(self) -> int:
        """How many tokens are known."""
        return len(self.packed) // TOKEN_BYTES


class LeaderKey(NamedTuple):
    """What a leader computes: the block with these tokens, after a node, for an account's number."""

    node: Node
    account: int
    following: bytes


class MemoryManager:
    """Owns the blocks of one pool. Blocks are numbers here; whoever runs the kernels owns the bytes."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        prefix_cache: PrefixCache = PrefixCache.KEEP,
        eviction_policy: EvictionPolicy = EvictionPolicy.REUSE,
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; a block needs at least one slot")
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self.pool = BlockPool(num_blocks)
        self.ledger = Ledger(PUBLIC)
        self.tree = PrefixTree(block_size, self.ledger, self.pool, eviction_policy)
        self.outbox = Outbox()
        self.num_private = 0
        self.evicted_blocks = 0
        self._sequences: set[Sequence] = set()
        self._leaders: dict[LeaderKey, Sequence] = {}

    # --- questions ---

    def match(self, scope: Scope, packed: bytes) -> Match:
        """The longest prefix of the packed tokens that the scope can reuse. Changes nothing."""
        if self.prefix_cache is PrefixCache.OFF:
            return self.unmatched()
        # A scope that owns nothing yet reads what is public, under a number that owns no node.
        account = self.ledger.find(scope) or Account(scope, -1)
        return self.tree.match(account, packed)

    def unmatched(self) -> Match:
        """The match of a sequence that is to reuse nothing."""
        return Match(Place(self.tree.root, 0, 0), None)

    def matched_tokens(self, match: Match) -> int:
        """How many tokens a match covers."""
        return match.place.offset // TOKEN_BYTES + (match.partial.tokens if match.partial else 0)

    def leader(self, match: Match, scope: Scope, packed: bytes) -> Sequence | None:
        """The running sequence of the same scope that is about to compute the block after the match, or None."""
        account = self.ledger.find(scope)
        place = match.place
        if account is None or place.taken < len(place.node.blocks):
            return None
        following = packed[place.offset : place.offset + self.tree.block_bytes]
        return self._leaders.get(LeaderKey(place.node, account.number, following))

    def shared_with(self, leader: Sequence, packed: bytes) -> int:
        """How many leading tokens, in whole blocks, a sequence has in common with a leader."""
        blocks = common_blocks(packed, 0, bytes(leader.packed), 0, self.tree.block_bytes)
        return blocks * self.block_size

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold that many tokens."""
        return -(-tokens // self.block_size)

    @property
    def available(self) -> int:
        """Blocks that are free or can be evicted."""
        return self.pool.num_free + self.tree.num_kept

    def can_admit(self, match: Match, tokens: int, reserve: int = 0) -> bool:
        """Whether a sequence of that many tokens fits on top of its match, with `reserve` blocks left over."""
        needed = self.blocks_for(tokens) - self._matched_blocks(match)
        return needed + reserve <= self.available - self.tree.kept_on_path(match.place)

    def can_reserve(self, sequence: Sequence) -> bool:
        """Whether there is a block for the sequence's last known token."""
        return self.blocks_for(sequence.num_tokens) - len(sequence.table) <= self.available

    def can_fork(self, parent: Sequence) -> bool:
        """Whether a fork finds a block for the parent's partly filled one, if it has one."""
        if self.prefix_cache is PrefixCache.OFF:
            return False
        return parent.stored % self.block_size == 0 or self.available >= 1

    def usage(self) -> Usage:
        """Blocks of the whole pool by state: free + kept + in use = total."""
        return Usage(self.pool.num_free, self.tree.num_kept, self.num_private + self.tree.num_pinned)

    def occupancy(self) -> Occupancy:
        """Slots that running sequences hold, by what is in them; walks the sequences, not their blocks."""
        return occupancy(self._sequences, self.tree.num_pinned, self.block_size)

    def usage_of(self, scope: Scope) -> Usage:
        """Blocks charged to one scope. Its `free` is 0; the public scope has an account of its own."""
        account = self.ledger.find(scope)
        if account is None:
            return Usage(0, 0, 0)
        return Usage(0, account.kept, account.private + account.pinned)

    # --- acts ---

    def admit(self, scope: Scope, packed: bytes, match: Match | None = None, *, resumed: bool = False) -> Sequence:
        """Start a sequence: pin what matches, take blocks for the rest. Raises NoSpaceError and changes nothing.

        `match` must be the manager's newest answer for the same scope and tokens, with nothing done in between.
        resumed: it ran before, so that what it finds now says nothing about reuse.
        """
        if match is None:
            match = self.match(scope, packed)
        tokens = len(packed) // TOKEN_BYTES
        if not self.can_admit(match, tokens):
            raise NoSpaceError(f"{tokens} tokens need more blocks than the {self.available} available")
        account = self.ledger.open(scope)
        account.sequences += 1
        donor = match.partial
        source = donor.node.blocks[donor.logical] if donor else -1
        node = self.tree.settle(match.place)
        # What was matched is pinned before anything is allocated: allocating may evict.
        self.tree.pin(node)
        if not resumed:
            self.tree.count_reuse(node)
        sequence = Sequence(account, node, packed)
        sequence.shared = self._matched_blocks(match)
        sequence.stored = self.matched_tokens(match)
        sequence.table = self._path_blocks(node)
        fresh = self._take(self.blocks_for(tokens) - sequence.shared, account)
        sequence.table += fresh
        self._sequences.add(sequence)
        self._lead(sequence)
        # The donor may have been evicted just now and its block be among the fresh ones, even the destination itself:
        # moves run before the step writes, so its slots still hold what was matched.
        if donor and source != fresh[0]:
            self.outbox.copy(source, fresh[0])
        return sequence

    def record(self, sequence: Sequence, token: int) -> None:
        """Learn the sequence's next token. Its slot is reserved before it is computed."""
        sequence.packed += token.to_bytes(TOKEN_BYTES, "little")

    def reserve(self, sequence: Sequence) -> TableEdit | None:
        """Take blocks for all known tokens. Raises NoSpaceError, and takes none, when there are too few."""
        missing = self.blocks_for(sequence.num_tokens) - len(sequence.table)
        if missing <= 0:
            return None
        fresh = self._take(missing, sequence.account)
        sequence.table += fresh
        return TableEdit(len(sequence.table) - missing, fresh)

    def mark_stored(self, sequence: Sequence, stored: int) -> TableEdit | None:
        """Say that the first `stored` tokens have their keys and values in place; full blocks enter the tree.

        Returns the change of the sequence's table where the tree had a block already, in place of its own.
        """
        sequence.stored = stored
        full = stored // self.block_size
        if self.prefix_cache is PrefixCache.OFF or full <= sequence.shared:
            return None
        self._unlead(sequence)
        start, block_bytes = sequence.shared, self.tree.block_bytes
        tokens = bytes(sequence.packed[start * block_bytes : full * block_bytes])
        own = sequence.table[start:full]
        sequence.node, held = self.tree.extend(sequence.node, sequence.account, tokens, own)
        sequence.table[start:full] = held
        sequence.shared = full
        self.num_private -= len(own)
        sequence.account.private -= len(own)
        replaced = sum(1 for mine, tree in zip(own, held, strict=True) if mine != tree)
        self.pool.give(own[:replaced])
        self._lead(sequence)
        return TableEdit(start, held[:replaced]) if replaced else None

    def fork(self, parent: Sequence) -> Sequence:
        """Start a sequence with the parent's stored tokens. It shares all blocks but the partly filled one, a copy.

        Raises NoSpaceError and changes nothing when that copy finds no block.
        """
        if not self.can_fork(parent):
            raise NoSpaceError("no block is available for a fork's partly filled block")
        account = parent.account
        account.sequences += 1
        child = Sequence(account, parent.node, bytes(parent.packed[: parent.stored * TOKEN_BYTES]))
        self.tree.pin(child.node)
        child.shared = parent.shared
        child.stored = parent.stored
        child.table = parent.table[: parent.shared]
        if child.stored % self.block_size:
            child.table += self._take(1, account)
            self.outbox.copy(parent.table[parent.shared], child.table[-1])
        self._sequences.add(child)
        self._lead(child)
        return child

    def release(self, sequence: Sequence) -> None:
        """End a sequence: unpin its path, keep its partly filled tail, free the rest."""
        self._unlead(sequence)
        self._sequences.remove(sequence)
        account = sequence.account
        private = sequence.table[sequence.shared :]
        self.num_private -= len(private)
        account.private -= len(private)
        self.tree.unpin(sequence.node)
        tail = bytes(sequence.packed[sequence.shared * self.tree.block_bytes : sequence.stored * TOKEN_BYTES])
        keep = self.prefix_cache is PrefixCache.KEEP and 0 < len(tail) < self.tree.block_bytes
        if keep and self.tree.keep_tail(sequence.node, account, tail, private[0]):
            private = private[1:]
        self.pool.give(private)
        if self.prefix_cache is PrefixCache.LIVE:
            self.tree.evict(self.tree.num_kept)
        # Last, so that the account stays open while its tail finds a place.
        account.sequences -= 1
        self.ledger.close_if_idle(account)

    def reset(self) -> ResetCounts:
        """Free all kept blocks."""
        freed = self.tree.evict(self.tree.num_kept)
        return ResetCounts(freed, self.usage().in_use)

    def drain_moves(self) -> list[Move]:
        """The block moves of all acts since the last call, which the next step performs in order before it writes."""
        return self.outbox.drain()

    # --- inside ---

    def _matched_blocks(self, match: Match) -> int:
        return match.place.offset // self.tree.block_bytes

    def _path_blocks(self, node: Node) -> list[int]:
        runs = []
        while node.parent is not None:
            runs.append(node.blocks)
            node = node.parent
        return [block for run in reversed(runs) for block in run]

    def _take(self, count: int, account: Account) -> list[int]:
        missing = count - self.pool.num_free
        if missing > 0:
            if missing > self.tree.num_kept:
                raise NoSpaceError(f"{count} blocks asked for, {self.available} available")
            self.evicted_blocks += self.tree.evict(missing)
        taken = self.pool.take(count)
        self.num_private += count
        account.private += count
        return taken

    def _lead(self, sequence: Sequence) -> None:
        """Enter the sequence as the one that computes its next block, if that block is known and nobody does yet."""
        block_bytes = self.tree.block_bytes
        start = sequence.shared * block_bytes
        following = bytes(sequence.packed[start : start + block_bytes])
        if self.prefix_cache is PrefixCache.OFF or len(following) < block_bytes:
            return
        key = LeaderKey(sequence.node, sequence.account.number, following)
        if self._leaders.setdefault(key, sequence) is sequence:
            sequence.leads = key

    def _unlead(self, sequence: Sequence) -> None:
        if sequence.leads is not None:
            del self._leaders[sequence.leads]
            sequence.leads = None

    def check(self) -> None:
        """Walk everything and raise AssertionError where the books do not agree. Expensive; for tests."""
        from pageinn.memory.check import check

        check(self, self._sequences)
