"""What a step takes: a roofline over its arithmetic and the bytes it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.scheduling.plan import Plan


class Load(NamedTuple):
    """What a plan asks of a machine.

    tokens: rows computed. pairs: (query, key) pairs of causal attention. keys: tokens of context read from the store,
    once for each piece of work.
    """

    tokens: int
    pairs: int
    keys: int


def load_of(plan: Plan) -> Load:
    """Add up a plan's work. A row at position p attends to p + 1 keys."""
    tokens = pairs = keys = 0
    for work in plan.work:
        count = len(work.tokens) // TOKEN_BYTES
        tokens += count
        pairs += count * work.start + count * (count + 1) // 2
        keys += work.start + count
    return Load(tokens, pairs, keys)


@dataclass(frozen=True)
class Machine:
    """A model on an accelerator.

    flops: multiply-adds counted as two, per second, as reached. bandwidth and link: bytes per second of its memory and
    of the way to the host. overhead: seconds that a step takes beside both. linear_flops: per token; pair_flops: per
    (query, key) pair over all layers. weight_bytes: read once a step. token_bytes: keys and values of one token.
    """

    flops: float
    bandwidth: float
    link: float
    overhead: float
    linear_flops: float
    pair_flops: float
    weight_bytes: float
    token_bytes: float

    def seconds(self, load: Load, moved_blocks: int = 0, block_size: int = 0) -> float:
        """How long a step takes: the longer of its arithmetic and its reads, then what goes over the link."""
        compute = (load.tokens * self.linear_flops + load.pairs * self.pair_flops) / self.flops
        read = (self.weight_bytes + load.keys * self.token_bytes) / self.bandwidth
        moved = moved_blocks * block_size * self.token_bytes / self.link
        return max(compute, read) + moved + self.overhead
