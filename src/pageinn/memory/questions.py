"""What can be asked of the memory manager. Nothing here changes anything."""

from __future__ import annotations

from enum import Enum, StrEnum, auto
from typing import NamedTuple

from pageinn.memory.accounts import Account, HostUsage, Ledger, Usage
from pageinn.memory.budget import Budget
from pageinn.memory.eviction import EvictionPolicy, ranking_of
from pageinn.memory.matching import Match, Place
from pageinn.memory.moves import Outbox
from pageinn.memory.pool import BlockPool
from pageinn.memory.retention import DEFAULT_MOST_RETAINED, Retention
from pageinn.memory.scopes import PUBLIC, Scope
from pageinn.memory.sequence import LeaderKey, Sequence
from pageinn.memory.shares import Shares
from pageinn.memory.tokens import TOKEN_BYTES, common_blocks
from pageinn.memory.tree import PrefixTree
from pageinn.memory.view import MemoryView, view
from pageinn.memory.waste import Occupancy, occupancy


class PrefixCache(StrEnum):
    """How far blocks are shared: not at all, between running sequences, or also after a sequence has ended."""

    OFF = "off"
    LIVE = "live"
    KEEP = "keep"


class Located(NamedTuple):
    """Where a block of a path is, and whose: a block of the device, or else a slot of the host."""

    scope: Scope
    block: int | None
    slot: int | None


class Lack(Enum):
    """What a sequence lacks to start: BLOCKS that it may take, or room below its tenant's MAXIMUM."""

    BLOCKS = auto()
    MAXIMUM = auto()


