"""AVX-512 computes more at a time than AVX2, and nothing else: the bits are the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import DTYPES, PAIRS, Heads, Rows, attend, cpu, empty_store, lay_out, normal, random_text, same_bits


def wider_than_avx2() -> list[str]:
    """Those of the instruction sets beyond AVX2 that this machine has."""
    found = []
    for isa in ("avx512_bf16", "avx512"):
        try:
            cpu(isa, 1)
        except ValueError:
            continue
        found.append(isa)
    return found


@pytest.fixture(scope="module", autouse=True)
def _wide() -> None:
    if not wider_than_avx2():
        pytest.skip("this machine has no AVX-512")


@pytest.mark.parametrize("weight_format", ["int8", "float32"])
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 210),
    inputs=st.sampled_from([1, 63, 64, 70, 192, 576]),
    outputs=st.sampled_from([1, 15, 16, 17, 33, 160]),
    add=st.booleans(),
)
def test_linear_has_the_same_bits(
    weight_format: str, seed: int, rows: int, inputs: int, outputs: int, add: bool
) -> None:
    rng = np.random.default_rng(seed)
    x, weight, before = normal(rng, rows, inputs), normal(rng, outputs, inputs), normal(rng, rows, outputs)
    results = []
    for isa in (*wider_than_avx2(), "avx2"):
        out = before.copy()
        backend = cpu(isa, 2)
        backend.linear(x, backend.pack_linear(weight, weight_format), out, add=add)
        results.append(out)
    assert all(same_bits(results[-1], other) for other in results)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    heads=st.sampled_from([Heads(3, 1, 64), Heads(4, 4, 24), Heads(6, 2, 40), Heads(8, 1, 128)]),
    block_size=st.sampled_from([8, 16, 24, 32]),
    shapes=st.lists(st.tuples(st.integers(0, 600), st.integers(1, 12)), min_size=1, max_size=3),
)
def test_attention_has_the_same_bits(
    dtype: str, seed: int, heads: Heads, block_size: int, shapes: list[tuple[int, int]]
) -> None:
    rng = np.random.default_rng(seed)
    blocks = sum(-(-sum(shape) // block_size) for shape in shapes)
    free, step = rng.permutation(blocks).astype(np.int32), []
    for cached, fresh in shapes:
        table, free = np.split(free, [-(-(cached + fresh) // block_size)])
        step.append(Rows(random_text(rng, heads, cached + fresh), table, cached, cached + fresh))
    results = []
    for isa in (*wider_than_avx2(), "avx2"):
        for kind in (dtype, PAIRS) if dtype == "bfloat16" and cpu(isa, 1).pairs else (dtype,):
            store = empty_store(heads, blocks, block_size, kind)
            for rows in step:
                lay_out(store, rows.text, rows.table)
            # One thread takes many rows at a time, more threads few.
            results.append(attend(cpu(isa, 2 if isa == "avx2" else 1), store, step))
    for result in results:
        assert all(same_bits(ours, narrow) for ours, narrow in zip(result, results[-1], strict=True))
