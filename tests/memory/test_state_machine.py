"""The memory manager, driven at random beside a dumb model that holds one dictionary entry a block.

After every rule the blocks in the tree are exactly those of the model, so matching, deduplication, tails and the order
of eviction are right to the block; and a simulated slot store shows that each running sequence finds, at every position
of its table, the history of exactly its own tokens, written by its own scope or by the public one. The same holds of
every slot on the host once its store is settled; stores fail at random.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from dumb_cache import DumbCache, Path, Running, flat, path_of, path_to, paths_in
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
from pageinn.memory.host import Parked
from pageinn.memory.manager import MemoryManager
from pageinn.memory.moves import MoveKind
from pageinn.memory.node import ChildKey, Node
from pageinn.memory.pool import NoSpaceError
from pageinn.memory.questions import Lack, PrefixCache
from pageinn.memory.scopes import DEFAULT, PUBLIC, Scope
from pageinn.memory.sequence import LeaderKey, Sequence, TableEdit
from pageinn.memory.tokens import pack, unpack

#: What a slot holds: who wrote it, and the tokens up to its own.
Slots = dict[int, tuple[Scope, tuple[int, ...]]]
SCOPES = [DEFAULT, Scope("default", "salt"), Scope("other"), PUBLIC]
SETTINGS = settings(max_examples=70, stateful_step_count=50, deadline=None)


def path_bytes(node: Node) -> bytes:
    """The tokens from the root to a node's end."""
    return b"" if node.parent is None else path_bytes(node.parent) + node.tokens