class Questions:
    """The blocks of a device pool and of a host pool, as numbers, and what is known of them."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        prefix_cache: PrefixCache = PrefixCache.KEEP,
        eviction_policy: EvictionPolicy = EvictionPolicy.REUSE,
        host_blocks: int = 0,
        most_retained: float = DEFAULT_MOST_RETAINED,
    ) -> None:
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; a block needs at least one slot")
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}; a pool needs at least one block")
        if host_blocks and prefix_cache is PrefixCache.OFF:
            raise ValueError(f"host_blocks is {host_blocks}; without a prefix tree nothing finds what is on the host")
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self.pool = BlockPool(num_blocks)
        self.shares = Shares(num_blocks, ranking_of(eviction_policy, num_blocks), block_size)
        self.ledger = Ledger(PUBLIC, self.shares)
        self.outbox = Outbox()
        self.tree = PrefixTree(block_size, self.ledger, self.pool, self.shares, self.outbox, host_blocks)
        self.retention = Retention(self.tree, num_blocks, most_retained)
        self.budget = Budget(self.pool, self.tree, self.shares, self.retention)
        self.host = self.tree.host
        self.num_private = 0
        self._sequences: set[Sequence] = set()
        self._leaders: dict[LeaderKey, Sequence] = {}

    def match(self, scope: Scope, packed: bytes) -> Match:
        """The longest prefix of the packed tokens that the scope can reuse. Changes nothing."""
        if self.prefix_cache is PrefixCache.OFF:
            return self.unmatched()
        # A scope that owns nothing yet reads what is public, under a number that owns no node.
        account = self.ledger.find(scope) or Account(scope, -1)
        return self.tree.match(account, packed)

    def locate(self, scope: Scope, packed: bytes) -> list[Located]:
        """Where each whole block is that matches. What is there stays as it is until the next step is planned."""
        node, taken, _ = self.match(scope, packed).place
        found: list[Located] = []
        while node.parent is not None:
            own = node.account.scope
            here = [Located(own, block, None) for block in node.blocks] or [
                Located(own, None, slot) for slot in node.host
            ]
            found[:0] = here[:taken]
            node = node.parent
            taken = node.size
        return found

    def unmatched(self) -> Match:
        """The match of a sequence that is to reuse nothing."""
        return Match(Place(self.tree.root, 0, 0), None)

    def matched_tokens(self, match: Match) -> int:
        """How many tokens a match covers."""
        return match.place.offset // TOKEN_BYTES + (match.partial.tokens if match.partial else 0)

    def sources(self, sequence: Sequence) -> tuple[int, int]:
        """Of the tokens that a sequence found when it started, just now: those from the host, and those in public."""
        public, node = 0, sequence.node
        while node.parent is not None:
            public += node.size if node.account is self.ledger.public else 0
            node = node.parent
        return sequence.loaded * self.block_size, public * self.block_size

    def leader(self, match: Match, scope: Scope, packed: bytes) -> Sequence | None:
        """The running sequence of the same scope that is about to compute the block after the match, or None."""
        place = match.place
        if not self._leaders or place.taken < place.node.size or (account := self.ledger.find(scope)) is None:
            return None
        following = packed[place.offset : place.offset + self.tree.block_bytes]
        return self._leaders.get(LeaderKey(place.node, account.number, following))

    def in_flight(self, match: Match, scope: Scope, packed: bytes) -> bool:
        """Whether the match would be longer in the next step, when what is being stored on the host counts."""
        if not self.host.num_slots:
            return False
        account = self.ledger.find(scope) or Account(scope, -1)
        return self.tree.in_flight(match.place, account, packed)

    def shared_with(self, leader: Sequence, packed: bytes) -> int:
        """How many leading tokens, in whole blocks, a sequence has in common with a leader."""
        blocks = common_blocks(packed, 0, bytes(leader.packed), 0, self.tree.block_bytes)
        return blocks * self.block_size

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold that many tokens."""
        return -(-tokens // self.block_size)

    @property
    def available(self) -> int:
        """Blocks that are free or can be evicted, whoever keeps them."""
        return self.budget.available

    @property
    def evicted_blocks(self) -> int:
        """Kept blocks that were given up for others, so far."""
        return self.budget.evicted_blocks

    def can_admit(self, scope: Scope, match: Match, tokens: int, reserve: int = 0) -> bool:
        """Whether a sequence of that many tokens fits on top of its match, with `reserve` blocks left over."""
        path, fresh = self.tree.kept_on_path(match.place), self._fresh(match, tokens)
        return self.budget.admits(scope.tenant, path, fresh, reserve, alone=not self._sequences)

    def exclusive_if(self, scope: Scope, match: Match, tokens: int, reserve: int) -> int | Lack:
        """How many blocks a sequence that `can_admit` would hold alone, or what it lacks."""
        path, fresh = self.tree.kept_on_path(match.place), self._fresh(match, tokens)
        if not self.budget.within_maximum(scope.tenant, path, fresh):
            return Lack.MAXIMUM
        if not self.budget.admits(scope.tenant, path, fresh, reserve, alone=not self._sequences):
            return Lack.BLOCKS
        return fresh + sum(path.kept.values())

    def available_to(self, scope: Scope) -> int:
        """Blocks that are free or that this scope may take from those who keep them."""
        return self.budget.available_to(scope.tenant)

    def has_room(self, sequence: Sequence) -> bool:
        """Whether the sequence has a slot for its last known token."""
        return len(sequence.packed) <= len(sequence.table) * self.tree.block_bytes

    def can_fork(self, parent: Sequence) -> bool:
        """Whether a fork finds a block for the parent's partly filled one, if it has one."""
        if self.prefix_cache is PrefixCache.OFF or parent.unshared:
            return False
        return parent.stored % self.block_size == 0 or self.budget.has(parent.account.scope.tenant, 1)

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

    def host_usage(self) -> HostUsage:
        """Slots of the host pool by state: free + kept + held = total."""
        return self.host.usage()

    def host_room(self, match: Match) -> int:
        """How many slots of the host pool what follows a match may take, at the cost of all but its whole blocks."""
        return self.host.room(match.place)

    def view(self) -> MemoryView:
        """Who holds which block; walks everything."""
        return view(self.usage(), self.tree, self.shares, self._sequences)

    def exclusive(self, sequence: Sequence) -> int:
        """How many device blocks its preemption would free or make evictable: its own, and those only it pins."""
        blocks, node = len(sequence.table) - sequence.shared, sequence.node
        while node.pins == 1:
            blocks += len(node.blocks)
            assert node.parent is not None
            node = node.parent
        return blocks

    # --- inside ---

    def _fresh(self, match: Match, tokens: int) -> int:
        return self.blocks_for(tokens) - self._matched_blocks(match) + self.tree.absent_blocks(match.place)

    def _matched_blocks(self, match: Match) -> int:
        return match.place.offset // self.tree.block_bytes

    def _alone(self, sequence: Sequence) -> bool:
        return len(self._sequences) == 1 and sequence in self._sequences
