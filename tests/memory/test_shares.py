"""Tenants' shares of the pool: who loses blocks to whom, and who cannot."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from test_blocks import reach, start, store

from pageinn.memory.eviction import EvictionPolicy
from pageinn.memory.host import Parked
from pageinn.memory.manager import MemoryManager
from pageinn.memory.pool import NoSpaceError
from pageinn.memory.scopes import DEFAULT, PUBLIC, Scope
from pageinn.memory.sequence import Sequence
from pageinn.memory.shares import OTHER_LABEL, PUBLIC_LABEL, Share, SharesError
from pageinn.memory.tokens import pack

A, B, C = Scope("a"), Scope("b"), Scope("c")
BOTH = list(EvictionPolicy)


def shared_pool(blocks: int, policy: EvictionPolicy = EvictionPolicy.LRU, **shares: Share) -> MemoryManager:
    manager = MemoryManager(blocks, 4, eviction_policy=policy)
    manager.configure_shares(shares)
    return manager


def prompt(number: int, blocks: int) -> list[int]:
    return [number * 1000 + place for place in range(4 * blocks)]


@pytest.mark.parametrize("policy", BOTH)
@pytest.mark.parametrize(("share", "kept"), [(Share(), 0), (Share(0.2), 20), (Share(0.4), 30)])
def test_a_flood_takes_nothing_below_a_minimum(policy: EvictionPolicy, share: Share, kept: int) -> None:
    """A keeps 30 of 100 blocks, B sends 300 unique prompts: A still finds its minimum, or all if that is more."""
    manager = shared_pool(100, policy, a=share)
    for number in range(3):
        store(manager, prompt(number, 10), A)
    for number in range(300):
        store(manager, prompt(1000 + number, 2), B)
    assert sum(reach(manager, prompt(number, 10), A) for number in range(3)) == 4 * kept
    assert manager.usage_of(A).kept == kept


def test_a_host_slot_that_a_store_is_on_its_way_to_is_not_lent() -> None:
    """A tenant above its maximum lets go at a step's end; whoever fills lent slots does so before that store runs."""
    manager = MemoryManager(20, 4, host_blocks=2)
    manager.configure_shares({"a": Share(maximum=0.1)})
    store(manager, prompt(1, 2), A)
    sequence = manager.admit(A, pack(prompt(2, 1)))
    assert len(manager.outbox._moves) == 1, "one block of two goes to the host"
    assert manager.take_host(2, manager.unmatched()) is None
    manager.settle_moves(manager.drain_moves())
    slots = manager.take_host(2, manager.unmatched())
    assert slots is not None
    manager.give_host(slots)
    manager.release(sequence)
    manager.check()


def test_what_a_match_ends_inside_of_makes_room_beyond_it() -> None:
    """A's ten blocks are one node of the host's, of which B begins with the first: nine may go, and that one stays."""
    manager = MemoryManager(12, 4, host_blocks=10)
    store(manager, prompt(1, 10), A)
    store(manager, prompt(2, 12), B)
    manager.settle_moves(manager.drain_moves())
    hosted = [node for node in manager.tree.nodes() if node.host]
    assert [node.size for node in hosted] == [10]
    assert hosted[0].blocks == []
    begins = pack(prompt(1, 1) + prompt(3, 8))
    match = manager.match(A, begins)
    assert manager.host_room(match) == 9
    assert manager.take_host(10, match) is None
    slots = manager.take_host(8, match)
    assert slots is not None
    assert reach(manager, prompt(1, 10), A) == 8, "of the rest, the end went"
    manager.check()
    assert manager.insert_host(A, begins, 1, slots) == 8
    assert reach(manager, prompt(1, 1) + prompt(3, 8), A) == 36
    manager.check()


def test_a_block_to_copy_from_makes_room_for_what_follows_a_match() -> None:
    """The match ends two tokens into the node's second block: all but the first may go, that one too."""
    manager = MemoryManager(12, 4, host_blocks=10)
    store(manager, prompt(1, 10), A)
    store(manager, prompt(2, 12), B)
    manager.settle_moves(manager.drain_moves())
    match = manager.match(A, pack(prompt(1, 10)[:6] + prompt(3, 8)))
    assert manager.matched_tokens(match) == 6
    slots = manager.take_host(9, match)
    assert slots is not None
    assert reach(manager, prompt(1, 10), A) == 4
    manager.give_host(slots)
    manager.check()


