"""The pool as a floor plan: one byte for each block."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from pageinn.memory.view import MemoryView, NodeView

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
    numbers = _numbers(view)
    last = len(numbers) - 1
    cells = bytearray(view.usage.total)
    counts = [0] * len(STATES)
    for node in view.nodes:
        if node.blocks:
            state = state_of(node)
            counts[state] += len(node.blocks)
            _paint(cells, node.blocks, state | numbers.get(node.tenant, last) << TENANT_SHIFT)
    for own in view.private:
        counts[IN_USE] += len(own.blocks)
        _paint(cells, own.blocks, IN_USE | numbers.get(own.tenant, last) << TENANT_SHIFT)
    counts[FREE] = len(cells) - sum(counts)
    return Floor(bytes(cells), list(numbers), dict(zip(STATES, counts, strict=True)))


def state_of(node: NodeView) -> int:
    """The state of a node's blocks on the device."""
    if node.pins:
        return SHARED if node.pins > 1 else IN_USE
    return PINNED if node.retains else KEPT


def _paint(cells: bytearray, blocks: list[int], value: int) -> None:
    for block in blocks:
        cells[block] = value


def _numbers(view: MemoryView) -> dict[str, int]:
    """Tenants by number, those with the most blocks first."""
    blocks: Counter[str] = Counter()
    for node in view.nodes:
        blocks[node.tenant] += len(node.blocks)
    for own in view.private:
        blocks[own.tenant] += len(own.blocks)
    names = [name for name, _ in sorted(blocks.items(), key=lambda item: (-item[1], item[0]))]
    if len(names) > MOST_TENANTS:
        names = [*names[: MOST_TENANTS - 1], OTHERS]
    return {name: number for number, name in enumerate(names)}
