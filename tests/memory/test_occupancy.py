"""Reserved, lost and shared slots: the textbook's figures, and a count slot by slot."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from pageinn.memory.manager import MemoryManager
from pageinn.memory.questions import PrefixCache
from pageinn.memory.scopes import DEFAULT
from pageinn.memory.sequence import Sequence
from pageinn.memory.tokens import pack
from pageinn.memory.waste import Occupancy

LENGTHS = (300, 2000, 600, 4400)


@pytest.mark.parametrize(("block_size", "held", "wasted"), [(8192, 4 * 8192, 0.777), (16, 7312, 0.0016)])
def test_reserving_whole_lengths_wastes_and_paging_does_not(block_size: int, held: int, wasted: float) -> None:
    """7,300 tokens in four sequences at a limit of 8,192: 25,468 of 32,768 slots are empty; in blocks of 16, 12."""
    manager = MemoryManager(4 * 8192 // block_size, block_size, PrefixCache.OFF)
    for number, length in enumerate(LENGTHS):
        sequence = started(manager, [number] * length)
        manager.mark_stored(sequence, length)
    found = manager.occupancy()
    assert (found.stored, found.held) == (sum(LENGTHS), held)
    assert found.wasted == pytest.approx(wasted, abs=5e-4)


def test_a_prompt_that_is_still_to_be_computed_is_reserved_not_lost() -> None:
    manager = MemoryManager(10, 4)
    sequence = started(manager, list(range(10)))
    assert manager.occupancy() == Occupancy(stored=0, reserved=12, last_block=0, saved=0)
    manager.mark_stored(sequence, 5)
    assert manager.occupancy() == Occupancy(stored=5, reserved=4, last_block=3, saved=0)


def test_what_many_use_is_stored_once() -> None:
    manager = MemoryManager(20, 4)
    first = started(manager, list(range(8)))
    manager.mark_stored(first, 8)
    for token in (50, 60):
        started(manager, [*range(8), token])
    assert manager.occupancy() == Occupancy(stored=8, reserved=8, last_block=0, saved=16)


def test_nothing_held_has_no_share() -> None:
    assert MemoryManager(4, 4).occupancy().wasted is None


def started(manager: MemoryManager, tokens: list[int]) -> Sequence:
    return manager.admit(DEFAULT, pack(tokens))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(1, 2), min_size=1, max_size=20), st.integers(0, 20)), max_size=6),
    st.sampled_from([1, 3, 4]),
    st.sampled_from([PrefixCache.KEEP, PrefixCache.OFF]),
)
def test_the_sums_are_those_of_a_count_slot_by_slot(
    prompts: list[tuple[list[int], int]], block_size: int, mode: PrefixCache
) -> None:
    manager = MemoryManager(200, block_size, mode)
    running = []
    for prompt, upto in prompts:
        sequence = started(manager, prompt)
        running.append(sequence)
        manager.mark_stored(sequence, max(sequence.stored, min(upto, len(prompt))))
    filled: dict[int, int] = {}
    begun: dict[int, bool] = {}
    copies = 0
    for sequence in running:
        for logical, block in enumerate(sequence.table):
            count = min(max(sequence.stored - logical * block_size, 0), block_size)
            copies += count if block in filled else 0
            filled[block] = count
            begun[block] = count > 0
    empty = {block: block_size - count for block, count in filled.items()}
    assert manager.occupancy() == Occupancy(
        stored=sum(filled.values()),
        reserved=sum(count for block, count in empty.items() if not begun[block]),
        last_block=sum(count for block, count in empty.items() if begun[block]),
        saved=copies,
    )
