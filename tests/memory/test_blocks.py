"""Blocks, copies on write, and eviction, case by case."""

from __future__ import annotations

import pytest

from pageinn.memory.eviction import EvictionPolicy
from pageinn.memory.manager import MemoryManager
from pageinn.memory.moves import Move, MoveKind
from pageinn.memory.pool import BlockPool, NoSpaceError
from pageinn.memory.questions import PrefixCache
from pageinn.memory.scopes import DEFAULT, Scope
from pageinn.memory.sequence import Sequence
from pageinn.memory.tokens import pack


def start(manager: MemoryManager, tokens: list[int], scope: Scope = DEFAULT) -> Sequence:
    """A running sequence with all its tokens computed."""
    sequence = manager.admit(scope, pack(tokens))
    manager.mark_stored(sequence, len(tokens))
    manager.check()
    return sequence


def store(manager: MemoryManager, tokens: list[int], scope: Scope = DEFAULT) -> None:
    """Compute a prompt and end."""
    manager.release(start(manager, tokens, scope))
    manager.check()


def generate(manager: MemoryManager, sequence: Sequence, tokens: list[int]) -> None:
    for token in tokens:
        manager.record(sequence, token)
        manager.reserve(sequence)
        manager.mark_stored(sequence, sequence.num_tokens)
        manager.check()


def reach(manager: MemoryManager, tokens: list[int], scope: Scope = DEFAULT) -> int:
    return manager.matched_tokens(manager.match(scope, pack(tokens)))


def test_an_idle_pool_has_nothing_in_use_and_much_to_reuse() -> None:
    """Field case A1: after 500 finished requests 0 blocks are in use, the kept ones have a gauge of their own."""
    manager = MemoryManager(100, 16)
    for number in range(500):
        store(manager, [number, *range(40)])
    usage = manager.usage()
    assert usage.in_use == 0
    assert usage.kept == 100 - usage.free > 90
    assert manager.usage_of(DEFAULT).kept == usage.kept
    store(manager, list(range(1600)))
    assert manager.usage() == (0, 100, 0)


def test_a_full_pool_evicts_its_oldest() -> None:
    """Field case A2: the pool is full of finished prompts; the new one takes the oldest's blocks."""
    manager = MemoryManager(3, 4)
    for first in (10, 20, 30):
        store(manager, [first, first, first, first])
    store(manager, [40, 40, 40, 40])
    assert [reach(manager, [first] * 4) for first in (10, 20, 30, 40)] == [0, 4, 4, 4]
    assert manager.evicted_blocks == 1


def test_a_donor_is_untouched() -> None:
    """Field case A4: a continuation of a tail gets a copy of it; the donor's block is neither its own nor gone."""
    manager = MemoryManager(10, 4)
    store(manager, [1, 2, 3, 4, 5, 6])
    [donor] = [node.blocks[0] for node in manager.tree.nodes() if len(node.tokens) < 16]
    for last in (7, 8):
        sequence = manager.admit(DEFAULT, pack([1, 2, 3, 4, 5, 6, last]))
        assert sequence.stored == 6
        assert manager.drain_moves() == [Move(MoveKind.COPY, donor, sequence.table[1])]
        assert sequence.table[1] != donor
        manager.release(sequence)
        manager.check()
    assert reach(manager, [1, 2, 3, 4, 5, 6]) == 6


def test_four_forks_share_all_but_one_block_each() -> None:
    """Field case A4: four choices of a prompt that ends mid-block: one copy each, nothing else is taken."""
    manager = MemoryManager(10, 4)
    parent = start(manager, [1, 2, 3, 4, 5, 6])
    forks = [manager.fork(parent) for _ in range(3)]
    assert manager.drain_moves() == [Move(MoveKind.COPY, parent.table[1], child.table[1]) for child in forks]
    assert all(child.table[0] == parent.table[0] for child in forks)
    assert len({parent.table[1], *(child.table[1] for child in forks)}) == 4
    assert manager.usage().in_use == 5
    whole = start(manager, [9, 9, 9, 9])
    manager.fork(whole)
    assert manager.drain_moves() == [], "a prompt that ends with its block is shared whole"


@pytest.mark.parametrize("mode", [PrefixCache.KEEP, PrefixCache.LIVE])
def test_a_child_outlives_its_parent(mode: PrefixCache) -> None:
    """Field case A5: the parent ends and all that can be evicted is: the child's blocks stay its own."""
    manager = MemoryManager(6, 4, mode)
    parent = start(manager, [1, 2, 3, 4, 5, 6])
    child = manager.fork(parent)
    table = list(child.table)
    generate(manager, parent, [7, 8, 9])
    manager.release(parent)
    manager.reset()
    other = start(manager, [50] * 16)
    assert not set(table) & set(other.table)
    assert child.table == table
    generate(manager, child, [7])
    manager.release(child)
    manager.check()


