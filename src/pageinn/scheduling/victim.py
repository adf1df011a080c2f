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
from pageinn.scheduling.rows import fast


class Price(NamedTuple):
    """What preempting a choice costs. blocks: those that it frees. Seconds for either way; `way` is the one to take."""

    choice: Choice
    blocks: int
    recompute_seconds: float
    swap_seconds: float
    way: Preemption

    @property
    def seconds(self) -> float:
        """What is paid."""
        return self.swap_seconds if self.way is Preemption.SWAP else self.recompute_seconds


def price(memory: MemoryManager, rates: Rates, choice: Choice, rule: Preemption) -> Price:
    """What a running choice's preemption costs and frees, under a rule for the way."""
    sequence = choice.sequence
    assert sequence is not None
    blocks = memory.exclusive(sequence)
    shared = (len(sequence.table) - blocks) * memory.block_size
    recompute = rates.recompute(min(shared, sequence.stored), sequence.stored)
    swap = rates.swap(blocks)
    can_swap = memory.host.num_slots > 0 and choice.reads_cache
    if rule is Preemption.AUTO:
        rule = Preemption.SWAP if swap < recompute else Preemption.RECOMPUTE
    return fast(Price, (choice, blocks, recompute, swap, rule if can_swap else Preemption.RECOMPUTE))


def cheapest(prices: Iterable[Price]) -> Price:
    """The least seconds for each block freed; of equal ones, the last. Raises ValueError for none."""
    best, least = None, inf
    for one in prices:
        each = one.seconds / one.blocks if one.blocks else inf
        if each <= least:
            best, least = one, each
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
