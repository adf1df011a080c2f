"""What the kernel tests share: backends, and sequences laid out in the blocks of a store."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pageinn.kernels.backend import F32, I32, Backend, LayerStore
from pageinn.kernels.cpu import CpuBackend
from pageinn.kernels.reference import ReferenceBackend, write_slot
from pageinn.kernels.slots import SCALE_DTYPES, STORE_DTYPES, Scales

DTYPES = list(STORE_DTYPES)
#: Kinds of stores: of a dtype, or of bfloat16 in pairs, which only some instruction sets attend to.
PAIRS = "bfloat16_pairs"
KINDS = [*DTYPES, PAIRS]
REFERENCE = ReferenceBackend()
EPSILON = 2.0**-24  # unit roundoff of float32


@functools.cache
def cpu(isa: str, threads: int, share_prefixes: bool = True) -> CpuBackend:
    """A backend kept for the whole run, so that tests do not start threads all the time."""
    return CpuBackend(threads=threads, isa=isa, share_prefixes=share_prefixes)


def skip_without(isa: str, kind: str) -> None:
    """Skip a test of a kind of store that an instruction set does not attend to."""
    if kind == PAIRS and not cpu(isa, 1).pairs:
        pytest.skip(f"{isa} attends to no store in pairs")


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.standard_normal(shape, dtype=np.float32)


def same_bits(left: NDArray[Any], right: NDArray[Any]) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


@dataclass(frozen=True)
class Heads:
    """Query heads, key-value heads and their size."""

    query: int
    kv: int
    size: int


@dataclass(frozen=True)
class Text:
    """All queries [n, H, D], keys [n, G, D] and values [n, G, D] of one sequence of n tokens."""

    q: F32
    k: F32
    v: F32


def random_text(rng: np.random.Generator, heads: Heads, tokens: int) -> Text:
    return Text(
        normal(rng, tokens, heads.query, heads.size),
        normal(rng, tokens, heads.kv, heads.size),
        normal(rng, tokens, heads.kv, heads.size),
    )


def empty_store(heads: Heads, blocks: int, block_size: int, kind: str, fill: float = np.nan) -> LayerStore:
    """A store full of `fill`: by default poison that any slot read by mistake would spread."""
    dtype = "bfloat16" if kind == PAIRS else kind
    raw, kept = STORE_DTYPES[dtype]
    keys = np.empty((blocks, heads.kv, heads.size, block_size), raw)
    values = np.empty((blocks, heads.kv, block_size, heads.size), raw)
    scales: list[NDArray[Any] | None] = [None, None]
    if kept is Scales.HEAD:
        scales = [np.ones(heads.kv, np.float32), np.ones(heads.kv, np.float32)]
    elif kept is Scales.TOKEN:
        scales = [np.empty((blocks, heads.kv, block_size), SCALE_DTYPES[kept]) for _ in range(2)]
    store = LayerStore(keys, values, dtype, *scales, pairs=kind == PAIRS)
    token = np.full((heads.kv, heads.size), fill, np.float32)
    for offset in range(block_size):
        write_slot(store, slice(None), offset, token, token)
    return store


def lay_out(store: LayerStore, text: Text, table: I32) -> None:
    """Write a text's keys and values to the slots that its block table names."""
    block_size = store.keys.shape[3]
    for token, (key, value) in enumerate(zip(text.k, text.v, strict=True)):
        block, offset = table[token // block_size], token % block_size
        write_slot(store, int(block), offset, key, value)


@dataclass(frozen=True)
class Rows:
    """Tokens [begin, end) of one text, as a step computes them."""

    text: Text
    table: I32
    begin: int
    end: int


def attend(backend: Backend, store: LayerStore, step: list[Rows]) -> list[F32]:
    """One call of attention for several sequences; the output rows of each."""
    width = max(len(rows.table) for rows in step)
    tables = np.zeros((len(step), width), np.int32)
    for row, rows in enumerate(step):
        tables[row, : len(rows.table)] = rows.table
    starts = np.cumsum([0, *(rows.end - rows.begin for rows in step)], dtype=np.int32)
    contexts = np.array([rows.end for rows in step], np.int32)
    q = np.concatenate([rows.text.q[rows.begin : rows.end] for rows in step])
    out = np.full_like(q, np.nan)
    backend.attention(q, store, tables, starts, contexts, q.shape[2] ** -0.5, out)
    return np.split(out, starts[1:-1])


def attend_in_chunks(backend: Backend, store: LayerStore, text: Text, table: I32, cuts: list[int]) -> F32:
    """A whole text's attention, computed in chunks that begin at 0 and at every cut."""
    edges = [0, *sorted(set(cuts)), len(text.q)]
    chunks = [Rows(text, table, left, right) for left, right in itertools.pairwise(edges)]
    return np.concatenate([attend(backend, store, [chunk])[0] for chunk in chunks])