def test_a_flood_cannot_lower_a_hit_rate_below_its_share() -> None:
    """A repeats prompts of 24 blocks, B floods in between with unique ones of 50 blocks in a pool of 100.

    Alone A hits 24 of 24 blocks; under the flood none without a share, 24 with a minimum of a quarter, 20 with a fifth.
    """

    def hits(share: Share) -> int:
        manager = shared_pool(100, a=share)
        for turn in range(10):
            found = reach(manager, prompt(1, 24), A) // 4
            store(manager, prompt(1, 24), A)
            for flood in range(3):
                store(manager, prompt(100 + 10 * turn + flood, 50), B)
        return found

    assert [hits(Share(minimum)) for minimum in (0.0, 0.2, 0.25)] == [0, 20, 24]


def test_a_minimum_is_not_set_aside_while_its_tenant_is_away() -> None:
    """Nothing is idle: B uses the whole pool until A comes back, and keeps what A does not need."""
    manager = shared_pool(10, a=Share(0.5))
    store(manager, prompt(1, 10), B)
    assert manager.usage_of(B).kept == 10
    store(manager, prompt(2, 4), A)
    assert (manager.usage_of(A).kept, manager.usage_of(B).kept) == (4, 6)
    store(manager, prompt(3, 6), B)
    assert (manager.usage_of(A).kept, manager.usage_of(B).kept) == (4, 6)


def test_running_requests_do_not_get_what_a_minimum_keeps() -> None:
    """B runs, and asks for more than is free or above a minimum: it has to wait, unless nothing else runs."""
    manager = shared_pool(10, a=Share(0.5))
    store(manager, prompt(1, 5), A)
    running = start(manager, prompt(2, 3), B)
    wanted = pack(prompt(3, 3))
    assert not manager.can_admit(B, manager.match(B, wanted), 12)
    with pytest.raises(NoSpaceError):
        manager.admit(B, wanted)
    assert manager.can_admit(A, manager.match(A, wanted), 12), "its own tenant may"
    for _ in range(9):
        manager.record(running, 7)
    assert manager.reserve(running), "the last one that runs is not stopped by what is only kept"
    manager.release(running)
    manager.check()
    whole = pack(prompt(4, 10))
    manager.release(manager.admit(B, whole))
    assert manager.usage_of(A).kept == 0, "a request that could not run otherwise gets it"


def test_a_maximum_bounds_what_is_kept_and_used_together() -> None:
    manager = shared_pool(20, a=Share(0.0, 0.5))
    for number in range(10):
        store(manager, prompt(number, 3), A)
        assert manager.usage_of(A).kept <= 10
    assert manager.usage().free >= 10, "its own blocks gave way although others were free"
    store(manager, prompt(50, 10), B)
    assert (manager.usage_of(A).kept, manager.usage_of(B).kept) == (10, 10)
    first = start(manager, prompt(60, 6), A)
    wanted = pack(prompt(61, 5))
    assert not manager.can_admit(A, manager.match(A, wanted), 20), "6 + 5 in use are more than 10"
    assert manager.can_admit(B, manager.match(B, wanted), 20)
    assert manager.can_admit(A, manager.match(A, wanted[:64]), 16)
    manager.release(first)
    assert manager.can_admit(A, manager.match(A, wanted), 20)


def test_what_comes_back_from_the_host_counts_towards_the_maximum() -> None:
    """A may have 5 blocks and keeps 3, and 2 more on the host: with these, 2 fresh ones leave room for 1 of the 3."""
    manager = MemoryManager(10, 4, host_blocks=20)
    manager.configure_shares({"a": Share(maximum=0.5)})
    store(manager, prompt(1, 2), A)
    store(manager, prompt(2, 10), B)
    manager.settle_moves(manager.drain_moves())
    store(manager, prompt(3, 3), A)
    manager.settle_moves(manager.drain_moves())
    assert manager.usage_of(A).kept == 3
    sequence = manager.admit(A, pack(prompt(1, 2) + prompt(4, 2)))
    assert sequence.loaded == 2
    assert (manager.usage_of(A).in_use, manager.usage_of(A).kept) == (4, 1)
    manager.check()


