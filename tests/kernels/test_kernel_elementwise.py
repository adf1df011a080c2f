"""Norm, rotary and cache write, gated activation and block copies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import DTYPES, EPSILON, KINDS, PAIRS, REFERENCE, Heads, cpu, empty_store, normal, same_bits

from pageinn.kernels.backend import Backend, LayerStore
from pageinn.kernels.cpu import CpuBackend
from pageinn.kernels.reference import block_arrays
from pageinn.kernels.slots import plain_values

seeds = st.integers(0, 2**32)


@settings(max_examples=25, deadline=None)
@given(seed=seeds, rows=st.integers(1, 40), size=st.integers(1, 700))
def test_rms_norm_agrees_with_the_reference(isa: str, seed: int, rows: int, size: int) -> None:
    """Two sums of `size` squares in different orders, halved by the root, and five roundings after it."""
    rng = np.random.default_rng(seed)
    x, weight = normal(rng, rows, size), normal(rng, size)
    ours, theirs = np.empty_like(x), np.empty_like(x)
    cpu(isa, 2).rms_norm(x, weight, 1e-5, ours)
    REFERENCE.rms_norm(x, weight, 1e-5, theirs)
    assert (np.abs(ours - theirs) <= (size + 10) * EPSILON * np.abs(theirs)).all()
    one = int(rng.integers(rows))
    cpu(isa, 1).rms_norm(x[one : one + 1], weight, 1e-5, x[one : one + 1])
    assert same_bits(x[one], ours[one])


def test_rms_norm_of_the_reference_agrees_with_torch() -> None:
    rng = np.random.default_rng(0)
    x, weight = normal(rng, 5, 96), normal(rng, 96)
    out = np.empty_like(x)
    REFERENCE.rms_norm(x, weight, 1e-5, out)
    theirs = torch.nn.functional.rms_norm(torch.from_numpy(x), (96,), torch.from_numpy(weight), 1e-5)
    np.testing.assert_allclose(out, theirs.numpy(), rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(seed=seeds, rows=st.integers(1, 40), size=st.integers(1, 300), scale=st.sampled_from([1.0, 30.0]))
def test_silu_mul_agrees_with_float64(isa: str, seed: int, rows: int, size: int, scale: float) -> None:
    """exp errs by about 1e-7 relative, and three roundings follow."""
    rng = np.random.default_rng(seed)
    gate_up = normal(rng, rows, 2 * size) * np.float32(scale)
    out = np.empty((rows, size), np.float32)
    cpu(isa, 2).silu_mul(gate_up, out)
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=1)
    exact = gate / (1 + np.exp(-gate)) * up
    # Below e**-88 the exponential is clipped: what is left is smaller than any float32 that matters.
    assert (np.abs(out - exact) <= 6e-7 * np.abs(exact) + 1e-34).all()
    one = int(rng.integers(rows))
    alone = np.empty((1, size), np.float32)
    cpu(isa, 1).silu_mul(gate_up[one : one + 1], alone)
    assert same_bits(alone[0], out[one])


def test_silu_mul_at_the_edges(backend: CpuBackend) -> None:
    gate = np.array([-1e30, -200, -88.5, 0, 88.5, 200, 1e30, np.nan], np.float32)
    out = np.empty((1, 8), np.float32)
    backend.silu_mul(np.concatenate([gate, np.ones(8, np.float32)])[None], out)
    assert (np.abs(out[0, 1:3]) < 1e-34).all()
    assert (out[0, 3:6] == gate[3:6]).all()
    assert np.isnan(out[0, 7])
    reference = np.empty((1, 8), np.float32)
    REFERENCE.silu_mul(np.concatenate([gate, np.ones(8, np.float32)])[None], reference)
    np.testing.assert_allclose(out[0, 1:7], reference[0, 1:7], rtol=1e-6, atol=1e-34)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(
    seed=seeds,
    heads=st.builds(
        lambda kv, group, size: Heads(kv * group, kv, size),
        st.integers(1, 3),
        st.integers(1, 4),
        st.sampled_from([2, 16, 20, 64]),
    ),
    rows=st.integers(1, 40),
    partial=st.booleans(),
)
def test_rotary_write_agrees_with_the_reference(
    isa: str, kind: str, seed: int, heads: Heads, rows: int, partial: bool
) -> None:
    """The same three roundings per element: equal bits, and only the named slots written."""
    rng = np.random.default_rng(seed)
    half = max(1, heads.size // 4) if partial else heads.size // 2
    angles = normal(rng, 50, half)
    cos, sin = np.cos(angles), np.sin(angles)
    qkv = normal(rng, rows, (heads.query + 2 * heads.kv) * heads.size)
    positions = rng.integers(0, 50, rows).astype(np.int32)
    slots = rng.permutation(12 * 8)[:rows].astype(np.int64)
    slots[rng.random(rows) < 0.2] = -1

    def run(backend: Backend) -> tuple[np.ndarray, LayerStore]:
        mine, store = qkv.copy(), empty_store(heads, 12, 8, kind, fill=7)
        backend.rotary_write(mine, positions, cos, sin, heads.query, slots, store)
        return mine, store

    (ours, our_store), (theirs, their_store) = run(cpu(isa, 2)), run(REFERENCE)
    assert same_bits(ours, theirs)
    for array, other in zip(block_arrays(our_store), block_arrays(their_store), strict=True):
        assert same_bits(array, other)
    before = empty_store(heads, 12, 8, kind, fill=7)
    same = plain_values(before.values, before.pairs) == plain_values(our_store.values, before.pairs)
    others = np.setdiff1d(np.arange(12 * 8), slots)
    assert same.all(axis=(1, 3)).reshape(-1)[others].all()


def test_pairs_are_of_two_dimensions_of_a_key_and_of_two_tokens_of_a_value(backend: CpuBackend) -> None:
    """Token 5 of a block of 8, one head of 4: keys 1 to 4, values 5 to 8, whose bfloat16 is the upper half."""
    store = empty_store(Heads(1, 1, 4), 1, 8, PAIRS, fill=0)
    qkv = np.array([[0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]], np.float32)
    zero, slots = np.zeros(1, np.int32), np.array([5], np.int64)
    backend.rotary_write(qkv, zero, np.ones((1, 2), np.float32), np.zeros((1, 2), np.float32), 1, slots, store)
    raw = (qkv[0, 4:].view(np.uint32) >> 16).tolist()
    keys, values = np.zeros(32, np.uint16), np.zeros(32, np.uint16)
    keys[[10, 11, 26, 27]] = raw[:4]  # pairs of dimensions 0 and 1 take 16 numbers, token 5's are 10 and 11
    values[[17, 19, 21, 23]] = raw[4:]  # pairs of tokens 4 and 5 begin at 16, token 5's are the odd ones
    assert store.keys.reshape(-1).tolist() == keys.tolist()
    assert store.values.reshape(-1).tolist() == values.tolist()


def test_bfloat16_stores_round_ties_to_even_and_keep_nan(backend: CpuBackend) -> None:
    """Values whose dropped half is exactly a half, just below, just above, all ones, and NaN with only low bits."""
    bits = [0x3F818000, 0x3F808000, 0x3F807FFF, 0x3F808001, 0x7F7FFFFF, 0xFF800001, 0x7F800000, 0x80000000]
    qkv = np.zeros((1, 24), np.uint32).view(np.float32)
    qkv.view(np.uint32)[0, 16:] = bits
    store = empty_store(Heads(1, 1, 8), 1, 8, "bfloat16", fill=0)
    zero, slots = np.zeros(1, np.int32), np.zeros(1, np.int64)
    backend.rotary_write(qkv, zero, np.ones((1, 4), np.float32), np.zeros((1, 4), np.float32), 1, slots, store)
    rounded = [0x3F82, 0x3F80, 0x3F80, 0x3F81, 0x7F80, 0xFFC0, 0x7F80, 0x8000]
    assert store.values[0, 0, 0].tolist() == rounded


@settings(max_examples=25, deadline=None)
@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=64, max_size=64), exponent=st.integers(95, 150))
def test_float16_stores_round_as_torch_does(isa: str, bits: list[int], exponent: int) -> None:
    """Any float32 at all, and as many around float16's subnormals, ties and overflow; both backends, bit for bit."""
    anything = np.array(bits, np.uint32)
    # A few leading mantissa bits and zeros after them: ties are common.
    near = (anything & 0x80000000) | np.uint32(exponent << 23) | (anything & 0x7FF800)
    values = np.concatenate([anything, near, near - 1, near + 1]).view(np.float32)
    qkv = np.concatenate([np.zeros((len(values) // 8, 16), np.float32), values.reshape(-1, 8)], axis=1)
    ones, zeros = np.ones((1, 4), np.float32), np.zeros((1, 4), np.float32)
    positions, slots = np.zeros(len(qkv), np.int32), np.arange(len(qkv), dtype=np.int64)
    expected = torch.from_numpy(values).half().numpy().view(np.uint16)
    for backend in (cpu(isa, 1), REFERENCE):
        store = empty_store(Heads(1, 1, 8), len(qkv) // 8, 8, "float16", fill=0)
        backend.rotary_write(qkv.copy(), positions, ones, zeros, 1, slots, store)
        assert same_bits(store.values.view(np.uint16).ravel(), expected)


def test_every_float16_is_read_exactly(backend: CpuBackend) -> None:
    """One key each, so that an output is the value itself, whole vectors and their tails; infinities and NaN too."""
    every = np.arange(2**16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    for size in (8, 4):
        values = np.zeros((2**16 // size, 1, 8, size), np.float16)
        values[:, 0, 0] = every.reshape(-1, size)
        store = LayerStore(np.zeros((len(values), 1, size, 8), np.float16), values, "float16")
        q, out = np.zeros((len(values), 1, size), np.float32), np.empty((len(values), 1, size), np.float32)
        tables = np.arange(len(values), dtype=np.int32)[:, None]
        starts, contexts = np.arange(len(values) + 1, dtype=np.int32), np.ones(len(values), np.int32)
        backend.attention(q, store, tables, starts, contexts, 1.0, out)
        np.testing.assert_array_equal(out.ravel(), every.astype(np.float32))


def test_rotary_of_the_reference_is_the_rotation_of_pairs() -> None:
    """Dimension i and i + rotary/2 form a complex number that is multiplied by e**(i angle)."""
    rng = np.random.default_rng(3)
    angles = normal(rng, 10, 4)
    qkv = normal(rng, 6, 3 * 12)
    positions = np.arange(6, dtype=np.int32)
    store = empty_store(Heads(1, 1, 12), 1, 8, "float32")
    before = qkv.copy()
    REFERENCE.rotary_write(qkv, positions, np.cos(angles), np.sin(angles), 1, np.full(6, -1, np.int64), store)
    turned = (before[:, :4] + 1j * before[:, 4:8]) * np.exp(1j * angles[positions])
    np.testing.assert_allclose(qkv[:, :4], turned.real, atol=1e-6)
    np.testing.assert_allclose(qkv[:, 4:8], turned.imag, atol=1e-6)
    assert same_bits(qkv[:, 8:12].copy(), before[:, 8:12].copy())
    assert same_bits(qkv[:, 24:].copy(), before[:, 24:].copy())
    assert np.isnan(store.keys).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_are_copied_in_order(isa: str, dtype: str) -> None:
    """A chain: a block that was a destination may be the next source; copying to itself is harmless."""
    rng = np.random.default_rng(1)
    store = empty_store(Heads(2, 2, 4), 6, 8, dtype)
    for array in block_arrays(store):
        raw = array.view(np.uint8)
        raw[:] = rng.integers(0, 256, raw.shape)
    copies = store._replace(keys=store.keys.copy(), values=store.values.copy())
    if len(block_arrays(store)) > 2 and store.key_scales is not None and store.value_scales is not None:
        copies = copies._replace(key_scales=store.key_scales.copy(), value_scales=store.value_scales.copy())
    before = [array.copy() for array in block_arrays(store)]
    pairs = np.array([[0, 1], [1, 2], [5, 0], [3, 3]], np.int32)
    cpu(isa, 2).copy_blocks(store, pairs)
    REFERENCE.copy_blocks(copies, pairs)
    for ours, theirs, old in zip(block_arrays(store), block_arrays(copies), before, strict=True):
        assert ours.tobytes() == old[[5, 0, 0, 3, 4, 5]].tobytes()
        assert ours.tobytes() == theirs.tobytes()
