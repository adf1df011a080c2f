"""The memory manager: sequences, their block tables, and the prefix tree behind them.

A block is free, private to one sequence, or in exactly one node of the tree. There are no reference counts: a running
sequence pins the node where its path ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pageinn.memory.accounts import Account
from pageinn.memory.host import Parked
from pageinn.memory.matching import Match
from pageinn.memory.moves import Move, MoveKind
from pageinn.memory.node import Node
from pageinn.memory.pool import NoSpaceError
from pageinn.memory.questions import PrefixCache, Questions
from pageinn.memory.retention import Pin
from pageinn.memory.scopes import Scope
from pageinn.memory.sequence import LeaderKey, Sequence, TableEdit
from pageinn.memory.shares import Share
from pageinn.memory.tokens import TOKEN_BYTES


class ResetCounts(NamedTuple):
    """Blocks that a reset freed and blocks that sequences still use, on the device and on the host together."""

    freed: int
    in_use: int


class MemoryManager(Questions):
    """Owns the blocks of a device pool and of a host pool, as numbers; whoever runs the kernels owns the bytes."""

    # --- acts ---

    def admit(
        self,
        scope: Scope,
        packed: bytes,
        match: Match | None = None,
        *,
        resumed: bool = False,
        unshared: bool = False,
    ) -> Sequence:
        """Start a sequence: pin what matches, take blocks for the rest. Raises NoSpaceError and changes nothing.

        `match` must be the manager's newest answer for the same scope and tokens, with nothing done in between.
        resumed: it ran before, so that what it finds now says nothing about reuse. unshared: what it computes is shared
        with nobody and kept for nobody.
        """
        if match is None:
            match = self.match(scope, packed)
        tokens = len(packed) // TOKEN_BYTES
        if not self.can_admit(scope, match, tokens):
            raise NoSpaceError(f"{tokens} tokens need more blocks than the {self.available} available")
        account = self.ledger.open(scope)
        account.sequences += 1
        donor, source, kind = match.partial, -1, MoveKind.COPY
        if donor is not None:
            kind = MoveKind.COPY if donor.node.blocks else MoveKind.LOAD
            source = (donor.node.blocks or donor.node.host)[donor.logical]
        node = self.tree.settle(match.place)
        # What was matched is pinned before anything is allocated: allocating may evict, and evicting fill the host.
        self.tree.pin(node)
        if not resumed:
            self.tree.count_reuse(node)
        absent = self.tree.absent(node)
        sequence = Sequence(account, node, packed)
        sequence.unshared = unshared
        sequence.shared = self._matched_blocks(match)
        sequence.stored = self.matched_tokens(match)
        if donor and kind is MoveKind.LOAD:
            donor.node.pins += 1
        alone = not self._sequences
        back = self.budget.take(sum(len(each.host) for each in absent), account.holding, alone)
        fresh = self._take(self.blocks_for(tokens) - sequence.shared, account, alone)
        if donor and kind is MoveKind.LOAD:
            donor.node.pins -= 1
            self.host.note(donor.node)
        # The donor may have been evicted just now and its block be among these, even the destination itself: moves run
        # in order and before the step writes, so, first of them, it still finds what was matched.
        if donor and not (kind is MoveKind.COPY and source == fresh[0]):
            self.outbox.add(kind, source, fresh[0])
            self.host.promoted_blocks += kind is MoveKind.LOAD
        sequence.loaded = len(back) + (kind is MoveKind.LOAD)
        for each in absent:
            self.host.promote(each, back[: len(each.host)])
            del back[: len(each.host)]
        if absent:
            # What came back was not the tenant's yet when the others were taken.
            self.budget.trim(account.holding)
        sequence.table = self._path_blocks(node) + fresh
        self._sequences.add(sequence)
        self._lead(sequence)
        return sequence

    def record(self, sequence: Sequence, token: int) -> None:
        """Learn the sequence's next token. Its slot is reserved before it is computed."""
        sequence.packed += token.to_bytes(TOKEN_BYTES, "little")

    def advance(self, sequence: Sequence, following: bytes) -> bool:
        """What nearly every token does, in one call: one more is stored, and the packed `following` is known.

        False, and nothing done, where that is not all there is to it, because a block is full now.
        """
        stored = sequence.stored + 1
        if stored % self.block_size == 0:
            return False
        sequence.stored = stored
        sequence.packed += following
        return True

    def reserve(self, sequence: Sequence) -> TableEdit | None:
        """Take blocks for all known tokens. Raises NoSpaceError, and takes none, when there are too few."""
        missing = -(-len(sequence.packed) // self.tree.block_bytes) - len(sequence.table)
        if missing <= 0:
            return None
        fresh = self._take(missing, sequence.account, self._alone(sequence))
        sequence.table += fresh
        return TableEdit(len(sequence.table) - missing, fresh)

    def mark_stored(self, sequence: Sequence, stored: int) -> TableEdit | None:
        """Say that the first `stored` tokens have their keys and values in place; full blocks enter the tree.

        Returns the change of the sequence's table where the tree had a block already, in place of its own.
        """
        sequence.stored = stored
        full = stored // self.block_size
        if self.prefix_cache is PrefixCache.OFF or sequence.unshared or full <= sequence.shared:
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
        self._lead(sequence)
        if own == held:
            return None
        replaced = sum(1 for mine, tree in zip(own, held, strict=True) if mine != tree)
        self.pool.give(own[:replaced])
        return TableEdit(start, held[:replaced])

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
            child.table += self._take(1, account, alone=False)
            self.outbox.add(MoveKind.COPY, parent.table[parent.shared], child.table[-1])
        self._sequences.add(child)
        self._lead(child)
        return child

    def release(self, sequence: Sequence) -> None:
        """End a sequence: unpin its path, keep its partly filled tail, free the rest."""
        account, tail = sequence.account, self._tail(sequence)
        self.tree.unpin(sequence.node)
        private = self._leave(sequence)
        keep = self.prefix_cache is PrefixCache.KEEP and not sequence.unshared
        if (
            keep
            and 0 < len(tail) < self.tree.block_bytes
            and self.tree.keep_tail(sequence.node, account, tail, private[0])
        ):
            private = private[1:]
        self.pool.give(private)
        self._close(account)

    def park(self, sequence: Sequence) -> Parked | None:
        """End a sequence that is to come back: what only it holds goes to the host, and is held there.

        Its blocks on the device are free then, but for those that something else hangs below or that are retained.
        None, and nothing is changed, if the host has no room, or nothing of it is to be kept. Give the result to
        `unpark` once the sequence has come back, or to `discard`.
        """
        if self.host.num_slots == 0 or sequence.unshared:
            return None
        shared, account = sequence.shared, sequence.account
        tail = self._tail(sequence)
        parked = self.host.park(sequence.node, account, tail, sequence.table[shared] if tail else -1)
        if parked is not None:
            self.pool.give(self._leave(sequence))
            self._close(account)
        return parked

    def unpark(self, parked: Parked) -> None:
        """Let go of what is held for a sequence that has come back; on the host it stays while it finds room."""
        self.host.unpark(parked)
        self._sweep()

    def discard(self, parked: Parked) -> None:
        """Drop what is held for a sequence that is not to come back, but for what others share."""
        self.host.discard(parked)
        self._sweep()

    def take_host(self, count: int, match: Match) -> list[int] | None:
        """Host slots that may be filled at once with blocks from elsewhere that follow a match.

        The match's whole blocks stay where they are. The block that it would copy from may go: what follows begins with
        that block's tokens. Match anew afterwards. None if there is no room; ask for `host_room` first.
        """
        return self.host.lend(count, match.place)

    def give_host(self, slots: list[int]) -> None:
        """Give back slots from `take_host` that were not filled."""
        self.host.give(slots)

    def insert_host(self, scope: Scope, packed: bytes, start_block: int, slots: list[int]) -> int:
        """Enter filled slots from `take_host` as the blocks from `start_block` on of these tokens; says how many.

        The others are given back: the tree has those blocks already, or has not those before them.
        """
        account = self.ledger.open(scope)
        entered = self.host.insert(account, packed, start_block, slots)
        self.ledger.close_if_idle(account)
        return entered

    def settle_moves(self, moves: list[Move], failed: Collection[int] = ()) -> None:
        """Say that the drained moves were performed, but for the stores at these places of the list.

        What a failed store was to keep on the host is forgotten.
        """
        self.host.settle(moves, failed)
        if failed:
            self._sweep()

    def reset(self) -> ResetCounts:
        """Free all kept blocks, on the device and on the host, the retained and pinned ones too."""
        self.retention.clear()
        return ResetCounts(self._drop_kept(), self.usage().in_use + self.host_usage().held)

    def drain_moves(self) -> list[Move]:
        """The block moves of all acts since the last call, which the next step performs in order before it writes."""
        return self.outbox.drain()

    # --- shares and retention ---

    def configure_shares(self, shares: Mapping[str, Share]) -> None:
        """Take these tenants' shares in place of the former ones. Raises SharesError and changes nothing."""
        self.shares.configure(shares)
        self.budget.trim_all()

    def retain(self, sequence: Sequence, tokens: int, end: float) -> int:
        """Keep the sequence's first `tokens`, in whole blocks, from eviction until `end`; says how many tokens.

        0 beyond a cap, or where nothing is kept. Raises ValueError for tokens that are not stored yet.
        """
        blocks = self._retainable(sequence, tokens)
        node = self.tree.ending(sequence.node, sequence.shared, blocks)
        kept = blocks and self.retention.keep(node, sequence.account, end)
        return blocks * self.block_size if kept else 0

    def pin(self, name: str, sequence: Sequence, tokens: int) -> Pin | None:
        """Like `retain`, until `unpin`; None beyond the cap, or where nothing is kept."""
        blocks = self._retainable(sequence, tokens)
        if not blocks:
            return None
        node = self.tree.ending(sequence.node, sequence.shared, blocks)
        return self.retention.pin(name, node, sequence.account.scope, blocks * self.block_size)

    def unpin(self, name: str) -> Pin | None:
        """Let go of a pin; None if there is none of this name."""
        pin = self.retention.unpin(name)
        self.budget.trim_all()
        return pin

    def expire(self, now: float) -> None:
        """Let time pass: what is used from here on is used now, and what was to be retained until now is let go."""
        self.tree.ages.now = now
        if self.retention.expire(now):
            self.budget.trim_all()

    def _retainable(self, sequence: Sequence, tokens: int) -> int:
        """How many whole blocks of the first `tokens` can be retained."""
        if tokens > sequence.stored:
            raise ValueError(f"{tokens} tokens are to be retained, {sequence.stored} are stored")
        return min(tokens // self.block_size, sequence.shared) if self.prefix_cache is PrefixCache.KEEP else 0

    # --- inside ---

    def _path_blocks(self, node: Node) -> list[int]:
        runs = []
        while node.parent is not None:
            runs.append(node.blocks)
            node = node.parent
        return [block for run in reversed(runs) for block in run]

    def _tail(self, sequence: Sequence) -> bytes:
        """The stored tokens that are not in the tree."""
        return bytes(sequence.packed[sequence.shared * self.tree.block_bytes : sequence.stored * TOKEN_BYTES])

    def _leave(self, sequence: Sequence) -> list[int]:
        """Take a sequence off the books; its own blocks, to be freed."""
        self._unlead(sequence)
        self._sequences.remove(sequence)
        private = sequence.table[sequence.shared :]
        self.num_private -= len(private)
        sequence.account.private -= len(private)
        return private

    def _close(self, account: Account) -> None:
        """After a sequence of the account has left. Not before, so that the account stays open until then."""
        self._sweep()
        self.budget.trim(account.holding)
        account.sequences -= 1
        self.ledger.close_if_idle(account)

    def _sweep(self) -> None:
        """In live mode, drop what no sequence wants any more."""
        if self.prefix_cache is PrefixCache.LIVE:
            self._drop_kept()

    def _drop_kept(self) -> int:
        freed = self.host.clear() + self.tree.evict(self.tree.num_kept, demote=False)
        # What is held for a parked sequence went to the host just now; where it found no room there, the rest is free.
        return freed + self.host.clear()

    def _take(self, count: int, account: Account, alone: bool) -> list[int]:
        """Take blocks that are one sequence's own."""
        taken = self.budget.take(count, account.holding, alone)
        self.num_private += count
        account.private += count
        return taken

    def _lead(self, sequence: Sequence) -> None:
        """Enter the sequence as the one that computes its next block, if that block is known and nobody does yet."""
        block_bytes = self.tree.block_bytes
        start = sequence.shared * block_bytes
        end = start + block_bytes
        if end > len(sequence.packed) or self.prefix_cache is PrefixCache.OFF or sequence.unshared:
            return
        following = bytes(sequence.packed[start:end])
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
