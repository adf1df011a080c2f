"""What a step says of the speed of whoever carries plans out: an engine by its clock, a simulator by its model."""

from __future__ import annotations

from typing import NamedTuple

from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.scheduling.cost import Measured
from pageinn.scheduling.plan import Plan


class Copied(NamedTuple):
    """Blocks that a step copied to the host and back, and the seconds that took."""

    blocks_out: int = 0
    out_seconds: float = 0.0
    blocks_in: int = 0
    in_seconds: float = 0.0


def measured(plan: Plan, seconds: float, copied: Copied) -> Measured | None:
    """What a step says of the speed of prefill and of copies; None for a step with neither.

    seconds: all of it, with its copies.
    """
    tokens = pairs = longest = 0
    for work in plan.work:
        count = len(work.tokens) // TOKEN_BYTES
        tokens += count
        pairs += count * work.start + count * (count + 1) // 2
        longest = max(longest, count)
    if longest <= 1:
        tokens = pairs = 0
    if not tokens and not copied.blocks_out and not copied.blocks_in:
        return None
    return Measured(tokens, pairs, seconds - copied.out_seconds - copied.in_seconds, *copied)