def test_salts_belong_to_their_tenant_and_what_is_public_to_nobody() -> None:
    """A tenant's salted scopes share one maximum; reading what is public is charged to the public."""
    manager = shared_pool(20, a=Share(0.0, 0.25))
    store(manager, prompt(1, 8), PUBLIC)
    for number in range(6):
        store(manager, prompt(1, 8) + prompt(10 + number, 2), Scope("a", f"salt {number}"))
    assert sum(holding.usage for holding in manager.shares.all() if holding.tenant == "a") == 5
    assert manager.usage_of(PUBLIC).kept == 8


def test_public_blocks_above_a_guaranteed_leaf_do_not_count_as_available() -> None:
    """Evicting them would take A's below them first."""
    manager = shared_pool(10, a=Share(0.5))
    store(manager, prompt(1, 4), PUBLIC)
    store(manager, prompt(1, 4) + prompt(2, 3), A)
    running = start(manager, prompt(3, 1), B)
    assert manager.available == 9
    assert manager.budget.available_to("b") == 2
    assert manager.budget.available_to("a") == 2 + 3, "what of the public only A shelters counts for nobody"
    assert [manager.budget.has("b", count) for count in (2, 3, 7)] == [True, False, False]
    assert [manager.budget.has("a", count) for count in (1, 5, 6)] == [True, True, False]
    manager.release(running)


def test_lower_shares_take_effect_at_once() -> None:
    manager = shared_pool(20, a=Share(0.0, 1.0))
    store(manager, prompt(1, 16), A)
    manager.configure_shares({"a": Share(0.0, 0.2)})
    manager.check()
    assert manager.usage_of(A).kept == 4
    assert reach(manager, prompt(1, 16), A) == 16, "its head is left"
    manager.configure_shares({})
    store(manager, prompt(2, 15), A)
    manager.check()
    assert manager.usage_of(A).kept == 19


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"a": Share(0.6), "b": Share(0.5)}, "add up to 1.1"),
        ({"a": Share(0.6, 0.5)}, "'a' has min_share 0.6 and max_share 0.5"),
        ({"a": Share(-0.1)}, "between 0 and 1"),
        ({"a": Share(0.0, 1.5)}, "between 0 and 1"),
        ({"a": Share(0.0, 0.0)}, "above 0"),
        ({"a": Share(float("nan"))}, "between 0 and 1"),
    ],
)
def test_shares_that_contradict_each_other_are_refused(shares: dict[str, Share], words: str) -> None:
    manager = shared_pool(10, c=Share(0.5))
    with pytest.raises(SharesError, match=words):
        manager.configure_shares(shares)
    assert manager.shares.find("c") is not None, "the former ones stay"


def test_evictions_are_counted_by_configured_tenant() -> None:
    """However many tenants there are, the labels are those of the configuration and three others."""
    manager = shared_pool(4, a=Share(0.25))
    store(manager, prompt(0, 4), A)
    for number in range(1, 50):
        store(manager, prompt(number, 4), Scope(f"stranger {number}"))
    store(manager, prompt(60, 4), PUBLIC)
    store(manager, prompt(61, 4), DEFAULT)
    store(manager, prompt(62, 4), DEFAULT)
    assert manager.shares.evicted == {"a": 4, OTHER_LABEL: 49 * 4, PUBLIC_LABEL: 4, "default": 4}
    assert manager.shares.evicted.total() == manager.evicted_blocks
    manager.reset()
    assert manager.shares.evicted.total() == manager.evicted_blocks, "what a reset drops does not give way to others"