def test_the_same_prompt_computed_twice_is_held_once() -> None:
    """Field cases A6 and B5: two compute the same at once; one's end does not free the other's blocks."""
    manager = MemoryManager(8, 4)
    first, second = (manager.admit(DEFAULT, pack([1, 2, 3, 4, 5, 6, 7, 8])) for _ in range(2))
    assert manager.mark_stored(first, 8) is None
    edit = manager.mark_stored(second, 8)
    assert edit == (0, first.table)
    assert second.table == first.table
    assert manager.usage() == (6, 0, 2)
    manager.release(first)
    manager.reset()
    assert manager.usage() == (6, 0, 2)
    generate(manager, second, [9])
    manager.release(second)
    manager.check()
    assert manager.usage() == (5, 3, 0)


def test_two_that_generate_the_same_share_a_path() -> None:
    """Field case B5: one path in the tree for the same continuation, and the duplicate's blocks are freed once."""
    manager = MemoryManager(20, 4)
    first = start(manager, [1, 2, 3, 4, 5])
    second = manager.fork(first)
    for token in range(6, 16):
        generate(manager, first, [token])
        generate(manager, second, [token])
    assert first.table[:3] == second.table[:3]
    manager.release(first)
    manager.release(second)
    manager.check()
    assert all(len(node.children) <= 1 for node in [manager.tree.root, *manager.tree.nodes()]), "a second path"
    assert manager.usage() == (16, 4, 0)
    assert reach(manager, list(range(1, 16))) == 15


def test_what_was_matched_is_pinned_before_anything_is_allocated() -> None:
    """Field case A7: the pool is kept blocks and one free one; the newcomer's match is not evicted to serve it."""
    manager = MemoryManager(3, 4)
    store(manager, [1, 2, 3, 4])  # the oldest, so the one that a careless allocation would evict
    store(manager, [9, 9, 9, 9])
    one = manager.admit(DEFAULT, pack([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]))
    assert one.stored == 4
    assert len(set(one.table)) == 3
    manager.check()
    match = manager.match(DEFAULT, pack([1, 2, 3, 4, 5]))
    assert not manager.can_admit(DEFAULT, match, 5)
    with pytest.raises(NoSpaceError):
        manager.admit(DEFAULT, pack([1, 2, 3, 4, 5]))
    manager.check()


