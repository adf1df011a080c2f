"""How fast the CPU kernels are, beside what the machine can do: `python benchmarks/kernels.py [--threads N]`.

Prints tables in 80 columns. An operation is a multiplication or an addition; GB/s count the weights, or the keys
and values, that must be read once. Weights come cold from memory, as a model's layers do, and so do the keys and
values of shared prefixes; other attention is the best of several runs over the same cache.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable

import numpy as np

from pageinn.kernels.backend import F32, I32, PARTITION, LayerStore, PackedLinear
from pageinn.kernels.cpu import CpuBackend
from pageinn.kernels.slots import STORE_DTYPES, quantise
from pageinn.store.kv_store import KVStore
from yardsticks import best_seconds, show_yardsticks

#: The layers of SmolLM2-135M, inputs x outputs: gate or up, down, and the head that gives logits.
SHAPES = {
    (576, 1536): (1, 4, 16, 64, 256, 1024),
    (1536, 576): (1, 4, 16, 64, 256, 1024),
    (576, 49152): (1, 16),
}
HEADS, KV_HEADS, SIZE, BLOCK = 9, 3, 64, 16
#: More weights than the last-level cache holds are passed in turn, as a model's layers are.
COLD_BYTES = 96 << 20


def mean_seconds(call: Callable[[int], object], at_least: float = 0.15) -> float:
    """Seconds per call over a run of calls, for calls that must not find their weights in a cache."""
    call(0)
    count, begin = 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < at_least:
        count += 1
        call(count)
    return spent / count


def show_linear(backend: CpuBackend, rng: np.random.Generator) -> None:
    print(f"{'linear':<10}{'inputs':>8}{'outputs':>9}{'rows':>6}{'microsec':>15}{'GOP/s':>10}{'weight GB/s':>14}")
    for (inputs, outputs), row_counts in SHAPES.items():
        weight = rng.standard_normal((outputs, inputs), dtype=np.float32)
        for weight_format in ("int8", "float32"):
            first = backend.pack_linear(weight, weight_format)
            copies = max(1, COLD_BYTES // first.nbytes)
            packed = [first, *(backend.pack_linear(weight, weight_format) for _ in range(copies - 1))]
            for rows in row_counts:
                x = rng.standard_normal((rows, inputs), dtype=np.float32)
                out = np.empty((rows, outputs), np.float32)

                def call(count: int, x: F32 = x, out: F32 = out, packed: list[PackedLinear] = packed) -> None:
                    backend.linear(x, packed[count % len(packed)], out)

                seconds = mean_seconds(call)
                rates = f"{2 * rows * inputs * outputs / seconds / 1e9:10.1f}{first.nbytes / seconds / 1e9:14.1f}"
                print(f"{weight_format:<10}{inputs:>8}{outputs:>9}{rows:>6}{seconds * 1e6:>15.1f}{rates}")
    print()


def show_attention(backend: CpuBackend, rng: np.random.Generator) -> None:
    print(f"{'attention':<10}{'sequences':>10}{'queries':>9}{'context':>9}{'microsec':>15}{'GOP/s':>10}{'GB/s':>9}")
    for dtype in STORE_DTYPES:
        for sequences, queries, context in ((1, 256, 1024), (1, 1, 4096), (16, 1, 4096)):
            per_sequence = context // BLOCK
            tables = rng.permutation(sequences * per_sequence).astype(np.int32).reshape(sequences, per_sequence)
            store = random_store(backend, rng, tables.size, dtype)
            q = rng.standard_normal((sequences * queries, HEADS, SIZE), dtype=np.float32)
            out = np.empty_like(q)
            starts = np.arange(sequences + 1, dtype=np.int32) * queries
            contexts = np.full(sequences, context, np.int32)
            attend = functools.partial(backend.attention, q, store, tables, starts, contexts, SIZE**-0.5, out)
            seconds = best_seconds(lambda _, attend=attend: attend())  # type: ignore[misc]  # a default's type
            seen = sum(range(context - queries + 1, context + 1)) * sequences
            rates = f"{4 * seen * HEADS * SIZE / seconds / 1e9:10.1f}"
            rates += f"{(store.keys.nbytes + store.values.nbytes) / seconds / 1e9:9.1f}"
            print(f"{dtype:<10}{sequences:>10}{queries:>9}{context:>9}{seconds * 1e6:>15.1f}{rates}")
    print()


def show_store_dtypes(backend: CpuBackend, rng: np.random.Generator) -> None:
    """One token for each user at a context of 4,096, through caches that are cold, as those of a model's layers are.

    The dtypes take turns, so that each pair met the same machine; the ratio is the median over the pairs.
    """
    context, pairs = 4096, 15
    print(f"{'decode':<10}{'users':>7}{'context':>9}{'microsec, least':>17}{'median':>10}{'to bfloat16':>13}")
    for users in (1, 16):
        tables = rng.permutation(users * context // BLOCK).astype(np.int32).reshape(users, -1)
        layers = {dtype: cold_stores(backend, rng, tables.size, dtype) for dtype in STORE_DTYPES}
        q = rng.standard_normal((users, HEADS, SIZE), dtype=np.float32)
        out, starts, contexts = (
            np.empty_like(q),
            np.arange(users + 1, dtype=np.int32),
            np.full(users, context, np.int32),
        )
        seconds: dict[str, list[float]] = {dtype: [] for dtype in layers}
        for _ in range(pairs):
            for dtype, stores in layers.items():
                begin = time.perf_counter()
                for store in stores:
                    backend.attention(q, store, tables, starts, contexts, SIZE**-0.5, out)
                seconds[dtype].append((time.perf_counter() - begin) / len(stores))
        for dtype, spent in seconds.items():
            ratio = statistics.median(mine / other for mine, other in zip(spent, seconds["bfloat16"], strict=True))
            figures = f"{min(spent) * 1e6:>17.0f}{statistics.median(spent) * 1e6:>10.0f}{ratio:>13.2f}"
            print(f"{dtype:<10}{users:>7}{context:>9}{figures}")
    print()


def cold_stores(backend: CpuBackend, rng: np.random.Generator, blocks: int, dtype: str) -> list[LayerStore]:
    """As many copies of a layer as the last-level cache does not hold."""
    first = random_store(backend, rng, blocks, dtype)
    copies = COLD_BYTES // (first.keys.nbytes + first.values.nbytes)
    return [first, *(first._replace(keys=first.keys.copy(), values=first.values.copy()) for _ in range(copies))]


def show_shared_prefixes(threads: int | None, rng: np.random.Generator) -> None:
    """Decodes with 32 to 400 tokens of their own behind a prefix that they share: read once for all, and apart."""
    backends = [CpuBackend(threads=threads, share_prefixes=share) for share in (True, False)]
    print(f"{'prefix':<10}{'sequences':>10}{'shared':>9}{'once, microsec':>18}{'apart, microsec':>18}{'ratio':>10}")
    for dtype in ("bfloat16", "float32"):
        for sequences, shared in ((8, 4096), (16, 4096), (64, 1536), (16, PARTITION)):
            contexts = (shared + rng.integers(32, 401, sequences)).astype(np.int32)
            tables = shared_tables(rng, sequences, shared // BLOCK, 400 // BLOCK + 1)
            layers = cold_stores(backends[0], rng, int(tables.max()) + 1, dtype)
            q = rng.standard_normal((sequences, HEADS, SIZE), dtype=np.float32)
            out, starts = np.empty_like(q), np.arange(sequences + 1, dtype=np.int32)
            seconds: list[list[float]] = [[], []]
            for _ in range(7):
                for backend, spent in zip(backends, seconds, strict=True):
                    begin = time.perf_counter()
                    for layer in layers:
                        backend.attention(q, layer, tables, starts, contexts, SIZE**-0.5, out)
                    spent.append((time.perf_counter() - begin) / len(layers))
            once, apart = (statistics.median(spent) for spent in seconds)
            figures = f"{once * 1e6:>18.1f}{apart * 1e6:>18.1f}{apart / once:>10.2f}"
            print(f"{dtype:<10}{sequences:>10}{shared:>9}{figures}")
    print()


def shared_tables(rng: np.random.Generator, sequences: int, shared: int, own: int) -> I32:
    """Block tables that begin with the same blocks, all in random order."""
    blocks = rng.permutation(shared + sequences * own).astype(np.int32)
    prefix = np.broadcast_to(blocks[:shared], (sequences, shared))
    return np.concatenate([prefix, blocks[shared:].reshape(sequences, own)], axis=1)


def random_store(backend: CpuBackend, rng: np.random.Generator, blocks: int, dtype: str) -> LayerStore:
    """Unit normal keys and values, those of eight bits as spread over their numbers as a quantised normal is."""
    shape = {"layers": 1, "kv_heads": KV_HEADS, "head_dim": SIZE, "block_size": BLOCK}
    store = KVStore(**shape, blocks=blocks, dtype=dtype, pairs=backend.pairs).layer(0)
    ones = np.ones(1, np.float32)
    for slots, scales in ((store.keys, store.key_scales), (store.values, store.value_scales)):
        numbers = rng.standard_normal((1, slots.size), dtype=np.float32)
        quantised = quantise(numbers, dtype, ones)
        slots[:] = quantised.slots.reshape(slots.shape)
        if quantised.scales is not None and scales is not None:
            scales[:] = quantised.scales
    return store


def show_small_calls(backend: CpuBackend) -> None:
    x, weight, out = np.ones((1, 576), np.float32), np.ones(576, np.float32), np.empty((1, 576), np.float32)
    seconds = best_seconds(lambda _: backend.rms_norm(x, weight, 1e-5, out))
    print(f"one rms_norm of 576 {seconds * 1e6:51.1f} microseconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, help="threads of the backend (default: all cores)")
    threads = parser.parse_args().threads
    backend = CpuBackend(threads=threads)
    rng = np.random.default_rng(0)
    print(f"cpu backend, {backend.isa}, {backend.threads} threads\n")
    show_yardsticks()
    show_linear(backend, rng)
    show_attention(backend, rng)
    show_store_dtypes(backend, rng)
    show_shared_prefixes(threads, rng)
    show_small_calls(backend)


if __name__ == "__main__":
    main()
