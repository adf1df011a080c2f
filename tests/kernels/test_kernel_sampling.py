"""Sampling: which tokens may be drawn, how often, and that a draw depends on nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import REFERENCE, cpu, normal, same_bits
from numpy.typing import NDArray

from pageinn.kernels.backend import F32, Backend, SampleParams
from pageinn.kernels.cpu import CpuBackend
from pageinn.kernels.reference import token_probabilities


def params(
    rows: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 1,
    choice: int = 0,
) -> SampleParams:
    """The same parameters for every row, at positions 0, 1, 2, ..."""
    return SampleParams(
        np.full(rows, temperature, np.float32),
        np.full(rows, top_k, np.int32),
        np.full(rows, top_p, np.float32),
        np.full(rows, min_p, np.float32),
        np.full(rows, seed, np.uint64),
        np.full(rows, choice, np.uint64),
        np.arange(rows, dtype=np.uint64),
    )


def rows_of(options: SampleParams, rows: slice | NDArray[np.int64]) -> SampleParams:
    each: Any = (values[rows] for values in options)
    return SampleParams(*each)


def draws(backend: Backend, row: F32, count: int, **options: float) -> np.ndarray:
    return backend.sample(np.tile(row, (count, 1)), params(count, **options))  # type: ignore[arg-type]  # ints too


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 3000),
    temperature=st.sampled_from([0.0, 0.05, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 5, 400]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    coarse=st.booleans(),
)
def test_sampling_agrees_with_the_reference(
    isa: str, seed: int, size: int, temperature: float, top_k: int, top_p: float, min_p: float, coarse: bool
) -> None:
    """The same tokens: float64 sums differ in their last bits only. Coarse logits make ties everywhere."""
    rng = np.random.default_rng(seed)
    logits = normal(rng, 8, size) * 3
    if coarse:
        logits = np.round(logits)
    options = params(8, temperature, top_k, top_p, min_p, seed=seed * 977)
    ours = cpu(isa, 2).sample(logits, options)
    assert ours.dtype == np.int32
    assert same_bits(ours, REFERENCE.sample(logits, options))
    one = int(rng.integers(8))
    alone = rows_of(options, slice(one, one + 1))
    assert same_bits(ours[one : one + 1], cpu(isa, 1).sample(logits[one : one + 1], alone))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 6},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"top_k": 9, "top_p": 0.8, "min_p": 0.05},
    ],
)
def test_frequencies_follow_the_exact_distribution(isa: str, options: dict[str, float]) -> None:
    """Chi-square of 20000 draws with a fixed seed; the bound is the mean plus five deviations."""
    row = normal(np.random.default_rng(4), 24)
    exact = token_probabilities(row, **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **options})  # type: ignore[arg-type]  # top_k is an int
    exact /= exact.sum()
    counts = np.bincount(draws(cpu(isa, 2), row, 20000, **options), minlength=24)
    assert (counts[exact == 0] == 0).all()
    expected = 20000 * exact[exact > 0]
    statistic = float(((counts[exact > 0] - expected) ** 2 / expected).sum())
    freedom = len(expected) - 1
    assert statistic < freedom + 5 * (2 * freedom) ** 0.5


def test_filters_keep_what_their_definition_says() -> None:
    """By hand: probabilities 0.4, 0.3, 0.2, 0.1 in ids 2, 0, 3, 1."""
    row = np.log(np.array([0.3, 0.1, 0.4, 0.2], np.float32))

    def kept(top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> list[int]:
        return np.flatnonzero(token_probabilities(row, 1.0, top_k, top_p, min_p)).tolist()

    assert kept() == [0, 1, 2, 3]
    assert kept(top_k=2) == [0, 2]
    assert kept(top_p=0.39) == [2]
    assert kept(top_p=0.41) == [0, 2]
    assert kept(min_p=0.45) == [0, 2, 3]
    # top_p counts shares of what top_k left: 0.4 / 0.7 = 0.57.
    assert kept(top_k=2, top_p=0.56) == [2]
    assert kept(top_k=2, top_p=0.58) == [0, 2]


def test_greedy_ties_go_to_the_lower_id(backend: CpuBackend) -> None:
    """A-row-independent rule, so that a batch cannot flip a near tie; -0 and 0 tie as well."""
    logits = np.full((4, 1000), -5, np.float32)
    logits[0, [7, 8, 900]] = 3
    logits[1, [999, 500]] = 1
    logits[2] = -np.inf
    logits[2, [70, 40]] = [0.0, -0.0]
    for each in (backend, REFERENCE):
        assert each.sample(logits, params(4, temperature=0)).tolist() == [7, 500, 40, 0]
        assert each.sample(logits, params(4, top_k=1)).tolist() == [7, 500, 40, 0]


def test_a_draw_depends_on_seed_choice_and_position_only(backend: CpuBackend) -> None:
    """Rows may be drawn in any batch and order; another seed or choice gives another stream."""
    row = normal(np.random.default_rng(6), 500)
    base = draws(backend, row, 64, seed=2**63 + 5)
    logits = np.tile(row, (64, 1))
    order = np.random.default_rng(0).permutation(64)
    shuffled = rows_of(params(64, seed=2**63 + 5), order)
    assert (backend.sample(logits, shuffled) == base[order]).all()
    assert (draws(backend, row, 64, seed=2**63 + 6) != base).any()
    assert (draws(backend, row, 64, seed=2**63 + 5, choice=1) != base).any()


def test_excluded_tokens_are_never_drawn(backend: CpuBackend) -> None:
    row = np.full(300, -np.inf, np.float32)
    row[[17, 200]] = [1.0, 1.0]
    for options in ({}, {"top_k": 50}, {"top_p": 0.9}, {"temperature": 1e-3}):
        assert set(draws(backend, row, 200, **options).tolist()) == {17, 200}


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 2000), coarse=st.booleans())
def test_log_probs_agree_with_the_reference(isa: str, seed: int, size: int, coarse: bool) -> None:
    """Both work in float64 and round once: the results differ by at most one rounding to float32."""
    rng = np.random.default_rng(seed)
    logits = normal(rng, 5, size) * 4
    if coarse:
        logits = np.round(logits)
    tokens = rng.integers(0, size, 5).astype(np.int32)
    k = int(rng.integers(0, min(size, 20) + 1))
    ours, theirs = cpu(isa, 2).log_probs(logits, tokens, k), REFERENCE.log_probs(logits, tokens, k)
    assert same_bits(ours.top_ids, theirs.top_ids)
    np.testing.assert_allclose(ours.chosen, theirs.chosen, rtol=2.0**-22, atol=1e-9)
    np.testing.assert_allclose(ours.top, theirs.top, rtol=2.0**-22, atol=1e-9)
    alone = cpu(isa, 1).log_probs(logits[2:3], tokens[2:3], k)
    assert same_bits(alone.top, ours.top[2:3])
    assert same_bits(alone.chosen, ours.chosen[2:3])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_broken_row_is_named(backend: CpuBackend, value: float) -> None:
    logits = np.zeros((5, 40), np.float32)
    logits[3, 21] = value
    for each in (backend, REFERENCE):
        with pytest.raises(ValueError, match="logits row 3 has NaN, or no finite largest value"):
            each.sample(logits, params(5))
        with pytest.raises(ValueError, match="logits row 3 has NaN, or no finite largest value"):
            each.log_probs(logits, np.zeros(5, np.int32), 1)
    logits[3] = -np.inf
    with pytest.raises(ValueError, match="logits row 3"):
        backend.sample(logits, params(5, temperature=0))
