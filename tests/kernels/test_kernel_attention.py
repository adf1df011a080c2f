"""Paged attention against the reference, and the bits of a query row whatever the cache and the batch do."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import (
    KINDS,
    PAIRS,
    REFERENCE,
    Heads,
    Rows,
    Text,
    attend,
    attend_in_chunks,
    cpu,
    empty_store,
    lay_out,
    normal,
    random_text,
    same_bits,
    skip_without,
)

from pageinn.kernels.backend import F32, PARTITION
from pageinn.kernels.reference import Slots, attend_part, merge_parts, partitions
from stored_values import gather

# Inputs are unit normal, so outputs are at most about 4. Scores of at most 128 products err by some 1e-5
# (absolute), which the exponential turns into a relative error of the weights; roundings of the sums are
# smaller.
TOLERANCE = 5e-5
# A weight that is rounded to bfloat16, and by such an error the other way, is off by 2**-8. Beside a key of weight 1, a
# weight w has the share w / (1 + w), whose slope is at most 4/9 where the step is 2**-8, from 1/2 on: 2**-8 * 4/9 times
# what two values differ by, at most 9.
ROUNDED_TOLERANCE = 0.016
ROUNDED = [kind for kind in KINDS if kind not in ("float32", "float16")]


def tolerance(kind: str) -> float:
    return ROUNDED_TOLERANCE if kind in ROUNDED else TOLERANCE


head_shapes = st.builds(
    lambda kv, group, size: Heads(kv * group, kv, size),
    kv=st.integers(1, 3),
    group=st.integers(1, 7),
    size=st.sampled_from([2, 8, 20, 36, 64, 80, 128]),
)


def table_for(rng: np.random.Generator, tokens: int, block_size: int, blocks: int) -> np.ndarray:
    return rng.permutation(blocks)[: -(-tokens // block_size)].astype(np.int32)


def as_torch_stores(vectors: torch.Tensor, kind: str) -> torch.Tensor:
    """Rounded to a dtype and back; for int8, by the definition of its scale, vector by vector."""
    if kind == "int8":
        exact = vectors.abs().amax(dim=-1, keepdim=True) / 127
        rounded = exact.bfloat16()
        scales = torch.where(rounded < exact, torch.nextafter(rounded, torch.full_like(rounded, torch.inf)), rounded)
        return (vectors / scales.float()).round() * scales.float()
    kinds = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
    return vectors.to(kinds.get(kind) or getattr(torch, kind.removesuffix("_pairs"))).float()


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_agrees_with_torch(kind: str) -> None:
    rng = np.random.default_rng(0)
    heads = Heads(6, 2, 32)
    text = random_text(rng, heads, 600)
    store = empty_store(heads, 60, 16, kind)
    table = table_for(rng, 600, 16, 60)
    lay_out(store, text, table)
    q, k, v = (torch.from_numpy(each).transpose(0, 1) for each in (text.q, text.k, text.v))
    k, v = (as_torch_stores(each, kind) for each in (k, v))
    q = q * np.float32(heads.size**-0.5)
    if kind in ROUNDED:
        q = q.bfloat16().float()
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=1.0)
    ours = attend(REFERENCE, store, [Rows(text, table, 0, 600)])[0]
    assert np.abs(ours - theirs.transpose(0, 1).numpy()).max() < tolerance(kind)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    heads=head_shapes,
    block_size=st.sampled_from([8, 16, 24, 32, 64]),
    shapes=st.lists(st.tuples(st.integers(0, 600), st.integers(1, 12)), min_size=1, max_size=4),
)
def test_attention_agrees_with_the_reference(
    isa: str, kind: str, seed: int, heads: Heads, block_size: int, shapes: list[tuple[int, int]]
) -> None:
    """Ragged batches of cached tokens and new ones, in shuffled blocks among poisoned slots."""
    skip_without(isa, kind)
    rng = np.random.default_rng(seed)
    blocks = sum(-(-sum(shape) // block_size) for shape in shapes) + 3
    store = empty_store(heads, blocks, block_size, kind)
    free, step = rng.permutation(blocks).astype(np.int32), []
    for cached, fresh in shapes:
        text = random_text(rng, heads, cached + fresh)
        table, free = np.split(free, [-(-(cached + fresh) // block_size)])
        lay_out(store, text, table)
        step.append(Rows(text, table, cached, cached + fresh))
    for ours, theirs in zip(attend(cpu(isa, 2), store, step), attend(REFERENCE, store, step), strict=True):
        assert np.abs(ours - theirs).max() < tolerance(kind)


@pytest.mark.parametrize("kind", ROUNDED)
def test_what_multiplies_bfloat16_and_eight_bits_is_rounded_as_the_reference_rounds_it(isa: str, kind: str) -> None:
    """Root mean squares of differences: without rounding weights, or queries, they would be a hundred times larger."""
    skip_without(isa, kind)
    rng = np.random.default_rng(0)
    heads = Heads(3, 1, 64)
    text = random_text(rng, heads, 1000)
    store = empty_store(heads, 63, 16, kind)
    table = table_for(rng, 1000, 16, 63)
    lay_out(store, text, table)
    step = [Rows(text, table, 700, 1000)]
    ours, theirs = attend(cpu(isa, 2), store, step)[0], attend(REFERENCE, store, step)[0]
    assert np.sqrt(np.mean((ours - theirs) ** 2)) < 2e-6
    exact = empty_store(heads, 63, 16, "float32")
    keys, values = gather(store, table, 1000)
    lay_out(exact, Text(text.q, keys.transpose(2, 0, 1), values.transpose(1, 0, 2)), table)
    assert np.sqrt(np.mean((ours - attend(REFERENCE, exact, step)[0]) ** 2)) > 1e-4


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    heads=head_shapes,
    tokens=st.integers(1, 700),
    cuts=st.lists(st.integers(1, 699), max_size=5),
    block_size=st.sampled_from([8, 16, 24, 64]),
)
def test_bits_do_not_depend_on_chunks_blocks_poison_or_threads(
    isa: str, kind: str, seed: int, heads: Heads, tokens: int, cuts: list[int], block_size: int
) -> None:
    skip_without(isa, kind)
    rng = np.random.default_rng(seed)
    text = random_text(rng, heads, tokens)
    blocks = -(-tokens // block_size) + 4
    plain = empty_store(heads, blocks, block_size, kind, fill=0)
    in_order = np.arange(blocks, dtype=np.int32)
    lay_out(plain, text, in_order)
    expected = attend_in_chunks(cpu(isa, 2), plain, text, in_order, [])

    cuts = [cut for cut in cuts if cut < tokens]
    assert same_bits(expected, attend_in_chunks(cpu(isa, 2), plain, text, in_order, cuts))
    assert same_bits(expected, attend_in_chunks(cpu(isa, 1), plain, text, in_order, []))
    poisoned = empty_store(heads, blocks, block_size, kind)
    table = table_for(rng, tokens, block_size, blocks)
    lay_out(poisoned, text, table)
    assert same_bits(expected, attend_in_chunks(cpu(isa, 3), poisoned, text, table, cuts))


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_the_block_size(isa: str, kind: str) -> None:
    skip_without(isa, kind)
    rng = np.random.default_rng(5)
    heads = Heads(9, 3, 64)
    text = random_text(rng, heads, 400)
    results = []
    for block_size in (8, 16, 24, 64, 256):
        store = empty_store(heads, 60, block_size, kind)
        table = table_for(rng, 400, block_size, 60)
        lay_out(store, text, table)
        results.append(attend_in_chunks(cpu(isa, 2), store, text, table, []))
    assert all(same_bits(results[0], other) for other in results[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_bits_of_a_decode_do_not_depend_on_the_batch(isa: str, kind: str) -> None:
    """A long sequence alone has its partitions shared out among threads; in a batch it does not."""
    skip_without(isa, kind)
    rng = np.random.default_rng(11)
    heads = Heads(9, 3, 64)
    lengths = [2500, 1, 256, 257, 255, 700, 1300, 31, 512, 900]
    store = empty_store(heads, sum(-(-n // 16) for n in lengths), 16, kind)
    free, step = rng.permutation(len(store.keys)).astype(np.int32), []
    for tokens in lengths:
        text = random_text(rng, heads, tokens)
        table, free = np.split(free, [-(-tokens // 16)])
        lay_out(store, text, table)
        step.append(Rows(text, table, tokens - 1, tokens))
    together = attend(cpu(isa, 2), store, step)
    for rows, expected in zip(step, together, strict=True):
        for threads in (1, 2, 3):
            assert same_bits(expected, attend(cpu(isa, threads), store, [rows])[0])
    # And beside a prefill chunk, in another order.
    mixed = [Rows(step[0].text, step[0].table, 2000, 2100), *reversed(step)]
    for expected, ours in zip(together, reversed(attend(cpu(isa, 2), store, mixed)), strict=False):
        assert same_bits(expected, ours)


@pytest.mark.parametrize("kind", KINDS)
def test_poison_in_a_later_token_of_the_same_chunk_does_not_reach_an_earlier_one(isa: str, kind: str) -> None:
    """Rows of one tile read keys together; a row must still not see a NaN that only its neighbour sees."""
    skip_without(isa, kind)
    rng = np.random.default_rng(2)
    heads = Heads(2, 1, 64)
    text = random_text(rng, heads, 40)
    store = empty_store(heads, 5, 8, kind)
    table = np.arange(5, dtype=np.int32)
    lay_out(store, text, table)
    expected = attend_in_chunks(cpu(isa, 2), store, text, table, [])
    text.k[21], text.v[21] = np.nan, np.nan
    lay_out(store, text, table)
    broken = attend_in_chunks(cpu(isa, 2), store, text, table, [])
    assert same_bits(expected[:21], broken[:21])
    assert np.isnan(broken[21:]).all()


def added_in_order(rounded: F32, stored: F32) -> np.float32:
    """The sum of products, each added to what is there without an intermediate rounding: 2n + 1 before 2n."""
    total = np.float32(0)
    for place in range(len(rounded)):
        # Exact in float64, so that it is rounded once.
        total = np.float32(np.float64(rounded[place ^ 1]) * np.float64(stored[place ^ 1]) + np.float64(total))
    return total


@pytest.mark.parametrize(("kind", "unit"), [("bfloat16", 1), (PAIRS, 1), ("fp8_e5m2", 2**-10)])
def test_of_two_neighbours_the_second_is_added_first(isa: str, kind: str, unit: float) -> None:
    """Keys are zero, so that every weight is 1 and an output is the sum of values / the number of keys. The other
    eight-bit stores have no two numbers of which one is lost beside the other."""
    skip_without(isa, kind)
    if isa == "portable":
        pytest.skip("portable rounds products before it adds them")
    rng = np.random.default_rng(12)
    heads, tokens = Heads(1, 1, 16), 8
    # Beside 2**24, a one is lost.
    v = rng.choice(np.array([1, 3, 2**24, -(2**24)], np.float32) * np.float32(unit), (tokens, 1, 16))
    text = Text(normal(rng, tokens, 1, 16), np.zeros((tokens, 1, 16), np.float32), v)
    store = empty_store(heads, 1, 8, kind)
    table = np.zeros(1, np.int32)
    lay_out(store, text, table)
    ours = attend(cpu(isa, 1), store, [Rows(text, table, tokens - 1, tokens)])[0]
    ones = np.ones(tokens, np.float32)
    sums = np.array([added_in_order(ones, v[:, 0, d]) for d in range(16)], np.float32)
    assert same_bits(ours[0, 0], sums / np.float32(tokens))
    in_order = np.array([added_in_order(ones, v[[1, 0, 3, 2, 5, 4, 7, 6], 0, d]) for d in range(16)], np.float32)
    assert not same_bits(sums, in_order), "values for which the order matters"


def test_q_may_be_a_view_into_qkv(isa: str) -> None:
    rng = np.random.default_rng(4)
    heads = Heads(4, 2, 16)
    text = random_text(rng, heads, 30)
    store = empty_store(heads, 4, 8, "float32")
    table = np.arange(4, dtype=np.int32)
    lay_out(store, text, table)
    expected = attend(cpu(isa, 2), store, [Rows(text, table, 0, 30)])[0]
    qkv = np.full((30, (4 + 2 * 2) * 16), np.nan, np.float32)
    qkv[:, :64] = text.q.reshape(30, 64)
    out = np.empty((30, 4, 16), np.float32)
    starts, contexts = np.array([0, 30], np.int32), np.array([30], np.int32)
    cpu(isa, 2).attention(qkv[:, :64].reshape(30, 4, 16), store, table[None], starts, contexts, 0.25, out)
    view = np.lib.stride_tricks.as_strided(qkv, (30, 4, 16), (qkv.strides[0], 64, 4))
    again = np.empty_like(out)
    cpu(isa, 2).attention(view, store, table[None], starts, contexts, 0.25, again)
    assert same_bits(expected, out)
    assert same_bits(expected, again)


def test_scores_far_apart_neither_overflow_nor_vanish(isa: str) -> None:
    """One key at score 400 among keys at -400, each in a partition of its own: its value is the answer."""
    heads = Heads(1, 1, 8)
    tokens = 3 * PARTITION
    k = np.full((tokens, 1, 8), -10, np.float32)
    v = np.ones((tokens, 1, 8), np.float32)
    for position in (0, PARTITION + 7, tokens - 1):
        k[:], v[:] = -10, 1
        k[position], v[position] = 10, 42
        text = Text(np.full((tokens, 1, 8), 14, np.float32), k, v)
        store = empty_store(heads, tokens // 8, 8, "float32")
        table = np.arange(tokens // 8, dtype=np.int32)
        lay_out(store, text, table)
        assert (attend(cpu(isa, 2), store, [Rows(text, table, tokens - 1, tokens)])[0] == 42).all()


def attend_with_partitions_from_the_chunk(text: Text, cuts: list[int]) -> F32:
    """The mistake that the contract forbids: the reference with partitions counted from the chunk's start."""
    edges, scale = [0, *cuts, len(text.q)], np.float32(text.q.shape[2] ** -0.5)
    ones = np.ones((text.k.shape[1], len(text.k)), np.float32)
    slots = Slots(text.k.transpose(1, 2, 0), text.v.transpose(1, 0, 2), ones, ones)
    rows = []
    for begin, end in itertools.pairwise(edges):
        for row in range(begin, end):
            q = text.q[row].reshape(text.k.shape[1], -1, text.q.shape[2]) * scale
            edges_of_row = [*partitions(0, begin), *partitions(begin, row + 1)]
            parts = [attend_part(q, slots.cut(*each), "float32") for each in edges_of_row]
            rows.append(merge_parts(parts).reshape(text.q.shape[1:]))
    return np.stack(rows)