class MemoryMachine(RuleBasedStateMachine):
    """`live` pairs each running sequence of the manager with the model's and with a table kept by its edits alone.

    Moves are performed after each rule, or, when the machine is lazy, only before something is computed and by a rule
    of their own: until then, what is being stored is not matched.
    """

    @initialize(
        num_blocks=st.sampled_from([3, 8, 20, 400]),
        block_size=st.sampled_from([2, 1, 3, 4, 16]),
        mode=st.sampled_from([PrefixCache.KEEP, PrefixCache.KEEP, PrefixCache.LIVE, PrefixCache.OFF]),
    )
    def start(self, num_blocks: int, block_size: int, mode: PrefixCache) -> None:
        self.begin(num_blocks, block_size, mode)

    def begin(
        self, num_blocks: int, block_size: int, mode: PrefixCache, host_blocks: int = 0, lazy: bool = False
    ) -> None:
        self.manager = MemoryManager(num_blocks, block_size, mode, EvictionPolicy.LRU, host_blocks)
        self.model = DumbCache(num_blocks, block_size, mode, host_blocks)
        self.lazy = lazy
        self.live: list[tuple[Sequence, Running, list[int]]] = []
        self.parked: list[tuple[Parked, Path]] = []
        self.slots: Slots = {}
        self.host_slots: Slots = {}
        self.seen: list[list[int]] = [[]]

    # --- rules ---

    @rule(scope=st.sampled_from(SCOPES), data=st.data())
    def admit(self, scope: Scope, data: st.DataObject) -> None:
        tokens = self._prompt(data)
        packed = pack(tokens)
        match = self.manager.match(scope, packed)
        ends, reach = self.model.match(scope, tokens)
        path, matched = path_of(self.manager, match.place), self.manager.matched_tokens(match)
        if self._in_flight():
            assert matched <= reach
            assert flat(path) == tuple(tokens[: len(flat(path))])
        else:
            assert path in ends
            assert matched == reach
            assert not self.manager.in_flight(match, scope, packed)
        leader = self.manager.leader(match, scope, packed)
        if leader is not None:
            self._check_leader(leader, scope, tokens)
        assert self.manager.can_admit(scope, match, len(tokens)) == self.model.fits(path, len(tokens))
        exclusive = self.manager.exclusive_if(scope, match, len(tokens), reserve=0)
        if not self.model.fits(path, len(tokens)):
            assert exclusive is Lack.BLOCKS
            with pytest.raises(NoSpaceError):
                self.manager.admit(scope, packed)
            return
        sequence = self.manager.admit(scope, packed)
        assert exclusive == self.manager.exclusive(sequence)
        assert path == path_to(self.manager, sequence.node)
        assert sequence.stored == matched
        assert sequence.loaded >= self.model.absent(path)
        one = self.model.admit(scope, tokens, path, matched)
        self.live.append((sequence, one, list(sequence.table)))
        self._after(ordered=not sequence.loaded)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        sequence, one, table = data.draw(st.sampled_from(self.live))
        self._move()
        most = min(len(one.tokens), len(table) * self.model.block_size)
        upto = data.draw(st.just(most) | st.integers(one.stored, most))
        for position in range(one.stored, upto):
            self.slots[self._slot(table, position)] = (one.scope, tuple(one.tokens[: position + 1]))
        self._edit(table, self.manager.mark_stored(sequence, upto))
        self.model.store(one, upto, path_to(self.manager, sequence.node))
        self._after()

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.integers(1, 2))
    def generate(self, data: st.DataObject, token: int) -> None:
        sequence, one, table = data.draw(st.sampled_from(self.live))
        self.manager.record(sequence, token)
        one.tokens.append(token)
        missing = self.model.blocks_for(len(one.tokens)) - len(table)
        possible = missing <= self.model.free + len(self.model.kept())
        if not possible:
            with pytest.raises(NoSpaceError):
                self.manager.reserve(sequence)
            return
        self._edit(table, self.manager.reserve(sequence))
        self.model.take(one, max(missing, 0))
        self._after()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent, one, _ = data.draw(st.sampled_from(self.live))
        if not self.manager.can_fork(parent):
            with pytest.raises(NoSpaceError):
                self.manager.fork(parent)
            return
        child = self.manager.fork(parent)
        self.live.append((child, self.model.fork(one), list(child.table)))
        copied = sum(move.kind is MoveKind.COPY for move in self.manager.outbox._moves)
        assert self.lazy or copied == int(one.stored % self.model.block_size > 0)
        self._after()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        sequence, one, _ = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.manager.release(sequence)
        self.model.release(one)
        self.seen.append(one.tokens)
        self._after()

    @rule()
    def reset(self) -> None:
        kept = len(self.model.kept())
        self.model.evict(kept)
        counts = self.manager.reset()
        assert counts.freed >= kept
        assert counts.in_use == self.model.num_blocks - self.model.free + self.manager.host_usage().held
        self._after(dropping=True)
        assert self.model.host <= self.model.held(), "something is kept"

    # --- after every rule ---

    @invariant()
    def books_agree(self) -> None:
        """Field case A8: free + kept + in use = total, whatever was done, and per scope too."""
        if not hasattr(self, "manager"):
            return
        self.manager.check()
        kept, pinned = self.model.kept(), self.model.pinned()
        nodes = self.manager.tree.nodes()
        assert paths_in(self.manager, nodes) == set(self.model.stamps)
        assert paths_in(self.manager, [node for node in nodes if node.blocks]) == self.model.device
        assert paths_in(self.manager, [node for node in nodes if node.host]) == self.model.host
        host = self.manager.host_usage()
        assert host.free + len(self.model.host) == host.total == self.model.host_blocks
        assert host.held == len(self.model.host & self.model.held())
        in_use = self.model.num_blocks - self.model.free - len(kept)
        assert self.manager.usage() == (self.model.free, len(kept), in_use)
        for scope in SCOPES:
            usage = self.manager.usage_of(scope)
            private = sum(one.private for one in self.model.running if one.scope == scope)
            assert usage.kept == sum(path[-1][0] == scope for path in kept)
            assert usage.in_use == private + sum(path[-1][0] == scope for path in pinned)

    @invariant()
    def the_view_agrees(self) -> None:
        """Each block that is not free is seen once, with its owner, and parents are seen before their children."""
        if not hasattr(self, "manager"):
            return
        view, usage = self.manager.view(), self.manager.usage()
        tree = view.tree
        seen = [*tree.blocks, *(block for own in view.private for block in own.blocks)]
        assert set(seen) | self.manager.pool.free_blocks() == set(range(usage.total))
        assert len(seen) == usage.total - usage.free
        assert sum(size for size, pins in zip(tree.sizes, tree.pins, strict=True) if not pins) == usage.kept
        assert all(parent < place for place, parent in enumerate(tree.parents))
        paths: list[bytes] = []
        for parent, tokens in zip(tree.parents, tree.tokens, strict=True):
            paths.append((paths[parent] if parent >= 0 else b"") + tokens)
        assert sorted(paths) == sorted(map(path_bytes, self.manager.tree.nodes()))

    @invariant()
    def contents_are_right(self) -> None:
        """Field cases A5 and A6: whatever others did, no slot of a running sequence has changed."""
        if not hasattr(self, "manager"):
            return
        for sequence, one, table in self.live:
            assert sequence.table == table
            assert sequence.stored == one.stored
        if self.manager.outbox._moves:
            return
        for _, one, table in self.live:
            for position in range(one.stored):
                writer, history = self.slots[self._slot(table, position)]
                assert history == tuple(one.tokens[: position + 1])
                assert writer in (one.scope, PUBLIC), "one private scope reads what another has written"
        for node in self.manager.tree.nodes():
            tokens = flat(path_to(self.manager, node))
            start = len(tokens) - len(unpack(node.tokens))
            for position in range(start, len(tokens)):
                for slots, where in ((self.slots, node.blocks), (self.host_slots, node.host)):
                    if where:
                        assert slots[self._slot(where, position - start)][1] == tokens[: position + 1]

    def teardown(self) -> None:
        if not hasattr(self, "manager"):
            return
        for sequence, _, _ in self.live:
            self.manager.release(sequence)
        for parked, _ in self.parked:
            self.manager.discard(parked)
        self.manager.check()
        assert self.manager.usage().in_use == 0
        assert self.manager.host_usage().held == 0
        self.manager.reset()
        self.manager.check()
        assert self.manager.usage().free == self.manager.pool.num_blocks
        assert self.manager.host_usage().free == self.model.host_blocks

    # --- helpers ---

    def _prompt(self, data: st.DataObject) -> list[int]:
        """A former prompt or its beginning, perhaps continued."""
        old = data.draw(st.sampled_from(self.seen))
        tokens = old[: data.draw(st.just(len(old)) | st.integers(0, len(old)))]
        most = 3 * self.model.block_size
        tokens = tokens + data.draw(st.lists(st.integers(1, 2), min_size=not tokens, max_size=most))
        self.seen.append(tokens)
        return tokens

    def _slot(self, table: list[int], position: int) -> int:
        size = self.model.block_size
        return table[position // size] * size + position % size

    def _after(
        self, ordered: bool = True, dropping: bool = False, stores: int = 0, stay: set[Path] = frozenset()
    ) -> set[Path]:
        """Compare what an act did to the host; what is gone from everywhere.

        ordered: whether the order of dropping is to be seen. dropping: whether the act drops things without need. stay:
        what it may not drop, however old.
        """
        stores += sum(move.kind is MoveKind.STORE for move in self.manager.outbox._moves)
        host = paths_in(self.manager, [node for node in self.manager.tree.nodes() if node.host])
        held = [path for parked, path in self.parked if parked.node is not None]
        leaves, stamps, copies = self.model.host_leaves(), dict(self.model.stamps), self.model.host - self.model.device
        gone = self.model.take_over(host, held, stores, dropping)
        if ordered and not dropping and self.model.mode is PrefixCache.KEEP:
            newest = max((stamps[path] for path in gone), default=-1)
            assert all(stamps[path] >= newest for path in (leaves & copies & host & self.model.host_leaves()) - stay)
            assert not gone & stay
        if not self.lazy:
            self._move()
        return gone

    def _in_flight(self) -> bool:
        return any(move.kind is MoveKind.STORE for move in self.manager.outbox._moves)

    def _move(self, failed: set[int] = frozenset()) -> None:
        """Perform the moves in order, but for those stores, which leave garbage."""
        moves = self.manager.drain_moves()
        for index, (kind, source, destination) in enumerate(moves):
            origin = self.host_slots if kind is MoveKind.LOAD else self.slots
            target = self.host_slots if kind is MoveKind.STORE else self.slots
            self._copy(origin if index not in failed else {}, source, target, destination)
        self.manager.settle_moves(moves, failed)
        if failed:
            self._take_failures()

    def _take_failures(self) -> None:
        host = paths_in(self.manager, [node for node in self.manager.tree.nodes() if node.host])
        assert host <= self.model.host
        self.model.take_over(host, [path for parked, path in self.parked if parked.node is not None], 0, True)

    def _copy(self, origin: Slots, source: int, target: Slots, destination: int) -> None:
        size = self.model.block_size
        block = [origin.get(source * size + offset) for offset in range(size)]
        for offset, content in enumerate(block):
            target.pop(destination * size + offset, None)
            if content is not None:
                target[destination * size + offset] = content

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


class HostMachine(MemoryMachine):
    """The same over a small pool and a host pool."""

    @initialize(
        num_blocks=st.sampled_from([4, 8, 14]),
        block_size=st.sampled_from([2, 1, 4]),
        mode=st.sampled_from([PrefixCache.KEEP, PrefixCache.KEEP, PrefixCache.KEEP, PrefixCache.LIVE]),
        host_blocks=st.sampled_from([2, 7, 30, 400]),
        lazy=st.booleans(),
    )
    def start(self, num_blocks: int, block_size: int, mode: PrefixCache, host_blocks: int, lazy: bool) -> None:
        self.begin(num_blocks, block_size, mode, host_blocks, lazy)

    @rule(count=st.integers(1, 4))
    def squeeze(self, count: int) -> None:
        """What a newcomer does that takes so many blocks."""
        count = min(count, len(self.model.kept()))
        self.model.evict(count)
        assert self.manager.tree.evict(count) == count
        self._after()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        """Field case D5, to the block: what only this one holds is free at once, and held on the host."""
        place = data.draw(st.integers(0, len(self.live) - 1))
        sequence, one, _ = self.live[place]
        exclusive, free = self.manager.exclusive(sequence), self.manager.host_usage().free
        before = self.model.free + len(self.model.kept())
        parked = self.manager.park(sequence)
        if parked is None:
            assert self.model.host_blocks == 0 or not one.stored or free < exclusive
            return
        self.live.pop(place)
        self.seen.append(one.tokens)
        self.parked.append((parked, self.model.park(one)))
        self._after()
        assert self.model.free + len(self.model.kept()) == before + exclusive

    @precondition(lambda self: self.parked)
    @rule(data=st.data(), back=st.booleans())
    def unpark(self, data: st.DataObject, back: bool) -> None:
        parked, path = self.parked.pop(data.draw(st.integers(0, len(self.parked) - 1)))
        was_held = parked.node is not None
        if back:
            self.manager.unpark(parked)
        else:
            self.manager.discard(parked)
        self.model.parked = [held for one, held in self.parked if one.node is not None]
        gone = self._after(dropping=not back)
        assert self.model.mode is PrefixCache.LIVE or all(path[: len(each)] == each for each in gone)
        if was_held and not back:
            assert path not in self.model.host_leaves(), "a block that is wanted no more is still there"

    @precondition(lambda self: self.model.mode is PrefixCache.KEEP and self.model.host_blocks)
    @rule(scope=st.sampled_from(SCOPES), data=st.data(), wanted=st.integers(1, 5))
    def insert(self, scope: Scope, data: st.DataObject, wanted: int) -> None:
        """Blocks that come from elsewhere, some time after their slots were taken; what they follow stays for them."""
        tokens = self._prompt(data)
        before = self.manager.match(scope, pack(tokens))
        path = path_of(self.manager, before.place)
        stay = {path[:end] for end in range(1, len(path) + 1)} - self.model.device
        room = self.manager.host_room(before)
        assert room == self.model.host_blocks - len(stay | (self.model.host & self.model.held()))
        busy = bool(self.manager.outbox._moves)
        slots = self.manager.take_host(wanted, before)
        assert wanted <= room if slots else busy or wanted > room
        assert self.manager.match(scope, pack(tokens)).place.offset == before.place.offset
        self._after(stores=wanted, stay=stay)
        if slots is None:
            return
        size, start = self.model.block_size, data.draw(st.integers(0, 3))
        count = min(len(slots), max(len(tokens) // size - start, 0))
        for number, slot in enumerate(slots[:count], start):
            for position in range(number * size, (number + 1) * size):
                self.host_slots[slot * size + position % size] = (scope, tuple(tokens[: position + 1]))
        self._move()
        self.manager.give_host(slots[count:])
        entered = self.manager.insert_host(scope, pack(tokens), start, slots[:count])
        fresh = paths_in(self.manager, self.manager.tree.nodes()) - set(self.model.stamps)
        assert len(fresh) == entered
        assert all(path[-1][0] == scope and flat(path) == tuple(tokens[: len(flat(path))]) for path in fresh)
        if entered:
            self.model.insert(max(fresh, key=len))
        self._after(stores=entered)

    @precondition(lambda self: self.lazy)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Perform the moves, some of which may fail."""
        stores = [at for at, move in enumerate(self.manager.outbox._moves) if move.kind is MoveKind.STORE]
        failed = data.draw(st.lists(st.sampled_from(stores), max_size=3)) if stores else []
        self._move(set(failed))


for machine in (MemoryMachine, HostMachine):
    machine.TestCase.settings = SETTINGS
TestMemoryMachine = MemoryMachine.TestCase
TestHostMachine = HostMachine.TestCase


def test_constant_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case C1: with every key's hash a constant, tokens are still compared, and nothing wrong is served."""
    for key in (ChildKey, LeaderKey, Scope):
        monkeypatch.setattr(key, "__hash__", lambda self: 0)
    run_state_machine_as_test(MemoryMachine, settings=settings(SETTINGS, max_examples=20))
