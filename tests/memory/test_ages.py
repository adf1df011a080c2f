"""How long blocks live, lie idle, and wait for their next use, by hand and in the sums."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_blocks import start, store

from pageinn.memory.ages import Histogram
from pageinn.memory.eviction import EvictionPolicy
from pageinn.memory.manager import MemoryManager


def ages_of(manager: MemoryManager) -> tuple[float, float, float]:
    """Seconds summed up over blocks: lifetimes, idle times, reuse gaps."""
    ages = manager.tree.ages
    return ages.lifetime.total, ages.idle.total, ages.reuse_gap.total


def test_a_life_by_hand() -> None:
    """Taken at 10, used until 12, found at 17, used until 18, evicted at 30; beside it a block that is never found."""
    manager = MemoryManager(2, 4)
    manager.expire(10)
    sequence = start(manager, [1] * 4)
    manager.expire(12)
    manager.release(sequence)
    store(manager, [2] * 4)
    manager.expire(17)
    sequence = start(manager, [1] * 4)
    assert ages_of(manager) == (0, 0, 17 - 12)
    manager.expire(18)
    manager.release(sequence)
    manager.expire(30)
    store(manager, [3] * 8)
    assert ages_of(manager) == ((30 - 10) + (30 - 12), (30 - 18) + (30 - 12), 5)
    assert sum(manager.tree.ages.lifetime.counts) == sum(manager.tree.ages.idle.counts) == 2


def test_the_head_of_a_path_is_used_later_than_its_tail() -> None:
    """Two blocks, the first of which is found again by another prompt: their idle times differ."""
    manager = MemoryManager(4, 4, eviction_policy=EvictionPolicy.LRU)
    store(manager, [1] * 4 + [2] * 4)
    manager.expire(5)
    store(manager, [1] * 4 + [3] * 4)
    manager.expire(7)
    store(manager, [9] * 16)
    # Found: the head, at 5. Evicted at 7: the older tail after 7 s, the newer tail and the head after 2 s each.
    assert ages_of(manager) == (7 + 2 + 7, 7 + 2 + 2, 5)


def test_what_a_reset_drops_has_not_been_evicted() -> None:
    manager = MemoryManager(4, 4)
    store(manager, [1] * 16)
    manager.expire(9)
    manager.reset()
    assert ages_of(manager) == (0, 0, 0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20), st.integers(0, 9)), max_size=40), st.integers(0, 6))
def test_each_eviction_counts_once(prompts, host_blocks) -> None:
    """Lives and idle times as many as evictions, no life shorter than its end's idleness, with a host pool too."""
    manager = MemoryManager(6, 4, host_blocks=host_blocks)
    now = 0
    for first, length, seconds in prompts:
        now += seconds
        manager.expire(now)
        store(manager, [first] * length)
        manager.settle_moves(manager.drain_moves())
    ages = manager.tree.ages
    assert sum(ages.lifetime.counts) == sum(ages.idle.counts) == manager.evicted_blocks
    assert ages.lifetime.total >= ages.idle.total >= 0
    assert ages.lifetime.total <= now * manager.evicted_blocks


def test_a_histogram_counts_a_bound_below_itself() -> None:
    """As Prometheus' buckets do: `le` is less or equal."""
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    histogram.observe(9.0, 4)
    assert histogram.counts == [2, 2, 5]
    assert histogram.total == pytest.approx(44)