def test_the_chunking_test_can_fail() -> None:
    """Partitions relative to the chunk break bit-identity; partitions from position 0 keep it."""
    rng = np.random.default_rng(9)
    heads = Heads(4, 2, 32)
    text = random_text(rng, heads, 500)
    whole = attend_with_partitions_from_the_chunk(text, [])
    chunked = attend_with_partitions_from_the_chunk(text, [100, 321])
    assert np.abs(whole - chunked).max() < TOLERANCE
    assert not same_bits(whole, chunked)

    store = empty_store(heads, 40, 16, "float32")
    table = table_for(rng, 500, 16, 40)
    lay_out(store, text, table)
    whole = attend_in_chunks(REFERENCE, store, text, table, [])
    assert same_bits(whole, attend_in_chunks(REFERENCE, store, text, table, [100, 321]))


@dataclass(frozen=True)
class Branch:
    """A sequence of a tree: it goes along with sequence `parent` for a number of blocks, and then on its own."""

    parent: int
    shared_blocks: int
    own_tokens: int
    queries: int


branches = st.builds(
    Branch, st.integers(0, 20), st.integers(0, 120), st.integers(1, 400), st.sampled_from([1, 1, 1, 3])
)


def grow_tree(rng: np.random.Generator, heads: Heads, block_size: int, kind: str, tree: list[Branch]) -> Any:
    """A store full of poison but for the tree's tokens, and a step that computes the last tokens of every branch."""
    blocks = sum(-(-branch.own_tokens // block_size) for branch in tree)
    store = empty_store(heads, blocks, block_size, kind)
    free, step = rng.permutation(blocks).astype(np.int32), list[Rows]()
    for branch in tree:
        parent = step[branch.parent % len(step)] if step else None
        shared = min(branch.shared_blocks, parent.end // block_size) if parent else 0
        own, free = np.split(free, [-(-branch.own_tokens // block_size)])
        table = np.concatenate([parent.table[:shared], own]) if parent else own
        text = random_text(rng, heads, branch.own_tokens)
        if parent:
            before = (getattr(parent.text, name)[: shared * block_size] for name in ("q", "k", "v"))
            text = Text(*(np.concatenate(pair) for pair in zip(before, (text.q, text.k, text.v), strict=True)))
        lay_out(store, text, table)
        tokens = len(text.q)
        step.append(Rows(text, table, max(0, tokens - branch.queries), tokens))
    return store, step


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    heads=st.sampled_from([Heads(9, 3, 64), Heads(2, 2, 20), Heads(7, 1, 8)]),
    block_size=st.sampled_from([8, 16, 24, 64]),
    trunk=st.integers(200, 1100),
    tree=st.lists(branches, min_size=1, max_size=12),
)
def test_bits_do_not_depend_on_who_shares_a_prefix(
    isa: str, kind: str, seed: int, heads: Heads, block_size: int, trunk: int, tree: list[Branch]
) -> None:
    """Trees of block tables, several levels deep, against every sequence alone; a neighbour's tail is poisoned too."""
    skip_without(isa, kind)
    rng = np.random.default_rng(seed)
    store, step = grow_tree(rng, heads, block_size, kind, [Branch(0, 0, trunk, 1), *tree])
    together = attend(cpu(isa, 2), store, step)
    apart = attend(cpu(isa, 3, share_prefixes=False), store, step)
    for rows, ours, others in zip(step, together, apart, strict=True):
        assert same_bits(ours, others)
        assert same_bits(ours, attend(cpu(isa, 1), store, [rows])[0])
    order = rng.permutation(len(step))
    again = attend(cpu(isa, 3), store, [step[i] for i in order])
    assert all(same_bits(together[i], ours) for i, ours in zip(order, again, strict=True))


@pytest.mark.parametrize("kind", ROUNDED)
def test_a_neighbour_on_a_shared_prefix_may_hold_poison(isa: str, kind: str) -> None:
    """Two sequences share 512 tokens; all that the second has of its own is NaN, its query included."""
    skip_without(isa, kind)
    rng = np.random.default_rng(3)
    heads = Heads(9, 3, 64)
    tree = [Branch(0, 0, 600, 1), Branch(0, 32, 90, 1), Branch(0, 32, 300, 1)]
    store, step = grow_tree(rng, heads, 16, kind, tree)
    expected = attend(cpu(isa, 2), store, step)
    for array in (step[1].text.q, step[1].text.k, step[1].text.v):
        array[512:] = np.nan
    lay_out(store, step[1].text, step[1].table)
    ours = attend(cpu(isa, 2), store, step)
    assert same_bits(ours[0], expected[0])
    assert same_bits(ours[2], expected[2])
    assert np.isnan(ours[1]).all()


def before_a_guard_page(array: np.ndarray) -> np.ndarray:
    """A copy of an array whose last byte is the last of a page, with a page behind it that must not be read."""
    page = mmap.PAGESIZE
    pages = -(-array.nbytes // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    copy = np.frombuffer(memory, array.dtype, array.size, pages * page - array.nbytes).reshape(array.shape)
    copy[:] = array
    guard = ctypes.addressof(ctypes.c_char.from_buffer(memory, pages * page))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    assert protect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0
    return copy


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_read_behind_the_store(isa: str, kind: str) -> None:
    """Rows take several vectors of keys at a time, also where a sequence has fewer and its block is the last one."""
    skip_without(isa, kind)
    rng = np.random.default_rng(8)
    for heads, block_size in itertools.product((Heads(1, 1, 64), Heads(3, 1, 20), Heads(6, 1, 64)), (8, 64)):
        text = random_text(rng, heads, 80)
        store = empty_store(heads, 80 // block_size + 1, block_size, kind)
        table = np.arange(len(store.keys), dtype=np.int32)[::-1].copy()
        names = ("keys", "values", "key_scales", "value_scales")
        guarded = {name: before_a_guard_page(array) for name in names if (array := getattr(store, name)) is not None}
        store = store._replace(**guarded)
        lay_out(store, text, table)
        # One token, and as many rows as have a copy made of what they read.
        for end, tokens in itertools.product((1, 8, 63, 80), (1, 24)):
            ours = attend(cpu(isa, 1), store, [Rows(text, table, max(end - tokens, 0), end)])[0]
            assert np.isfinite(ours).all()
