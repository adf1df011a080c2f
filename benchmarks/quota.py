"""What a flood of unique prompts does to another tenant's hit rate, with and without a share of the pool.

Run: .venv/bin/python benchmarks/quota.py DATA

A tenant works on coding sessions (DATA/claude_code, see benchmarks/traces.py); between two of its requests another
tenant sends so many unique blocks, in prompts of 200. The row "alone in a pool of ..." is the promise: what a pool of
the size of the minimum gives the tenant when nobody else is there.
"""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path

from pageinn.memory.eviction import EvictionPolicy
from pageinn.memory.manager import MemoryManager
from pageinn.memory.scopes import Scope
from pageinn.memory.sequence import Sequence
from pageinn.memory.shares import Share
from pageinn.memory.tokens import pack
from traces import Prompt, claude_code

WORKER, FLOOD = Scope("worker"), Scope("flood")
POOL, MINIMUM = 20_000, 0.5
FLOOD_PROMPT = 200
IN_FLIGHT = 4


class Pool:
    """A pool with a few requests in flight, whoever's."""

    def __init__(self, blocks: int, policy: EvictionPolicy, shares: dict[str, Share]) -> None:
        self.manager = MemoryManager(blocks, 1, eviction_policy=policy)
        self.manager.configure_shares(shares)
        self._running: deque[Sequence] = deque()

    def send(self, scope: Scope, prompt: Prompt) -> int:
        """Compute a prompt; says how many of its blocks were found."""
        packed = pack(prompt)
        match = self.manager.match(scope, packed)
        while len(self._running) >= IN_FLIGHT or not self.manager.can_admit(scope, match, len(prompt)):
            self.manager.release(self._running.popleft())
            match = self.manager.match(scope, packed)
        found = self.manager.matched_tokens(match)
        sequence = self.manager.admit(scope, packed, match)
        self.manager.mark_stored(sequence, len(prompt))
        self._running.append(sequence)
        return found


def hit_rate(prompts: list[Prompt], pool: Pool, flood: int) -> float:
    """The worker's share of blocks found, with `flood` unique blocks of the other tenant after each request."""
    number, found, total = 3_000_000_000, 0, 0
    for prompt in prompts:
        found += pool.send(WORKER, prompt)
        total += len(prompt)
        for _ in range(flood // FLOOD_PROMPT):
            pool.send(FLOOD, list(range(number, number + FLOOD_PROMPT)))
            number += FLOOD_PROMPT
    return found / total


def main() -> None:
    """Print the table."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    promised = int(POOL * MINIMUM)
    prompts = [prompt for prompt in claude_code(Path(sys.argv[1]), 20) if len(prompt) < promised]
    print(f"{len(prompts)} requests, {POOL:,} blocks, min_share {MINIMUM}")
    print(f"{'unique blocks between two requests':<38}" + "".join(f"{policy:>9}" for policy in EvictionPolicy))
    for share, name in ((Share(), "no share"), (Share(MINIMUM), f"min_share {MINIMUM}")):
        for flood in (0, 400, 2_000, 10_000):
            rates = [hit_rate(prompts, Pool(POOL, policy, {"worker": share}), flood) for policy in EvictionPolicy]
            print(f"{name + ', ' + format(flood, ','):<38}" + "".join(f"{rate:>9.2%}" for rate in rates), flush=True)
    rates = [hit_rate(prompts, Pool(promised, policy, {}), 0) for policy in EvictionPolicy]
    print(f"{f'alone in a pool of {promised:,}':<38}" + "".join(f"{rate:>9.2%}" for rate in rates))


if __name__ == "__main__":
    main()
