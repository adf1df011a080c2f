"""Prefixes that are kept for a time, and pins."""

from __future__ import annotations

import pytest
from test_blocks import generate, reach, start, store

from pageinn.memory.manager import MemoryManager
from pageinn.memory.questions import PrefixCache
from pageinn.memory.scopes import DEFAULT, PUBLIC, Scope
from pageinn.memory.shares import Share
from pageinn.memory.tokens import pack

A, B = Scope("a"), Scope("b")


def prompt(number: int, blocks: int) -> list[int]:
    return [number * 1000 + place for place in range(4 * blocks)]


def retained(manager: MemoryManager, tokens: list[int], upto: int, end: float, scope: Scope = DEFAULT) -> int:
    sequence = start(manager, tokens, scope)
    kept = manager.retain(sequence, upto, end)
    manager.check()
    manager.release(sequence)
    manager.check()
    return kept


def flood(manager: MemoryManager, prompts: int, first: int = 1000) -> None:
    for number in range(prompts):
        store(manager, prompt(first + number, 2), B)


def test_a_prefix_is_kept_until_its_time_is_over() -> None:
    """Up to the breakpoint in whole blocks, and no further: 4 of 6 blocks for 17 tokens."""
    manager = MemoryManager(20, 4)
    assert retained(manager, prompt(1, 6), 17, 300.0) == 16
    flood(manager, 40)
    assert reach(manager, prompt(1, 6)) == 16
    manager.expire(299.9)
    flood(manager, 40, 2000)
    assert reach(manager, prompt(1, 6)) == 16
    manager.expire(300.0)
    assert manager.retention.counters.expired == 1
    flood(manager, 40, 3000)
    assert reach(manager, prompt(1, 6)) == 0


def test_using_it_again_keeps_it_longer_and_a_shorter_time_does_not_cut_it() -> None:
    manager = MemoryManager(20, 4)
    for end in (300.0, 900.0, 600.0):
        assert retained(manager, prompt(1, 4), 16, end) == 16
    manager.expire(899.0)
    flood(manager, 40)
    assert reach(manager, prompt(1, 4)) == 16
    manager.expire(900.0)
    assert manager.tree.num_held == 0


def test_breakpoints_of_one_prompt_end_one_by_one() -> None:
    """The system prompt for an hour, the conversation for five minutes."""
    manager = MemoryManager(40, 4)
    sequence = start(manager, prompt(1, 6))
    assert manager.retain(sequence, 8, 3600.0) == 8
    assert manager.retain(sequence, 24, 300.0) == 24
    assert manager.tree.num_held == 6
    manager.release(sequence)
    manager.expire(300.0)
    assert manager.tree.num_held == 2
    flood(manager, 60)
    assert reach(manager, prompt(1, 6)) == 8


def test_what_grows_on_a_retained_node_is_not_retained() -> None:
    """The edge is not lengthened in place; a branch inside it splits it, and both parts stay."""
    manager = MemoryManager(30, 4)
    sequence = start(manager, prompt(1, 4))
    assert manager.retain(sequence, 16, 10.0) == 16
    generate(manager, sequence, list(range(8)))
    assert manager.tree.num_held == 4
    manager.release(sequence)
    store(manager, prompt(1, 2) + prompt(2, 2))
    assert manager.tree.num_held == 4
    flood(manager, 40)
    assert reach(manager, prompt(1, 4)) == 16
    assert reach(manager, prompt(1, 2) + prompt(2, 2)) == 8


def test_beyond_the_caps_a_prefix_is_an_ordinary_one() -> None:
    """Half of 40 blocks for all, a quarter for one tenant, which its maximum lowers further."""
    manager = MemoryManager(40, 4)
    manager.configure_shares({"b": Share(0.0, 0.2)})
    assert retained(manager, prompt(1, 11), 44, 10.0, A) == 0
    assert retained(manager, prompt(2, 10), 40, 10.0, A) == 40
    assert retained(manager, prompt(3, 1), 4, 10.0, A) == 0
    assert retained(manager, prompt(4, 8), 32, 10.0, B) == 32
    assert retained(manager, prompt(5, 3), 12, 10.0) == 0
    assert retained(manager, prompt(6, 2), 8, 10.0) == 8
    counters = manager.retention.counters
    assert (counters.kept, counters.capped) == (3, 3)
    assert manager.available == 40 - 20


def test_the_pool_never_starves() -> None:
    """What is held stands in the way of requests beside others, and not of one that could not run otherwise."""
    manager = MemoryManager(20, 4)
    retained(manager, prompt(1, 5), 20, 10.0, A)
    pinned = start(manager, prompt(2, 5), B)
    assert manager.pin("p", pinned, 20) is not None
    manager.release(pinned)
    running = start(manager, prompt(3, 2))
    assert not manager.can_admit(DEFAULT, manager.unmatched(), 4 * 9)
    manager.release(running)
    big = start(manager, prompt(4, 15))
    assert manager.tree.num_held == 5, "what is kept for a time goes before pins"
    manager.release(big)
    manager.release(start(manager, prompt(5, 20)))
    assert manager.retention.counters.given_up == 2
    assert [pin.blocks for pin in manager.retention.pins()] == [0], "a pin that was given up is still listed"
    assert manager.unpin("p") is not None
    assert manager.retention.pins() == []


def test_a_pin_stays_until_it_is_taken_away_or_the_cache_is_reset() -> None:
    manager = MemoryManager(20, 4)
    sequence = start(manager, prompt(1, 5), PUBLIC)
    assert manager.pin("system", sequence, 19) == ("system", PUBLIC, 16, 4)
    with pytest.raises(ValueError, match="exists"):
        manager.pin("system", sequence, 4)
    assert manager.pin("more", sequence, 20) is not None
    manager.release(sequence)
    again = start(manager, prompt(1, 5) + prompt(2, 6), A)
    assert manager.pin("too much", again, 44) is None
    manager.release(again)
    flood(manager, 40)
    assert reach(manager, prompt(1, 5), A) == 20
    manager.unpin("more")
    flood(manager, 40)
    assert reach(manager, prompt(1, 5), A) == 16
    assert manager.unpin("more") is None
    assert manager.reset() == (20, 0)
    assert manager.retention.pins() == []
    manager.check()


@pytest.mark.parametrize("mode", [PrefixCache.OFF, PrefixCache.LIVE])
def test_where_nothing_is_kept_nothing_is_retained(mode: PrefixCache) -> None:
    manager = MemoryManager(20, 4, mode)
    sequence = start(manager, prompt(1, 4))
    assert manager.retain(sequence, 16, 10.0) == 0
    assert manager.pin("p", sequence, 16) is None
    manager.release(sequence)
    assert manager.usage() == (20, 0, 0)


def test_what_is_not_to_be_stored_leaves_nothing_behind() -> None:
    """Neither blocks nor a tail; it may read, and it may lead nobody."""
    manager = MemoryManager(20, 4)
    store(manager, prompt(1, 2))
    tokens = [*prompt(1, 2), *range(7)]
    sequence = manager.admit(DEFAULT, pack(tokens), unshared=True)
    assert sequence.stored == 8
    assert manager.leader(manager.match(DEFAULT, pack(tokens)), DEFAULT, pack(tokens)) is None
    assert manager.mark_stored(sequence, 15) is None
    assert not manager.can_fork(sequence)
    assert manager.retain(sequence, 15, 10.0) == 8, "what it read can be retained"
    manager.check()
    manager.release(sequence)
    assert reach(manager, tokens) == 8
    assert manager.usage() == (18, 2, 0)
