"""Linear layers against the reference, and the bits of a row whatever stands beside it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import EPSILON, REFERENCE, cpu, normal, same_bits

from pageinn.kernels.backend import F32, QUANT_GROUP
from pageinn.kernels.cpu import CpuBackend
from pageinn.kernels.quantise import WEIGHT_LIMIT, quantise_groups
from pageinn.kernels.reference import Float32Linear

FORMATS = ["float32", "int8"]


def product(backend: CpuBackend, x: F32, weight: F32, weight_format: str) -> F32:
    out = np.full((len(x), len(weight)), np.nan, np.float32)
    backend.linear(x, backend.pack_linear(weight, weight_format), out)
    return out


@pytest.mark.parametrize("weight_format", FORMATS)
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 20),
    outputs=st.integers(1, 70),
    inputs=st.integers(1, 200),
    add=st.booleans(),
)
def test_linear_agrees_with_the_reference(
    isa: str, weight_format: str, seed: int, rows: int, outputs: int, inputs: int, add: bool
) -> None:
    """Both sum the same products: K sums in any order err by at most K roundings of the magnitudes' sum."""
    rng = np.random.default_rng(seed)
    x, weight, before = normal(rng, rows, inputs), normal(rng, outputs, inputs), normal(rng, rows, outputs)
    backend = cpu(isa, 2)
    ours, theirs = before.copy(), before.copy()
    backend.linear(x, backend.pack_linear(weight, weight_format), ours, add)
    REFERENCE.linear(x, REFERENCE.pack_linear(weight, weight_format), theirs, add)
    bound = 2 * (inputs + 3) * EPSILON * (np.abs(x) @ np.abs(weight).T + np.abs(before))
    assert (np.abs(ours - theirs) <= bound).all()


def test_int8_linear_is_within_the_steps_of_its_quantisation(backend: CpuBackend) -> None:
    """Half a step of weight and of activation per product, against float64."""
    rng = np.random.default_rng(7)
    x, weight = normal(rng, 9, 320), normal(rng, 48, 320)
    groups = (-1, 320 // QUANT_GROUP, QUANT_GROUP)
    x_step = np.repeat(np.abs(x.reshape(groups)).max(axis=2) / 127, QUANT_GROUP, axis=1)
    w_step = np.repeat(np.abs(weight.reshape(groups)).max(axis=2) / 63, QUANT_GROUP, axis=1)
    bound = (np.abs(x) @ w_step.T + x_step @ np.abs(weight).T + x_step @ w_step.T / 2) / 2 * 1.001
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    error = np.abs(product(backend, x, weight, "int8") - exact)
    assert (error <= bound).all()
    assert error.max() > 0


def test_int8_sums_do_not_saturate_at_the_extremes(backend: CpuBackend) -> None:
    """All weights at +63 or -63 and all activations at +127 or -127: the sums are still exact."""
    rng = np.random.default_rng(3)
    for weight_sign, x_sign in [(1, 1), (1, -1), (-1, 1), (-1, -1)]:
        weight = np.full((16, 64), 63.0 * weight_sign, np.float32)
        x = np.full((5, 64), 127.0 * x_sign, np.float32)
        assert (product(backend, x, weight, "int8") == 64 * 63 * 127 * weight_sign * x_sign).all()
    weight = rng.choice(np.array([-63, 63], np.float32), (16, 64))
    x = rng.choice(np.array([-127, 127], np.float32), (5, 64))
    assert same_bits(product(backend, x, weight, "int8"), x @ weight.T)


@pytest.mark.parametrize("weight_format", FORMATS)
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(2, 300),
    inputs=st.integers(1, 200),
    outputs=st.integers(1, 200),
)
def test_a_row_has_the_same_bits_alone_in_any_subset_and_on_any_thread_count(
    isa: str, weight_format: str, seed: int, rows: int, inputs: int, outputs: int
) -> None:
    rng = np.random.default_rng(seed)
    x, weight = normal(rng, rows, inputs), normal(rng, outputs, inputs)
    whole = product(cpu(isa, 2), x, weight, weight_format)
    assert same_bits(whole, product(cpu(isa, 1), x, weight, weight_format))
    assert same_bits(whole, product(cpu(isa, 3), x, weight, weight_format))
    some = np.sort(rng.choice(rows, size=int(rng.integers(1, rows + 1)), replace=False))
    assert same_bits(whole[some], product(cpu(isa, 2), x[some], weight, weight_format))
    one = int(rng.integers(rows))
    assert same_bits(whole[one : one + 1], product(cpu(isa, 2), x[one : one + 1], weight, weight_format))