def test_a_match_inside_an_edge_leaves_the_rest_of_it_to_evict() -> None:
    """Half of a kept chain is matched in a full pool: the other half can be evicted for the newcomer, and not more."""
    manager = MemoryManager(4, 4)
    store(manager, [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4)
    for extra, fits in ((8, True), (9, False)):
        prompt = [1] * 4 + [2] * 4 + [9] * extra
        match = manager.match(DEFAULT, pack(prompt))
        assert manager.can_admit(DEFAULT, match, len(prompt)) is fits
    sequence = manager.admit(DEFAULT, pack([1] * 4 + [2] * 4 + [9] * 8))
    assert sequence.stored == 8
    manager.check()


def test_a_donor_may_be_evicted_for_its_own_copy() -> None:
    """The tail that a newcomer continues is the only block left: it is taken over in place, without a copy."""
    manager = MemoryManager(1, 4)
    store(manager, [1, 2])
    sequence = manager.admit(DEFAULT, pack([1, 2, 3]))
    assert (sequence.stored, manager.drain_moves()) == (2, [])


def test_a_head_never_goes_before_its_tail() -> None:
    """Field case B1: of a kept chain 1-2-3 of one age, 3 goes first, and a repeat hits two blocks."""
    manager = MemoryManager(4, 4)
    chain = [1] * 4 + [2] * 4 + [3] * 4
    store(manager, chain)
    for left in (2, 1, 0):
        manager.tree.evict(1)
        manager.check()
        assert reach(manager, chain) == 4 * left


def test_half_of_a_chunked_prompt_is_a_usable_prefix() -> None:
    """Field case B2: prefilled in chunks, half of it evicted: the first half is what survives."""
    manager = MemoryManager(16, 4)
    prompt = list(range(64))
    sequence = manager.admit(DEFAULT, pack(prompt))
    for end in (10, 24, 31, 50, 64):
        manager.mark_stored(sequence, end)
        manager.check()
    manager.release(sequence)
    manager.tree.evict(8)
    assert reach(manager, prompt) == 32
    again = manager.admit(DEFAULT, pack(prompt))
    assert again.stored == 32
    manager.check()


def test_a_shared_head_lives_as_long_as_its_youngest_branch() -> None:
    """The head of two branches is as recent as the later one; the older branch is evicted block by block, then that."""
    manager = MemoryManager(6, 4, eviction_policy=EvictionPolicy.LRU)
    store(manager, [1] * 4 + [2] * 8)
    store(manager, [1] * 4 + [3] * 4)
    store(manager, [8] * 4)
    reached = []
    for _ in range(5):
        manager.tree.evict(1)
        reached.append((reach(manager, [1] * 4 + [2] * 8), reach(manager, [1] * 4 + [3] * 4), reach(manager, [8] * 4)))
    assert reached == [(8, 8, 4), (4, 8, 4), (4, 4, 4), (0, 0, 4), (0, 0, 0)]


def test_recency_is_exact_to_the_block_after_a_match_inside_an_edge() -> None:
    """Using the first two blocks of a chain of four makes those two recent, not the other two."""
    manager = MemoryManager(5, 4)
    chain = [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4
    store(manager, chain)
    store(manager, [9] * 4)
    store(manager, chain[:8])
    reached = []
    for _ in range(4):
        manager.tree.evict(1)
        reached.append((reach(manager, chain), reach(manager, [9] * 4)))
    assert reached == [(12, 4), (8, 4), (8, 0), (4, 0)]


def test_a_tail_that_is_used_again_is_recent() -> None:
    """A repeat that ends with the same tail keeps no second one, but makes the first as recent as itself."""
    manager = MemoryManager(3, 16)
    store(manager, [1, 2, 3])
    store(manager, [4, 5, 6])
    store(manager, [1, 2, 3])
    assert manager.usage() == (1, 2, 0)
    manager.tree.evict(1)
    assert (reach(manager, [1, 2, 3]), reach(manager, [4, 5, 6])) == (3, 0)


def test_a_block_that_covers_a_used_tail_is_recent_alone() -> None:
    """A request inside the first block of a longer chain makes that block recent, and not what hangs below it."""
    manager = MemoryManager(4, 4)
    store(manager, [1, 2, 3, 4, 5, 5, 5, 5])
    store(manager, [9] * 4)
    store(manager, [1, 2, 3])
    assert manager.usage() == (1, 3, 0)
    reached = []
    for _ in range(3):
        manager.tree.evict(1)
        reached.append((reach(manager, [1, 2, 3, 4, 5, 5, 5, 5]), reach(manager, [9] * 4)))
    assert reached == [(4, 4), (4, 0), (0, 0)]


def test_a_longer_tail_drops_the_shorter_one() -> None:
    """Each turn of a chat continues the last one's tail; only the longest is kept, and a full block drops it."""
    manager = MemoryManager(10, 4)
    store(manager, [1])
    store(manager, [1, 2])
    assert manager.usage().kept == 1
    store(manager, [1, 2, 3])
    assert manager.usage().kept == 1
    store(manager, [1, 7])
    assert manager.usage().kept == 2
    store(manager, [1, 2, 3, 4])
    assert manager.usage().kept == 2
    assert [reach(manager, tokens) for tokens in ([1, 2, 3, 4], [1, 7], [1, 2, 9])] == [4, 2, 2]


@pytest.mark.parametrize(("mode", "kept"), [(PrefixCache.LIVE, 0), (PrefixCache.OFF, 0), (PrefixCache.KEEP, 2)])
def test_what_stays_after_the_end(mode: PrefixCache, kept: int) -> None:
    manager = MemoryManager(8, 4, mode)
    store(manager, [1, 2, 3, 4, 5])
    assert manager.usage() == (8 - kept, kept, 0)


def test_live_shares_while_one_runs_and_off_never() -> None:
    for mode, shared in ((PrefixCache.LIVE, 4), (PrefixCache.OFF, 0)):
        manager = MemoryManager(8, 4, mode)
        first = start(manager, [1, 2, 3, 4, 5])
        second = start(manager, [1, 2, 3, 4, 6])
        assert len(set(first.table) & set(second.table)) * 4 == shared
        manager.release(first)
        assert reach(manager, [1, 2, 3, 4, 5]) == shared
        manager.release(second)
        assert reach(manager, [1, 2, 3, 4, 5]) == 0
        assert manager.usage() == (8, 0, 0)


def test_off_forks_nothing() -> None:
    manager = MemoryManager(8, 4, PrefixCache.OFF)
    parent = start(manager, [1, 2, 3, 4])
    with pytest.raises(NoSpaceError):
        manager.fork(parent)


def test_reset_says_what_it_did() -> None:
    """Field case F6: blocks freed, blocks still in use, and what is in use is not touched."""
    manager = MemoryManager(10, 4)
    store(manager, [9] * 12)
    running = start(manager, [1, 2, 3, 4, 5])
    assert manager.reset() == (3, 2)
    assert manager.reset() == (0, 2)
    manager.check()
    assert reach(manager, [9] * 12) == 0
    assert reach(manager, [1, 2, 3, 4]) == 4
    manager.release(running)
    assert manager.reset() == (2, 0)


def test_a_request_that_does_not_fit_changes_nothing() -> None:
    manager = MemoryManager(4, 4)
    store(manager, [1, 2, 3, 4, 5, 5, 5, 5])
    before = manager.usage(), manager.tree.num_nodes
    with pytest.raises(NoSpaceError, match="17 tokens"):
        manager.admit(Scope("new"), pack([1, 2, 3, 4] + [7] * 13))
    manager.check()
    assert (manager.usage(), manager.tree.num_nodes) == before
    assert manager.ledger.find(Scope("new")) is None


def test_the_eviction_queue_does_not_grow_with_use() -> None:
    """Outdated entries are swept: a hot prompt used 10,000 times leaves a queue as small as the tree."""
    manager = MemoryManager(50, 4)
    for number in range(20):
        store(manager, [number] * 4)
    for _ in range(10_000):
        manager.release(manager.admit(DEFAULT, pack([3] * 4)))
    assert len(manager.shares._common._heap) <= 200
    manager.check()


def test_a_pool_hands_out_all_or_nothing() -> None:
    pool = BlockPool(3)
    assert pool.take(0) == []
    taken = pool.take(2)
    with pytest.raises(NoSpaceError):
        pool.take(2)
    assert pool.num_free == 1
    pool.give(taken)
    assert sorted(pool.take(3)) == [0, 1, 2]


@pytest.mark.parametrize(("blocks", "size"), [(0, 16), (-1, 16), (4, 0)])
def test_sizes_that_make_no_sense(blocks: int, size: int) -> None:
    with pytest.raises(ValueError, match=r"is (0|-1); a"):
        MemoryManager(blocks, size)


def test_check_finds_broken_books() -> None:
    """The integrity check itself can fail: one wrong owner, pin, count or order at a time."""

    def books() -> tuple[MemoryManager, Sequence]:
        manager = MemoryManager(10, 4)
        store(manager, [1] * 8)
        store(manager, [2] * 6)
        return manager, start(manager, [1] * 4 + [3] * 5)

    def twice_owned(manager: MemoryManager, sequence: Sequence) -> None:
        manager.pool.give([sequence.table[0]])

    def lost(manager: MemoryManager, sequence: Sequence) -> None:
        manager.pool.take(1)

    def extra_pin(manager: MemoryManager, sequence: Sequence) -> None:
        sequence.node.pins += 1

    def miscounted(manager: MemoryManager, sequence: Sequence) -> None:
        manager.tree.num_kept += 1

    def mischarged(manager: MemoryManager, sequence: Sequence) -> None:
        sequence.account.private -= 1

    def other_table(manager: MemoryManager, sequence: Sequence) -> None:
        sequence.table[0], sequence.table[1] = sequence.table[1], sequence.table[0]

    def other_tokens(manager: MemoryManager, sequence: Sequence) -> None:
        sequence.packed[0] += 1

    def forgotten_leaf(manager: MemoryManager, sequence: Sequence) -> None:
        manager.shares._common._heap.clear()

    def forgotten_tail(manager: MemoryManager, sequence: Sequence) -> None:
        manager.shares._common._tails.clear()

    def running_tail(manager: MemoryManager, sequence: Sequence) -> None:
        manager.shares._common._tails[sequence.node] = None

    def unsorted(manager: MemoryManager, sequence: Sequence) -> None:
        manager.tree.root.order[sequence.account.number].reverse()

    for harm in (
        twice_owned,
        lost,
        extra_pin,
        miscounted,
        mischarged,
        other_table,
        other_tokens,
        forgotten_leaf,
        forgotten_tail,
        running_tail,
        unsorted,
    ):
        manager, sequence = books()
        manager.check()
        harm(manager, sequence)
        with pytest.raises(AssertionError):
            manager.check()
