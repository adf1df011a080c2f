"""Eight-bit stores: what is written, what is read, and what attention makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import REFERENCE, Heads, Rows, Text, attend, cpu, empty_store, lay_out, normal, same_bits
from numpy.typing import NDArray

from pageinn.kernels import bfloat16
from pageinn.kernels.backend import F32, Backend, LayerStore
from pageinn.kernels.cpu import CpuBackend
from pageinn.kernels.reference import ReferenceBackend, block_arrays
from stored_values import gather

FP8 = {"fp8_e4m3": (torch.float8_e4m3fn, 448.0), "fp8_e5m2": (torch.float8_e5m2, 57344.0)}
QUANTISED = [*FP8, "int8"]
#: Root mean square of what rounding weights to bfloat16 does to an output: relative errors of up to 2**-9, 2**-9 /
#: sqrt(3) in the mean, of weights w whose sum is 1, times values of about 1, or 1.9 with their scale. The root of the
#: sum of w² is 0.1 for the softmax of 700 unit normal scores, and 2**-9 / sqrt(3) * 1.9 * 0.1 is 2.1e-4.
WEIGHTS_ROUNDED = 2.5e-4


def write(backend: Backend, store: LayerStore, keys: F32, values: F32) -> None:
    """Store tokens of one head, keys and values [n, D], in the slots from 0 on, through the backend; rotate none."""
    tokens = len(keys)
    qkv = np.concatenate([np.zeros_like(keys), keys, values], axis=1)
    still, positions = np.zeros((1, 0), np.float32), np.zeros(tokens, np.int32)
    backend.rotary_write(qkv, positions, still, still, 1, np.arange(tokens, dtype=np.int64), store)


@pytest.mark.parametrize("dtype", FP8)
@settings(max_examples=25, deadline=None)
@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=64, max_size=64), exponent=st.integers(105, 145))
def test_fp8_stores_round_as_torch_does_and_saturate(isa: str, dtype: str, bits: list[int], exponent: int) -> None:
    """Any float32 at all, and as many around subnormals, ties and the largest; both backends, bit for bit."""
    kind, largest = FP8[dtype]
    anything = np.array(bits, np.uint32)
    near = (anything & 0x80000000) | np.uint32(exponent << 23) | (anything & 0x7F0000)
    values = np.concatenate([anything, near, near - 1, near + 1]).view(np.float32).reshape(-1, 8)
    expected = torch.from_numpy(values.clip(-largest, largest)).to(kind)
    saturated = int((np.abs(values) > largest).sum())
    for backend in (CpuBackend(1, isa), ReferenceBackend()):
        store = empty_store(Heads(1, 1, 8), len(values) // 8, 8, dtype, fill=0)
        write(backend, store, np.zeros_like(values), values)
        ours = torch.from_numpy(store.values.reshape(-1, 8)).view(kind).float().numpy()
        np.testing.assert_array_equal(ours, expected.float().numpy())
        assert backend.saturated_values == saturated


def test_saturation_is_counted_for_keys_and_values_and_nan_is_not(isa: str) -> None:
    """Field case E1: beyond the largest number, infinity included, is counted; the largest itself and NaN are not."""
    keys = np.array([[448, 449, -1e9, np.inf, np.nan, 0, 1, 2]], np.float32)
    values = np.array([[-448, -448.5, 0, 0, 0, 0, 0, 0]], np.float32)
    for backend in (CpuBackend(1, isa), ReferenceBackend()):
        store = empty_store(Heads(1, 1, 8), 1, 8, "fp8_e4m3", fill=0)
        write(backend, store, keys, values)
        assert backend.saturated_values == 4
        stored = torch.from_numpy(store.keys[0, 0, :, 0].copy()).view(torch.float8_e4m3fn).float().numpy()
        np.testing.assert_array_equal(stored, np.array([448, 448, -448, 448, np.nan, 0, 1, 2], np.float32))


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("size", [8, 16, 64, 12])
@pytest.mark.parametrize("rows", [1, 24])
def test_every_byte_is_read_exactly(isa: str, dtype: str, size: int, rows: int) -> None:
    """One key each, so that an output is the value itself; infinities and NaN too. Vectors, pairs of them, tails; by
    few rows and by as many as have a copy made for them."""
    every = np.arange(-(-256 // size) * size, dtype=np.uint64).astype(np.uint8).reshape(-1, size)
    if dtype == "int8":
        # -128 is never stored.
        every[every == 128] = 129
    store = empty_store(Heads(1, 1, size), len(every), 16, dtype, fill=0)
    store.values.view(np.uint8)[:, 0, 0] = every
    if store.value_scales is not None and dtype == "int8":
        store.value_scales[:] = bfloat16.from_float32(np.array([0.375], np.float32))
    q, out = np.zeros((len(every), rows, size), np.float32), np.empty((len(every), rows, size), np.float32)
    tables = np.arange(len(every), dtype=np.int32)[:, None]
    starts, contexts = np.arange(len(every) + 1, dtype=np.int32), np.ones(len(every), np.int32)
    cpu(isa, 1).attention(q, store, tables, starts, contexts, 1.0, out)
    raw = torch.from_numpy(every)
    expected = raw.view(torch.int8).float() * 0.375 if dtype == "int8" else raw.view(FP8[dtype][0]).float()
    for row in range(rows):
        np.testing.assert_array_equal(out[:, row], expected.numpy())


def root_mean_square(differences: NDArray[Any]) -> float:
    return float(np.sqrt(np.mean(np.square(differences))))


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("block_size", [8, 16, 24, 64])
@pytest.mark.parametrize("group", [1, 2, 3, 6])
def test_attention_matches_float64_over_the_dequantised_values(
    isa: str, dtype: str, block_size: int, group: int
) -> None:
    """A softmax in float64 over what the store gives back, with head scales where there are any: the cache's rounding
    is in the store, and none is added but that of queries and weights to bfloat16. A weight's is within 2**-9 of it,
    and a sum of 700 such errors far within that of its values' mean magnitude.
    """
    rng = np.random.default_rng(group)
    heads, tokens = Heads(2 * group, 2, 64), 700
    text = Text(normal(rng, tokens, heads.query, 64), normal(rng, tokens, 2, 64), normal(rng, tokens, 2, 64))
    blocks = -(-tokens // block_size)
    store = empty_store(heads, blocks, block_size, dtype)
    scales = np.ones(2, np.float32), np.ones(2, np.float32)
    if dtype in FP8:
        scales = np.array([0.03, 0.7], np.float32), np.array([1.9, 0.011], np.float32)
        store = store._replace(key_scales=scales[0], value_scales=scales[1])
    table = rng.permutation(blocks).astype(np.int32)
    lay_out(store, text, table)
    ours = attend(cpu(isa, 2), store, [Rows(text, table, tokens - 5, tokens)])[0]
    keys, values = (each.astype(np.float64) for each in gather(store, table, tokens))
    for row, q in enumerate(text.q[tokens - 5 :]):
        seen = tokens - 5 + row + 1
        asked = q.reshape(2, group, 64) * (np.float32(1 / 8) * scales[0][:, None, None])
        asked = torch.from_numpy(asked).bfloat16().double().numpy() / scales[0][:, None, None]
        scores = np.einsum("grd,gdn->grn", asked, keys[:, :, :seen])
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        exact = np.einsum("grn,gnd->grd", weights / weights.sum(axis=2, keepdims=True), values[:, :seen])
        assert root_mean_square(ours[row] - exact.reshape(-1, 64)) < WEIGHTS_ROUNDED


@pytest.mark.parametrize("dtype", QUANTISED)
def test_the_float64_test_can_fail(dtype: str) -> None:
    """Against the values before they were quantised, the same attention is far outside that bound."""
    rng = np.random.default_rng(0)
    text = Text(*(normal(rng, 300, 1, 64) for _ in range(3)))
    table = np.arange(20, dtype=np.int32)
    results = []
    for each in (dtype, "float32"):
        store = empty_store(Heads(1, 1, 64), 20, 16, each)
        lay_out(store, text, table)
        results.append(attend(REFERENCE, store, [Rows(text, table, 299, 300)])[0])
    assert root_mean_square(results[0] - results[1]) > 3 * WEIGHTS_ROUNDED


@pytest.mark.parametrize("dtype", QUANTISED)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), gap=st.floats(60, 90))
def test_what_all_but_vanishes_is_the_same_however_many_rows_ask(isa: str, dtype: str, seed: int, gap: float) -> None:
    """One key outweighs the others by exp(gap), half of its values are zero, and sums of what is left pass by zero: an
    instruction that takes subnormal sums for zero would show, in a head of 2**20 times such values all the more."""
    rng = np.random.default_rng(seed)
    heads, tokens = Heads(3, 1, 32), 250
    text = Text(*(np.zeros((tokens, count, 32), np.float32) for count in (3, 1, 1)))
    text.q[:, :, 0], text.k[:, 0, 0], text.k[5, 0, 0] = np.sqrt(32), -gap / 2, gap / 2
    text.v[6:, 0] = normal(rng, tokens - 6, 32) * np.float32(2.0**-9)
    text.v[5, 0, 16:] = 1
    store = empty_store(heads, 16, 16, dtype)
    if dtype in FP8:
        store = store._replace(value_scales=np.full(1, 2.0**20, np.float32))
        text.v[:] *= 2.0**20
    table = rng.permutation(16).astype(np.int32)
    lay_out(store, text, table)
    many, one = (attend(cpu(isa, 1), store, [Rows(text, table, tokens - rows, tokens)])[0] for rows in (30, 1))
    assert same_bits(many[-1:], one)
    if isa.startswith("avx512"):
        assert same_bits(one, attend(cpu("avx2", 1), store, [Rows(text, table, tokens - 1, tokens)])[0])


def test_a_scale_belongs_to_one_token_and_head_alone(isa: str) -> None:
    """Field cases E1, E2: what a token is stored as does not change with what else its block holds, poison included."""
    rng = np.random.default_rng(1)
    keys, values = normal(rng, 1, 64), normal(rng, 1, 64)
    stored = []
    for fill in (0.0, 1e30, np.nan):
        store = empty_store(Heads(1, 1, 64), 2, 16, "int8", fill=fill)
        write(cpu(isa, 1), store, np.concatenate([keys, keys * 1000]), np.concatenate([values, values * 1e-3]))
        stored.append(store)
    for store in stored:
        assert store.key_scales is not None
        largest = float(np.abs(keys).max())
        scale = float(bfloat16.to_float32(store.key_scales)[0, 0, 0])
        assert largest / 127 <= scale <= largest / 127 * (1 + 2**-7)
        assert np.abs(store.keys[0, 0, :, 0] * scale - keys[0]).max() <= scale / 2 * (1 + 1e-6)
        for array, other in zip(block_arrays(store), block_arrays(stored[0]), strict=True):
            first = np.s_[0, 0, :, 0] if array.ndim == 4 and array is store.keys else np.s_[0, 0, 0]
            assert array[first].tobytes() == other[first].tobytes()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=True), min_size=8, max_size=8),
    st.sampled_from([1.0, 1e-38, 1e-30, 1e30]),
)
def test_int8_stores_are_the_same_in_both_backends(isa: str, numbers: list[float], factor: float) -> None:
    """Any vector, tiny, huge, infinite, NaN or all zero: nothing beyond 127, equal bits, and bad ones become NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        vector = np.array([numbers], np.float32) * np.float32(factor)
    stores = []
    for backend in (cpu(isa, 1), REFERENCE):
        store = empty_store(Heads(1, 1, 8), 1, 8, "int8", fill=0)
        write(backend, store, vector, vector)
        stores.append(store)
        assert store.values.min() >= -127
        assert store.value_scales is not None
        read = store.values[0, 0, 0] * bfloat16.to_float32(store.value_scales[0, 0, :1])
        if np.isfinite(vector).all():
            exact = np.abs(vector).max() / 127
            assert np.abs(read - vector[0]).max() <= 0.51 * exact + 1e-40
        else:
            assert np.isnan(read).all()
    for ours, theirs in zip(*map(block_arrays, stores), strict=True):
        assert same_bits(ours, theirs)
