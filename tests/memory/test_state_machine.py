"""The memory manager, driven at random beside a dumb model that holds one dictionary entry a block.

After every rule the blocks in the tree are exactly those of the model, so matching, deduplication, tails and the order
of eviction are right to the block; and a simulated slot store shows that each running sequence finds, at every position
of its table, the history of exactly its own tokens, written by its own scope or by the public one.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from dumb_cache import DumbCache, Running, path_to, paths_in
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pageinn.memory.eviction import EvictionPolicy
from pageinn.memory.manager import LeaderKey, MemoryManager, PrefixCache, Sequence, TableEdit
from pageinn.memory.node import ChildKey
from pageinn.memory.pool import NoSpaceError
from pageinn.memory.scopes import DEFAULT, PUBLIC, Scope
from pageinn.memory.tokens import pack

SCOPES = [DEFAULT, Scope("default", "salt"), Scope("other"), PUBLIC]
SETTINGS = settings(max_examples=70, stateful_step_count=50, deadline=None)


class MemoryMachine(RuleBasedStateMachine):
    """`live` pairs each running sequence of the manager with the model's and with a table kept by its edits alone."""

    @initialize(
        num_blocks=st.sampled_from([3, 8, 20, 400]),
        block_size=st.sampled_from([2, 1, 3, 4, 16]),
        mode=st.sampled_from([PrefixCache.KEEP, PrefixCache.KEEP, PrefixCache.LIVE, PrefixCache.OFF]),
    )
    def start(self, num_blocks: int, block_size: int, mode: PrefixCache) -> None:
        self.manager = MemoryManager(num_blocks, block_size, mode, EvictionPolicy.LRU)
        self.model = DumbCache(num_blocks, block_size, mode)
        self.live: list[tuple[Sequence, Running, list[int]]] = []
        self.slots: dict[int, tuple[Scope, tuple[int, ...]]] = {}
        self.seen: list[list[int]] = [[]]

    # --- rules ---

    @rule(scope=st.sampled_from(SCOPES), data=st.data())
    def admit(self, scope: Scope, data: st.DataObject) -> None:
        old = data.draw(st.sampled_from(self.seen))
        tokens = old[: data.draw(st.just(len(old)) | st.integers(0, len(old)))]
        most = 3 * self.model.block_size
        tokens = tokens + data.draw(st.lists(st.integers(1, 2), min_size=not tokens, max_size=most))
        self.seen.append(tokens)
        packed = pack(tokens)
        match = self.manager.match(scope, packed)
        ends, reach = self.model.match(scope, tokens)
        assert self.manager.matched_tokens(match) == reach
        leader = self.manager.leader(match, scope, packed)
        if leader is not None:
            self._check_leader(leader, scope, tokens)
        assert self.manager.can_admit(match, len(tokens)) == self.model.fits(ends[0], len(tokens))
        if not self.model.fits(ends[0], len(tokens)):
            with pytest.raises(NoSpaceError):
                self.manager.admit(scope, packed)
            return
        sequence = self.manager.admit(scope, packed)
        path = path_to(self.manager, sequence.node)
        assert path in ends
        assert sequence.stored == reach
        self._move()
        self.live.append((sequence, self.model.admit(scope, tokens, path, reach), list(sequence.table)))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        sequence, one, table = data.draw(st.sampled_from(self.live))
        most = min(len(one.tokens), len(table) * self.model.block_size)
        upto = data.draw(st.just(most) | st.integers(one.stored, most))
        for position in range(one.stored, upto):
            self.slots[self._slot(table, position)] = (one.scope, tuple(one.tokens[: position + 1]))
        self._edit(table, self.manager.mark_stored(sequence, upto))
        self.model.store(one, upto, path_to(self.manager, sequence.node))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.integers(1, 2))
    def generate(self, data: st.DataObject, token: int) -> None:
        sequence, one, table = data.draw(st.sampled_from(self.live))
        self.manager.record(sequence, token)
        one.tokens.append(token)
        missing = self.model.blocks_for(len(one.tokens)) - len(table)
        possible = missing <= self.model.free + len(self.model.kept())
        assert self.manager.can_reserve(sequence) == possible
        if not possible:
            with pytest.raises(NoSpaceError):
                self.manager.reserve(sequence)
            return
        self._edit(table, self.manager.reserve(sequence))
        self.model.take(one, max(missing, 0))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent, one, _ = data.draw(st.sampled_from(self.live))
        if not self.manager.can_fork(parent):
            with pytest.raises(NoSpaceError):
                self.manager.fork(parent)
            return
        child = self.manager.fork(parent)
        assert self._move() == int(one.stored % self.model.block_size > 0)
        self.live.append((child, self.model.fork(one), list(child.table)))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        sequence, one, _ = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.manager.release(sequence)
        self.model.release(one)
        self.seen.append(one.tokens)

    @rule()
    def reset(self) -> None:
        kept = len(self.model.kept())
        self.model.evict(kept)
        counts = self.manager.reset()
        assert counts == (kept, self.model.num_blocks - self.model.free)

    # --- after every rule ---

    @invariant()
    def books_agree(self) -> None:
        """Field case A8: free + kept + in use = total, whatever was done, and per scope too."""
        if not hasattr(self, "manager"):
            return
        self.manager.check()
        kept, pinned = self.model.kept(), self.model.pinned()
        assert paths_in(self.manager) == set(self.model.stamps)
        in_use = self.model.num_blocks - self.model.free - len(kept)
        assert self.manager.usage() == (self.model.free, len(kept), in_use)
        for scope in SCOPES:
            usage = self.manager.usage_of(scope)
            private = sum(one.private for one in self.model.running if one.scope == scope)
            assert usage.kept == sum(path[-1][0] == scope for path in kept)
            assert usage.in_use == private + sum(path[-1][0] == scope for path in pinned)

    @invariant()
    def contents_are_right(self) -> None:
        """Field cases A5 and A6: whatever others did, no slot of a running sequence has changed."""
        if not hasattr(self, "manager"):
            return
        for sequence, one, table in self.live:
            assert sequence.table == table
            assert sequence.stored == one.stored
            for position in range(one.stored):
                writer, history = self.slots[self._slot(table, position)]
                assert history == tuple(one.tokens[: position + 1])
                assert writer in (one.scope, PUBLIC), "one private scope reads what another has written"

    def teardown(self) -> None:
        if not hasattr(self, "manager"):
            return
        for sequence, _, _ in self.live:
            self.manager.release(sequence)
        self.manager.check()
        assert self.manager.usage().in_use == 0
        self.manager.reset()
        self.manager.check()
        assert self.manager.usage().free == self.manager.pool.num_blocks

    # --- helpers ---

    def _slot(self, table: list[int], position: int) -> int:
        size = self.model.block_size
        return table[position // size] * size + position % size

    def _move(self) -> int:
        """Perform the moves in order; how many there were."""
        size, moves = self.model.block_size, self.manager.drain_moves()
        for _, source, destination in moves:
            for offset in range(size):
                content = self.slots.get(source * size + offset)
                if content is not None:
                    self.slots[destination * size + offset] = content
        return len(moves)

    def _edit(self, table: list[int], edit: TableEdit | None) -> None:
        if edit is not None:
            table[edit.start : edit.start + len(edit.blocks)] = edit.blocks

    def _check_leader(self, leader: Sequence, scope: Scope, tokens: list[int]) -> None:
        one = next(one for sequence, one, _ in self.live if sequence is leader)
        size = self.model.block_size
        upto = (one.stored // size + 1) * size
        assert one.scope == scope
        assert one.tokens[:upto] == tokens[:upto], "a leader computes something else"
        assert len(tokens) >= upto


MemoryMachine.TestCase.settings = SETTINGS
TestMemoryMachine = MemoryMachine.TestCase


def test_constant_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case C1: with every key's hash a constant, tokens are still compared, and nothing wrong is served."""
    for key in (ChildKey, LeaderKey, Scope):
        monkeypatch.setattr(key, "__hash__", lambda self: 0)
    run_state_machine_as_test(MemoryMachine, settings=settings(SETTINGS, max_examples=20))
