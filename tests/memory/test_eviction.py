"""What is evicted first, by each policy."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from test_blocks import reach, store

from pageinn.memory.eviction import EvictionPolicy
from pageinn.memory.manager import MemoryManager
from pageinn.memory.pool import NoSpaceError
from pageinn.memory.scopes import DEFAULT
from pageinn.memory.sequence import Sequence
from pageinn.memory.tokens import pack

BOTH = list(EvictionPolicy)


def manager_of(blocks: int, policy: EvictionPolicy, block_size: int = 4) -> MemoryManager:
    return MemoryManager(blocks, block_size, eviction_policy=policy)


@pytest.mark.parametrize("policy", BOTH)
def test_a_head_never_goes_before_its_tail(policy: EvictionPolicy) -> None:
    """Field case B1: blocks 1-2-3, one needed: 3 goes, and a repeat hits two; however often the chain was used."""
    manager = manager_of(4, policy)
    for _ in range(3):
        store(manager, [1] * 4 + [2] * 4 + [3] * 4)
    store(manager, [9] * 8)
    assert reach(manager, [1] * 4 + [2] * 4 + [3] * 4) == 8


@pytest.mark.parametrize(("policy", "survives"), [(EvictionPolicy.LRU, 0), (EvictionPolicy.REUSE, 64)])
def test_short_prompts_do_not_push_a_shared_prefix_out(policy: EvictionPolicy, survives: int) -> None:
    """Field case B3: prompts below one block, of which no block can be shared, and 25 pools of them: the prefix stays.

    Least recently used lets it go, which is why it is not the default.
    """
    manager = manager_of(40, policy)
    prefix = list(range(100, 164))
    for question in range(3):
        store(manager, [*prefix, question])
    for number in range(1000):
        store(manager, [1000 + number, 7, 7])
    assert reach(manager, prefix) == survives


@pytest.mark.parametrize(("policy", "survives"), [(EvictionPolicy.LRU, 0), (EvictionPolicy.REUSE, 64)])
def test_what_was_shared_outlives_a_turnover_of_the_pool(policy: EvictionPolicy, survives: int) -> None:
    """Field case B3 with whole blocks: 16 of 40 are shared, 24 others turn over; after 42 more unshared ones the shared
    prefix is still there, and after ten turnovers it is gone: protection is not for ever."""
    manager = manager_of(40, policy)
    prefix, number = list(range(100, 164)), 0

    def flood(blocks: int) -> None:
        nonlocal number
        for _ in range(blocks):
            number += 1
            store(manager, [1000 + number] * 4)

    for question in range(3):
        store(manager, [*prefix, question])
    for _ in range(10):
        flood(20)
        store(manager, [*prefix, 5])
    flood(42)
    assert reach(manager, prefix) == survives
    flood(240)
    assert reach(manager, prefix) == 0


def test_the_newest_turn_of_a_conversation_is_kept_with_it() -> None:
    """It was not matched itself yet; the only line that goes on from turns that were, it is likely to be."""
    manager = manager_of(40, EvictionPolicy.REUSE)
    turns = [list(range(start, start + 16)) for start in range(100, 164, 16)]
    history: list[int] = []
    number = 0
    for turn in turns:
        history += turn
        for _ in range(23):
            number += 1
            store(manager, [1000 + number] * 4)
        store(manager, history)
    for _ in range(24):
        number += 1
        store(manager, [1000 + number] * 4)
    assert reach(manager, history) == 64


@given(st.lists(st.tuples(st.integers(40, 60), st.integers(0, 5)), min_size=30, max_size=60))
@settings(max_examples=60, deadline=None)
def test_of_what_was_never_reused_the_older_goes_first(asked: list[tuple[int, int]]) -> None:
    """Whatever else is reused, and whether its end fills a block: a tail that stays for its reuse shelters no others.

    Each step stores a fresh prompt of 10 to 15 blocks of four and, of the last five, sends one again, or none. A pool
    of 100 holds at most ten such prompts, which is less than an eighth of it in tails.
    """
    manager = manager_of(100, EvictionPolicy.REUSE)
    once: dict[int, list[int]] = {}
    for number, (length, again) in enumerate(asked):
        once[number] = [1000 + number] * length
        store(manager, once[number])
        if number - again in once and again:
            store(manager, once.pop(number - again))
        reached = [(reach(manager, prompt), len(prompt)) for prompt in once.values()]
        first_held = next(place for place, (reachable, _) in enumerate(reached) if reachable)
        assert all(reachable >= length - 1 for reachable, length in reached[first_held + 1 :])


def test_resuming_is_no_reuse() -> None:
    """Field case F1, for eviction: one that was preempted finds its own blocks, and they are no dearer."""
    manager = manager_of(40, EvictionPolicy.REUSE)
    prompt = pack(list(range(16)))
    sequence = manager.admit(DEFAULT, prompt)
    manager.mark_stored(sequence, 16)
    manager.release(sequence)
    again = manager.admit(DEFAULT, prompt, resumed=True)
    assert again.node.hits == 0
    manager.release(again)
    assert manager.admit(DEFAULT, prompt).node.hits == 1


@given(st.sampled_from(BOTH), st.sampled_from([3, 9, 30]), st.data())
@settings(max_examples=80, deadline=None)
def test_the_books_close_under_either_policy(policy: EvictionPolicy, blocks: int, data: st.DataObject) -> None:
    """Random prompts come and go; what cannot be admitted says so, everything kept can be evicted, leaf by leaf."""
    manager = manager_of(blocks, policy, block_size=2)
    running: list[Sequence] = []
    for _ in range(data.draw(st.integers(1, 40))):
        if running and data.draw(st.booleans()):
            manager.release(running.pop(data.draw(st.integers(0, len(running) - 1))))
        else:
            prompt = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=9))
            try:
                sequence = manager.admit(DEFAULT, pack(prompt))
            except NoSpaceError:
                continue
            manager.mark_stored(sequence, len(prompt))
            running.append(sequence)
        manager.check()
    for sequence in running:
        manager.release(sequence)
    kept = manager.usage().kept
    assert manager.tree.evict(kept) == kept
    manager.check()
    assert manager.usage() == (blocks, 0, 0)
