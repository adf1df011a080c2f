"""Which eviction policy keeps what comes again: hit rates of the real memory manager on real traces, resampled.

Run: .venv/bin/python benchmarks/eviction.py DATA [WORKLOAD ...]

DATA is a folder with mooncake/, claude_code/ and miniswe/ (see benchmarks/traces.py). A figure is the share of the
prompts' blocks that were found, after the first tenth of the requests.
"""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path

from pageinn.memory.eviction import EvictionPolicy
from pageinn.memory.manager import MemoryManager
from pageinn.memory.scopes import DEFAULT
from pageinn.memory.sequence import Sequence
from pageinn.memory.tokens import pack
from traces import Prompt, claude_code, miniswe, mooncake, with_unshared

#: Requests that run at the same time.
IN_FLIGHT = 8
WARM_UP = 0.1


def hit_rate(prompts: list[Prompt], blocks: int, policy: EvictionPolicy) -> float:
    """Replay prompts through a pool of so many blocks of one token."""
    manager = MemoryManager(blocks, 1, eviction_policy=policy)
    running: deque[Sequence] = deque()
    hits = total = 0
    for place, prompt in enumerate(prompts):
        if len(prompt) > blocks:
            continue
        packed = pack(prompt)
        match = manager.match(DEFAULT, packed)
        while len(running) >= IN_FLIGHT or not manager.can_admit(DEFAULT, match, len(prompt)):
            manager.release(running.popleft())
            match = manager.match(DEFAULT, packed)
        if place >= WARM_UP * len(prompts):
            hits += manager.matched_tokens(match)
            total += len(prompt)
        sequence = manager.admit(DEFAULT, packed, match)
        manager.mark_stored(sequence, len(prompt))
        running.append(sequence)
    return hits / total


def workloads(folder: Path) -> dict[str, tuple[list[Prompt], tuple[int, ...]]]:
    """Prompts and the sizes of the pool, in blocks of the trace."""
    sessions, agents = claude_code(folder, 30), miniswe(folder, 80)
    return {
        "mooncake": (mooncake(folder, 6), (1500, 4000, 10000, 20000)),
        "claude_code": (sessions, (4000, 10000, 25000)),
        "miniswe": (agents, (800, 1200, 2000)),
        "claude_code+unshared": (with_unshared(sessions, 10, 40), (4000, 10000, 25000)),
        "miniswe+unshared": (with_unshared(agents, 20, 8), (1500, 3000, 6000)),
    }


def main() -> None:
    """Print a row for each workload and pool."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print(f"{'workload':<22}{'requests':>9}{'pool':>7}" + "".join(f"{policy:>9}" for policy in EvictionPolicy))
    for name, (prompts, pools) in workloads(Path(sys.argv[1])).items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        for pool in pools:
            rates = "".join(f"{hit_rate(prompts, pool, policy):>9.2%}" for policy in EvictionPolicy)
            print(f"{name:<22}{len(prompts):>9}{pool:>7}{rates}", flush=True)


if __name__ == "__main__":
    main()
