"""Who gives up its blocks when memory runs out, and how it gets them back."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from pageinn.memory.manager import MemoryManager
from pageinn.scheduling.choice import Choice
from pageinn.scheduling.config import Preemption
from pageinn.scheduling.cost import Rates
from pageinn.scheduling.plan import Preempted


class Price(NamedTuple):
    """What preempting a choice costs. blocks: those that it frees. Seconds for either way; `way` is the one to take."""

    choice: Choice
    blocks: int
    recompute_seconds: float
    swap_seconds: float
    way: Preemption


def cheapest(memory: MemoryManager, rates: Rates, choices: Iterable[Choice], rule: Preemption) -> Price:
    """Of running choices in order of arrival, the least seconds for each block freed; of equal ones, the last.

    rule: for the way. Raises ValueError for none.
    """
    best, least = None, inf
    must_swap = rule is Preemption.SWAP
    may_swap = rule is not Preemption.RECOMPUTE and memory.host.num_slots > 0
    for choice in choices:
        sequence = choice.sequence
        assert sequence is not None
        blocks, stored = memory.exclusive(sequence), sequence.stored
        shared = (len(sequence.table) - blocks) * memory.block_size
        recompute, swap = rates.recompute(min(shared, stored), stored), rates.swap(blocks)
        swaps = may_swap and (swap < recompute or must_swap) and choice.reads_cache
        each = (swap if swaps else recompute) / blocks if blocks else inf
        if each <= least:
            way = Preemption.SWAP if swaps else Preemption.RECOMPUTE
            best, least = Price(choice, blocks, recompute, swap, way), each
    if best is None:
        raise ValueError("nobody to choose from")
    return best


def put_out(memory: MemoryManager, price: Price) -> Preempted:
    """Take a choice's memory from it, in the way of its price.

    To recompute is an unpin: what was computed stays in the tree until it is evicted. What finds no room on the host is
    recomputed too.
    """
    choice, blocks, recompute_seconds, swap_seconds, way = price
    sequence = choice.sequence
    assert sequence is not None
    choice.known = bytes(sequence.packed)
    choice.parked = memory.park(sequence) if way is Preemption.SWAP else None
    if choice.parked is None:
        way = Preemption.RECOMPUTE
        memory.release(sequence)
    return Preempted(choice.request.request_id, choice.index, way, blocks, recompute_seconds, swap_seconds)
