"""The pool as a floor plan: one byte for each block."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from pageinn.memory.view import MemoryView

#: What a block is, in the low three bits of its byte.
STATES = ("free", "kept", "pinned", "in_use", "shared")
FREE, KEPT, PINNED, IN_USE, SHARED = range(len(STATES))
#: Above them, whose it is; tenants beyond the last number are drawn as one.
TENANT_SHIFT, MOST_TENANTS = 3, 32
OTHERS = "(others)"


class Floor(NamedTuple):
    """cells: state and tenant of each block. tenants: names by number. counts: blocks by state, the sum is the pool."""

    cells: bytes
    tenants: list[str]
    counts: dict[str, int]


def floor_plan(view: MemoryView) -> Floor:
    """Each block's state and tenant; some milliseconds for 100,000 blocks."""
    tree, numbers = view.tree, _numbers(view)
    last = len(numbers) - 1
    cells = np.zeros(view.usage.total, dtype=np.uint8)
    values = [
        state_of(pins, retains) | numbers.get(tenant, last) << TENANT_SHIFT
        for pins, retains, tenant in zip(tree.pins, tree.retains, tree.tenants, strict=True)
    ]
    blocks = np.fromiter(tree.blocks, dtype=np.intp, count=len(tree.blocks))
    cells[blocks] = np.repeat(np.array(values, dtype=np.uint8), np.array(tree.sizes, dtype=np.intp))
    for own in view.private:
        cells[own.blocks] = IN_USE | numbers.get(own.tenant, last) << TENANT_SHIFT
    counts = np.bincount(cells & (1 << TENANT_SHIFT) - 1, minlength=len(STATES))
    return Floor(cells.tobytes(), list(numbers), dict(zip(STATES, counts.tolist(), strict=True)))


def state_of(pins: int, retains: int) -> int:
    """The state of a node's blocks on the device."""
    if pins:
        return SHARED if pins > 1 else IN_USE
    return PINNED if retains else KEPT


def _numbers(view: MemoryView) -> dict[str, int]:
    """Tenants by number, those with the most blocks first."""
    blocks: Counter[str] = Counter()
    for tenant, size in zip(view.tree.tenants, view.tree.sizes, strict=True):
        blocks[tenant] += size
    for own in view.private:
        blocks[own.tenant] += len(own.blocks)
    names = [name for name, _ in sorted(blocks.items(), key=lambda item: (-item[1], item[0]))]
    if len(names) > MOST_TENANTS:
        names = [*names[: MOST_TENANTS - 1], OTHERS]
    return {name: number for number, name in enumerate(names)}