@pytest.mark.parametrize("weight_format", FORMATS)
def test_rows_may_be_strided_and_gaps_stay_untouched(backend: CpuBackend, weight_format: str) -> None:
    rng = np.random.default_rng(0)
    wide, weight = normal(rng, 7, 100), normal(rng, 33, 60)
    out = np.full((7, 50), 5, np.float32)
    backend.linear(wide[:, 20:80], backend.pack_linear(weight, weight_format), out[:, 10:43])
    assert same_bits(out[:, 10:43].copy(), product(backend, wide[:, 20:80].copy(), weight, weight_format))
    assert (out[:, :10] == 5).all()
    assert (out[:, 43:] == 5).all()


@pytest.mark.parametrize("weight_format", FORMATS)
def test_nan_and_infinity_stay_in_their_row_and_show(backend: CpuBackend, weight_format: str) -> None:
    """A broken activation must not be quantised into a plausible number, nor reach a neighbour."""
    rng = np.random.default_rng(1)
    x, weight = normal(rng, 6, 128), normal(rng, 20, 128)
    clean = product(backend, x, weight, weight_format)
    broken = x.copy()
    broken[1, 100], broken[4, 3] = np.nan, np.inf
    result = product(backend, broken, weight, weight_format)
    assert not np.isfinite(result[[1, 4]]).any()
    assert same_bits(result[[0, 2, 3, 5]], clean[[0, 2, 3, 5]])


@pytest.mark.parametrize("weight_format", FORMATS)
def test_zero_rows_give_zero_and_no_rows_give_nothing(backend: CpuBackend, weight_format: str) -> None:
    weight = normal(np.random.default_rng(1), 20, 70)
    assert (product(backend, np.zeros((3, 70), np.float32), weight, weight_format) == 0).all()
    assert product(backend, np.zeros((0, 70), np.float32), weight, weight_format).shape == (0, 20)


def test_a_packed_weight_tells_its_size(backend: CpuBackend) -> None:
    """Panels of 16 outputs: 20 are padded to 32; groups of 64 inputs: 70 are padded to 128."""
    weight = normal(np.random.default_rng(1), 20, 70)
    int8, float32 = backend.pack_linear(weight, "int8"), backend.pack_linear(weight, "float32")
    assert (int8.out_features, int8.in_features, int8.nbytes) == (20, 70, 32 * (128 + 2 * 4))
    assert (float32.out_features, float32.in_features, float32.nbytes) == (20, 70, 32 * 70 * 4)
    assert REFERENCE.pack_linear(weight, "float32").nbytes == 20 * 70 * 4


def test_quantised_groups_round_half_to_even_and_reach_the_limit() -> None:
    row = np.zeros((1, 66), np.float32)
    row[0, :5] = [63, 0.5, 1.5, -2.5, -63]
    integers, scales = quantise_groups(row, WEIGHT_LIMIT)
    assert integers.shape == (1, 2, QUANT_GROUP)
    assert integers[0, 0, :5].tolist() == [63, 0, 2, -2, -63]
    assert scales.tolist() == [[1, 0]]


def test_a_weight_of_another_backend_is_refused(backend: CpuBackend) -> None:
    weight = Float32Linear(np.ones((4, 4), np.float32))
    with pytest.raises(ValueError, match="cannot use a Float32Linear; pack it with pack_linear"):
        backend.linear(np.ones((1, 4), np.float32), weight, np.ones((1, 4), np.float32))