class SharesMachine(RuleBasedStateMachine):
    """Prompts of three tenants and of the public come and go under random shares; the promises hold at each step."""

    SCOPES = (A, B, C, Scope("a", "salt"), PUBLIC)

    @initialize(blocks=st.sampled_from([6, 12, 40]), policy=st.sampled_from(BOTH), host=st.sampled_from([0, 0, 4, 20]))
    def begin(self, blocks: int, policy: EvictionPolicy, host: int) -> None:
        self.manager = MemoryManager(blocks, 2, eviction_policy=policy, host_blocks=host)
        self.parked: list[Parked] = []
        self.running: list[Sequence] = []
        self.now = 0.0

    @rule(data=st.data())
    def configure(self, data: st.DataObject) -> None:
        minimums = data.draw(st.lists(st.sampled_from([0.0, 0.1, 0.3]), min_size=3, max_size=3))
        maximums = data.draw(st.lists(st.sampled_from([0.3, 0.6, 1.0]), min_size=3, max_size=3))
        shares = {name: Share(low, high) for name, low, high in zip("abc", minimums, maximums, strict=True)}
        self.manager.configure_shares({name: share for name, share in shares.items() if share != Share()})

    @rule(scope=st.sampled_from(SCOPES), data=st.data(), unshared=st.sampled_from([False, False, False, True]))
    def admit(self, scope: Scope, data: st.DataObject, unshared: bool) -> None:
        tokens = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=14))
        before = {holding.tenant: holding for holding in self.manager.shares.all()}
        kept = {tenant: holding.evictable for tenant, holding in before.items()}
        sheltered = {tenant: holding.sheltered for tenant, holding in before.items()}
        packed, alone = pack(tokens), not self.running
        match = self.manager.match(scope, packed)
        possible = self.manager.can_admit(scope, match, len(tokens))
        if not possible:
            with pytest.raises(NoSpaceError):
                self.manager.admit(scope, packed)
            assert not alone or len(tokens) > 2 * self.manager.pool.num_blocks, "alone, whatever fits is admitted"
            return
        sequence = self.manager.admit(scope, packed, unshared=unshared)
        self.running.append(sequence)
        for tenant, holding in before.items():
            if tenant not in (scope.tenant, PUBLIC.tenant) and not alone:
                lost = kept[tenant] - holding.evictable
                assert lost <= kept[tenant] - sheltered[tenant], "a tenant lost something below its minimum"

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        self.manager.mark_stored(sequence, data.draw(st.integers(sequence.stored, sequence.num_tokens)))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.manager.release(self.running.pop(data.draw(st.integers(0, len(self.running) - 1))))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), seconds=st.integers(1, 5))
    def retain(self, data: st.DataObject, seconds: int) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        tokens = data.draw(st.integers(0, sequence.stored))
        assert self.manager.retain(sequence, tokens, self.now + seconds) in (0, tokens // 2 * 2)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), name=st.sampled_from("pqr"))
    def pin(self, data: st.DataObject, name: str) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        if all(pin.name != name for pin in self.manager.retention.pins()):
            self.manager.pin(name, sequence, sequence.stored)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        parked = self.manager.park(sequence)
        if parked is not None:
            self.running.remove(sequence)
            self.parked.append(parked)

    @precondition(lambda self: self.parked)
    @rule(data=st.data(), back=st.booleans())
    def unpark(self, data: st.DataObject, back: bool) -> None:
        parked = self.parked.pop(data.draw(st.integers(0, len(self.parked) - 1)))
        (self.manager.unpark if back else self.manager.discard)(parked)

    @rule()
    def settle_moves(self) -> None:
        self.manager.settle_moves(self.manager.drain_moves())

    @rule(name=st.sampled_from("pqr"))
    def unpin(self, name: str) -> None:
        self.manager.unpin(name)

    @rule(seconds=st.integers(0, 3))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.manager.expire(self.now)

    @rule()
    def reset(self) -> None:
        self.manager.reset()
        assert self.manager.usage().kept == 0

    @invariant()
    def books_agree(self) -> None:
        if hasattr(self, "manager"):
            self.manager.check()

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            for sequence in self.running:
                self.manager.release(sequence)
            for parked in self.parked:
                self.manager.unpark(parked)
            self.manager.reset()
            self.manager.check()
            assert self.manager.usage().free == self.manager.pool.num_blocks


SharesMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSharesMachine = SharesMachine.TestCase
