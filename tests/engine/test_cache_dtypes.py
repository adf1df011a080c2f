"""What a dtype of the cache changes in an engine: how much fits, what is said at the start, what is counted."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from engine_runs import GREEDY, engine_of, request, run, store_of, tokens

from pageinn.engine.config import ConfigError, EngineConfig
from pageinn.engine.engine import Engine
from pageinn.kernels.cpu import CpuBackend

CACHE_BYTES = 1_000_000


def engine_with(path: Path, dtype: str, block_size: int = 16) -> Engine:
    settings = EngineConfig(model=path, kv_cache_dtype=dtype, kv_cache_memory_bytes=CACHE_BYTES, block_size=block_size)
    return Engine(settings)


@pytest.mark.parametrize("dtype", ["fp8", "fp8_e4m3", "fp8_e5m2"])
def test_fp8_has_twice_the_blocks_of_bfloat16_in_the_same_bytes(tiny_path: Path, dtype: str) -> None:
    """Two layers of two heads of 16: 4,096 bytes a block in bfloat16, 2,048 in fp8."""
    assert engine_with(tiny_path, "bfloat16").num_blocks == CACHE_BYTES // 4096
    engine = engine_with(tiny_path, dtype)
    assert engine.num_blocks == CACHE_BYTES // 2048
    assert engine.capacity_ratio == 2
    blocks = f"KV cache: {488 * 16} tokens in 488 blocks of 16"
    assert blocks in engine.description
    assert "  2 times the tokens that bfloat16 would hold in it" in engine.description.splitlines()


def test_an_int8_block_counts_its_scales(tiny_path: Path) -> None:
    """16 numbers of a byte and a scale of two, where bfloat16 has 16 numbers of two bytes."""
    engine = engine_with(tiny_path, "int8")
    assert engine.num_blocks == CACHE_BYTES // (2 * 2 * 2 * 16 * (16 + 2))
    assert engine.capacity_ratio == pytest.approx(32 / 18)
    store = store_of(engine)
    assert store.nbytes == sum(array.nbytes for array in store.block_arrays())
    assert "  1.778 times the tokens" in engine.description


def test_a_dtype_that_the_backend_lacks_is_refused_at_the_start(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field case E4. One line, before anything is loaded."""
    monkeypatch.setattr(CpuBackend, "store_dtypes", frozenset({"float32", "bfloat16"}))
    with pytest.raises(ConfigError) as raised:
        engine_with(tiny_path, "fp8")
    expected = "--kv-cache-dtype fp8_e4m3 is not supported by the cpu backend; take one of bfloat16, float32"
    assert str(raised.value) == expected


@pytest.mark.parametrize("size", [1, 4, 12, 0, -8])
def test_a_block_that_the_kernels_cannot_read_is_refused_at_the_start(tiny_path: Path, size: int) -> None:
    """One line, before anything is loaded; the kernels would refuse it at the first request."""
    with pytest.raises(ConfigError) as raised:
        engine_with(tiny_path, "bfloat16", block_size=size)
    expected = f"--block-size is {size}; the cpu backend needs a multiple of 8 tokens, for example 16"
    assert str(raised.value) == expected


def test_saturated_values_are_counted(tiny_path: Path) -> None:
    """Field case E1: with every scale a millionth, next to nothing fits, and each element that does not is counted."""
    prompt = tokens(random.Random(0), 40)
    sampling = replace(GREEDY, max_tokens=2)
    engine = engine_of(tiny_path, 64, kv_cache_dtype="fp8")
    run(engine, [request("plain", prompt, sampling)])
    assert engine.core.stats().saturated_values == 0
    store = store_of(engine)
    assert store.key_scales is not None
    assert store.value_scales is not None
    for scales in (store.key_scales, store.value_scales):
        scales[:] = 1e-6
    engine.core.reset_prefix_cache()
    run(engine, [request("cut", prompt, sampling)])
    written = 41 * store.keys.shape[0] * 2 * store.keys.shape[2] * store.keys.shape[3]
    assert 0.95 * written < engine.core.stats().saturated_values <= written
