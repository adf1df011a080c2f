"""How a step's time grows with batch and context, beside its floor: `python benchmarks/growth.py [--plot FILE]`.

Steps of the default model through the decoder, tables of distinct blocks, no Python of the engine around them: one
token for each of 1 to 64 sequences at a context of 512; one token of one sequence and of eight, and a prefill chunk of
256, at contexts of 128 to 8,000. The floor is the longer of two times: that of the operations, linear layers at the
rate that the kernel reaches at 1,024 rows and attention at numpy's float32 product, and that of the bytes of weights,
keys and values, each read once at the memory's pace.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pageinn.engine.default_model import default_model
from pageinn.kernels.cpu import CpuBackend
from pageinn.kernels.slots import quantise
from pageinn.model.decoder import Batch, Decoder
from pageinn.store.kv_store import KVStore
from yardsticks import best_seconds, product_rate, read_rate

BLOCK, CHUNK = 16, 256
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 256, 512, 1000, 2000, 4000, 8000)
MIDDLE = 512


class Point(NamedTuple):
    """A step of `batch` sequences of `rows` tokens each that end at `context`, in seconds."""

    line: str
    batch: int
    rows: int
    context: int
    seconds: float
    operations_floor: float
    bytes_floor: float

    @property
    def floor(self) -> float:
        return max(self.operations_floor, self.bytes_floor)


class Rates(NamedTuple):
    """Of this machine, a second: operations of linear layers and of attention, bytes from memory."""

    linear: float
    attention: float
    bytes: float


class Bench:
    """A decoder and a cache of random keys and values, in which every sequence has blocks of its own."""

    def __init__(self, threads: int | None) -> None:
        backend = CpuBackend(threads)
        self.decoder = Decoder.load(default_model(), backend, max_tokens=1024)
        config = self.decoder.config
        per_layer = config.hidden_size * (2 * config.q_size + 2 * config.kv_size + 3 * config.intermediate_size)
        self.weights = config.num_layers * per_layer
        self.head = config.hidden_size * config.vocab_size
        weights = self.decoder.weights
        packed = [one for layer in weights.layers for one in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        self.weight_bytes = weights.head.nbytes + sum(one.nbytes for one in packed)
        self.bytes_per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 2
        self.per_key = 4 * config.num_layers * config.num_heads * config.head_dim
        slots = max(max(BATCHES) * MIDDLE, 8 * max(CONTEXTS))
        self.store = KVStore(
            layers=config.num_layers,
            blocks=slots // BLOCK,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            block_size=BLOCK,
            dtype="bfloat16",
            pairs=self.decoder.backend.pairs,
        )
        self.rng = np.random.default_rng(0)
        for slots in (self.store.keys, self.store.values):
            # Written, and by layer: pages that never were are one page of zeros, which stays in the cache.
            numbers = self.rng.standard_normal((1, slots[0].size), dtype=np.float32)
            slots[:] = quantise(numbers, "bfloat16", np.ones(1, np.float32)).slots.reshape(slots[0].shape)
        self.rates = Rates(self._linear_rate(), product_rate(), read_rate())

    def _linear_rate(self) -> float:
        """Gate or up of one layer at 1,024 rows."""
        config, backend = self.decoder.config, self.decoder.backend
        weight = self.rng.standard_normal((config.intermediate_size, config.hidden_size), dtype=np.float32)
        packed = backend.pack_linear(weight, "int8")
        x = self.rng.standard_normal((1024, config.hidden_size), dtype=np.float32)
        out = np.empty((1024, config.intermediate_size), np.float32)
        return 2 * 1024 * weight.size / best_seconds(lambda _: backend.linear(x, packed, out))

    def point(self, line: str, batch: int, rows: int, context: int) -> Point:
        """Earlier positions of each sequence hold the random keys and values."""
        per_sequence = -(-context // BLOCK)
        tables = self.rng.permutation(batch * per_sequence).astype(np.int32).reshape(batch, per_sequence)
        positions = np.arange(context - rows, context, dtype=np.int32)
        slots = tables[:, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK
        starts = np.arange(batch + 1, dtype=np.int32) * rows
        step = Batch(
            self.rng.integers(300, 49000, batch * rows, dtype=np.int32),
            np.tile(positions, batch),
            slots.reshape(-1),
            tables,
            starts,
            np.full(batch, context, np.int32),
            starts[1:] - 1,
        )
        seconds = best_seconds(lambda _: self.decoder.forward(step, self.store), 0.5)
        keys = batch * sum(range(context - rows + 1, context + 1))
        operations = (
            2 * (batch * rows * self.weights + batch * self.head) / self.rates.linear
            + keys * self.per_key / self.rates.attention
        )
        read = self.weight_bytes + batch * context * self.bytes_per_token
        return Point(line, batch, rows, context, seconds, operations, read / self.rates.bytes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, metavar="N", help="compute threads (default: one per core)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all points here")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them here (needs matplotlib)")
    args = parser.parse_args()
    bench = Bench(args.threads)
    linear, attention, memory = bench.rates
    print(
        f"linear layers {linear / 1e9:.0f} GOP/s, float32 product {attention / 1e9:.0f} GFLOP/s, "
        f"memory {memory / 1e9:.0f} GB/s\n"
    )
    print(f"{'':<22}{'batch':>6}{'rows':>6}{'context':>9}{'ms':>9}{'operations':>12}{'bytes':>8}{'times':>8}")
    points = []
    for line, batch, rows, context in cases():
        points.append(bench.point(line, batch, rows, context))
        show(points[-1])
    if args.json:
        args.json.write_text(json.dumps([point._asdict() for point in points], indent=1))
    if args.plot:
        plot(points, args.plot)
    return 0


def cases() -> list[tuple[str, int, int, int]]:
    return [
        *(("decode by batch", batch, 1, MIDDLE) for batch in BATCHES),
        *(("decode of one", 1, 1, context) for context in CONTEXTS),
        *(("decode of eight", 8, 1, context) for context in CONTEXTS),
        *((f"prefill of {CHUNK}", 1, CHUNK, context) for context in CONTEXTS if context >= CHUNK),
    ]


def show(point: Point) -> None:
    print(
        f"{point.line:<22}{point.batch:>6}{point.rows:>6}{point.context:>9}{1e3 * point.seconds:>9.2f}"
        f"{1e3 * point.operations_floor:>12.2f}{1e3 * point.bytes_floor:>8.2f}{point.seconds / point.floor:>8.2f}",
        flush=True,
    )


def plot(points: list[Point], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for line, found in itertools.groupby(points, lambda point: point.line):
        mine = list(found)
        by_batch = line == "decode by batch"
        axes = left if by_batch else right
        across = [point.batch if by_batch else point.context for point in mine]
        drawn = axes.plot(across, [1e3 * point.seconds for point in mine], marker="o", label=line)
        color = drawn[0].get_color()
        axes.plot(across, [1e3 * point.operations_floor for point in mine], "--", color=color, linewidth=1)
        axes.plot(across, [1e3 * point.bytes_floor for point in mine], ":", color=color, linewidth=1)
    left.set(xlabel=f"sequences, at a context of {MIDDLE}", ylabel="milliseconds a step")
    right.set(xlabel="context", title="dashed: operations, dotted: bytes", yscale="log")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
