"""How fast the prefix tree matches, grows and evicts: a 32k-token prompt in a tree of a million tokens.

Run: .venv/bin/python benchmarks/tree.py
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from statistics import median

from pageinn.memory.manager import MemoryManager
from pageinn.memory.scopes import DEFAULT, PUBLIC
from pageinn.memory.tokens import pack

BLOCK = 16
SHARED, OWN = 16 * 1024, 16 * 1024
PATH_NODES, FAN_OUT = 16, 1000
TREE_TOKENS = 1_000_000
ROUNDS = 101
CHUNK = 256
VOCABULARY = 32_000

_rng = random.Random(7)


def tokens(count: int) -> list[int]:
    return _rng.choices(range(VOCABULARY), k=count)


def median_us(act: Callable[[object], object], arguments: Iterable[object]) -> float:
    """The median of one timed call for each argument, in microseconds."""
    spent = []
    for argument in arguments:
        begin = time.perf_counter_ns()
        act(argument)
        spent.append(time.perf_counter_ns() - begin)
    return median(spent) / 1e3


def store(manager: MemoryManager, prompt: bytes, scope: object = DEFAULT) -> None:
    """Run a prompt through the manager, so that its blocks end up kept."""
    sequence = manager.admit(scope, prompt)
    manager.mark_stored(sequence, sequence.num_tokens)
    manager.release(sequence)


def grow_tree(manager: MemoryManager, shared: list[int], total: int) -> None:
    """A path cut into nodes by branches, a fan-out at its end, and unrelated prompts up to `total` tokens."""
    store(manager, pack(shared))
    step = SHARED // PATH_NODES
    for cut in range(step, SHARED, step):
        store(manager, pack(shared[:cut] + tokens(BLOCK)))
    for _ in range(FAN_OUT):
        store(manager, pack(shared + tokens(8 * BLOCK)))
    while (manager.tree.num_kept + 64) * BLOCK < total:
        store(manager, pack(tokens(64 * BLOCK)))


def path_nodes(manager: MemoryManager, prompt: bytes) -> tuple[int, int]:
    """How many nodes a match goes through, and the largest number of children among them."""
    node, count, widest = manager.match(DEFAULT, prompt).place.node, 0, 0
    while node.parent is not None:
        widest, count, node = max(widest, len(node.children)), count + 1, node.parent
    return count, widest


def row(what: str, value: float, limit: str = "") -> None:
    print(f"{what:<58}{value:>10.1f} us{limit:>9}")


def measure_prompt(manager: MemoryManager, shared: list[int]) -> None:
    lists = [shared + tokens(OWN) for _ in range(ROUNDS)]
    row("pack 32k token ids, once at arrival", median_us(pack, lists[:21]))
    prompts = [pack(ids) for ids in lists]
    row("match, 16k of 32k in the tree", median_us(lambda p: manager.match(DEFAULT, p), prompts), "< 50")

    admit, mark, extend, warm, release = [], [], [], [], []
    grow = manager.tree.extend

    def timed_extend(*arguments: object) -> object:
        begin = time.perf_counter_ns()
        result = grow(*arguments)
        extend.append(time.perf_counter_ns() - begin)
        return result

    manager.tree.extend = timed_extend
    for prompt in prompts:
        begin = time.perf_counter_ns()
        sequence = manager.admit(DEFAULT, prompt)
        admit.append(time.perf_counter_ns() - begin)
        begin = time.perf_counter_ns()
        manager.mark_stored(sequence, sequence.num_tokens)
        mark.append(time.perf_counter_ns() - begin)
        begin = time.perf_counter_ns()
        match = manager.match(DEFAULT, prompt)
        warm.append(time.perf_counter_ns() - begin)
        assert manager.matched_tokens(match) == SHARED + OWN
        begin = time.perf_counter_ns()
        manager.release(sequence)
        release.append(time.perf_counter_ns() - begin)
    manager.tree.extend = grow
    row("match, all 32k in the tree", median(warm) / 1e3, "< 50")
    row("insert 16k computed tokens: tree.extend", median(extend) / 1e3)
    row("insert 16k computed tokens: manager.mark_stored", median(mark) / 1e3, "< 150")
    row("admit: match, pin, table of 2,048 blocks, some evicted", median(admit) / 1e3)
    row("release: unpin the path", median(release) / 1e3)


def measure_chunks(manager: MemoryManager, shared: list[int]) -> None:
    """The same insertion as an engine does it, 256 tokens a step: the edge grows in place."""
    spent = []
    for _ in range(21):
        sequence = manager.admit(DEFAULT, pack(shared + tokens(OWN)))
        begin = time.perf_counter_ns()
        for end in range(SHARED + CHUNK, SHARED + OWN + 1, CHUNK):
            manager.mark_stored(sequence, end)
        spent.append(time.perf_counter_ns() - begin)
        manager.release(sequence)
    row(f"the same in {OWN // CHUNK} chunks of {CHUNK} tokens, all together", median(spent) / 1e3)


def measure_eviction(leaves: int, siblings: int) -> None:
    """Evict block by block from a tree of so many leaves of two blocks, in families of so many."""
    manager = MemoryManager(3 * leaves + leaves // siblings, BLOCK)
    for _ in range(leaves // siblings):
        head = tokens(BLOCK) if siblings < leaves else []
        for _ in range(siblings):
            store(manager, pack(head + tokens(2 * BLOCK)))
    what = f"evict a block, {manager.tree.num_nodes:>6,} nodes, {siblings:>6,} siblings"
    row(what, median_us(manager.tree.evict, [1] * 2000))


def measure_long_edges() -> None:
    """Evict from leaves of 16k tokens: taking a block off an edge copies the rest of its tokens."""
    manager = MemoryManager(64 * OWN // BLOCK, BLOCK)
    for _ in range(64):
        store(manager, pack(tokens(OWN)))
    row("evict a block off a leaf of up to 16k tokens", median_us(manager.tree.evict, [1] * 2000))


def main() -> None:
    manager = MemoryManager(TREE_TOKENS // BLOCK + 4 * (SHARED + OWN) // BLOCK, BLOCK)
    shared = tokens(SHARED)
    grow_tree(manager, shared, TREE_TOKENS)
    count, widest = path_nodes(manager, pack(shared + tokens(OWN)))
    print(f"{manager.tree.num_kept * BLOCK:,} tokens in {manager.tree.num_nodes:,} nodes;", end=" ")
    print(f"{count} nodes on the path, {widest:,} children at its end")
    measure_prompt(manager, shared)
    store(manager, pack(tokens(BLOCK)), PUBLIC)
    prompts = [pack(shared + tokens(OWN)) for _ in range(ROUNDS)]
    row("match, 16k of 32k, public prefixes beside it", median_us(lambda p: manager.match(DEFAULT, p), prompts))
    measure_chunks(manager, shared)
    manager.check()
    for leaves in (1_000, 8_000, 64_000):
        measure_eviction(leaves, 8)
    for leaves in (1_000, 8_000, 64_000):
        measure_eviction(leaves, leaves)
    measure_long_edges()


if __name__ == "__main__":
    main()
