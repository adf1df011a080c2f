"""What the machine can do at best: a float32 matrix product and a memory read, both by numpy on all its threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from os import sched_getaffinity

import numpy as np


def best_seconds(call: Callable[[int], object], at_least: float = 0.15) -> float:
    """The fastest single call, over at least this many seconds of calls; the argument counts them."""
    call(0)
    best, count, end = float("inf"), 1, time.perf_counter() + at_least
    while time.perf_counter() < end or count < 4:
        begin = time.perf_counter()
        call(count)
        best = min(best, time.perf_counter() - begin)
        count += 1
    return best


def product_rate() -> float:
    """Operations a second of numpy's float32 product of 1024 x 1024 by 1024 x 1024."""
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((1024, 1024), dtype=np.float32) for _ in range(2))
    return 2 * 1024**3 / best_seconds(lambda _: left @ right)


def read_rate() -> float:
    """Bytes a second that one numpy sum a thread reads of 256 MiB."""
    threads = len(sched_getaffinity(0))
    parts = np.array_split(np.ones(256 << 17, np.float64), threads)
    with ThreadPoolExecutor(threads) as pool:
        seconds = best_seconds(lambda _: list(pool.map(np.sum, parts)))
    return sum(part.nbytes for part in parts) / seconds


def show_yardsticks() -> None:
    """Print both."""
    print(f"numpy float32 product 1024 x 1024 x 1024 {product_rate() / 1e9:12.0f} GFLOP/s")
    threads = len(sched_getaffinity(0))
    print(f"memory read by {threads} threads (numpy sum of 256 MiB) {read_rate() / 1e9:8.0f} GB/s\n")
