"""What an engine says of itself at its start: every line true of the settings at hand, none that says nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pageinn.engine.config import EngineConfig
from pageinn.engine.engine import Engine
from pageinn.memory.questions import PrefixCache

#: The tiny model's block of 16 tokens in bfloat16: two layers, keys and values, two heads, 16 numbers of 2 bytes.
BLOCK_BYTES = 2 * 2 * 2 * 16 * 16 * 2


def lines_of(path: Path, blocks: int = 400, **settings: object) -> list[str]:
    config = EngineConfig(model=path, kv_cache_memory_bytes=blocks * BLOCK_BYTES, threads=1)
    engine = Engine(replace(config, **settings))  # type: ignore[arg-type]
    lines = engine.description.splitlines()
    engine.close()
    return lines


def test_all_that_is_said_with_the_defaults(tiny_path: Path) -> None:
    """400 blocks of 4,096 bytes are 1.56 MiB and 6,400 tokens: as many as 1.5625 of the model's longest sequences."""
    assert lines_of(tiny_path) == [
        "tiny: weights in int8, 1 thread",
        "sequences: up to 4096 tokens, 32 computed at once",
        "KV cache: 6400 tokens in 400 blocks of 16, 2 MiB, bfloat16",
        "  blocks are shared, and kept for reuse",
        "  room for 1.56 sequences of 4096 tokens",
    ]


def test_a_cache_that_bounds_the_sequences_says_so(tiny_path: Path) -> None:
    lines = lines_of(tiny_path, blocks=10)
    assert lines[1:3] == [
        "sequences: up to 160 tokens, 32 computed at once;",
        "  the model goes to 4096, with more --kv-cache-memory-bytes",
    ]
    assert lines[-1] == "  room for 1.00 sequences of 160 tokens"
    assert lines_of(tiny_path, blocks=10, max_model_len=80)[1] == "sequences: up to 80 tokens, 32 computed at once"


@pytest.mark.parametrize(
    ("dtype", "line"),
    [("float32", "  0.5 times the tokens that bfloat16 would hold in it"), ("bfloat16", None), ("float16", None)],
)
def test_other_dtypes_are_compared_with_bfloat16_where_that_says_something(
    tiny_path: Path, dtype: str, line: str | None
) -> None:
    assert [one for one in lines_of(tiny_path, kv_cache_dtype=dtype) if "times" in one] == ([line] if line else [])


@pytest.mark.parametrize("mode", PrefixCache)
def test_each_mode_says_what_is_shared(tiny_path: Path, mode: PrefixCache) -> None:
    words = {"off": "never shared", "live": "between running requests", "keep": "kept for reuse"}[mode]
    assert [one for one in lines_of(tiny_path, prefix_cache=mode) if words in one]


def test_host_and_disk_are_told_apart(tiny_path: Path, tmp_path: Path) -> None:
    """Without host memory of its own, the disk takes a quarter of the cache to load through: 100 blocks."""
    evicted = "host memory: 320 tokens, for blocks that are evicted or swapped out"
    assert lines_of(tiny_path, host_memory_bytes=20 * BLOCK_BYTES)[-1] == evicted
    assert lines_of(tiny_path, disk_cache=tmp_path / "blocks", disk_cache_bytes=64 << 20)[-3:] == [
        "host memory: 1600 tokens, where blocks from disk arrive",
        "disk cache: 0 tokens found, up to 64 MiB,",
        f"  in {tmp_path / 'blocks'}",
    ]


def test_lines_fit_a_terminal(tiny_path: Path) -> None:
    for dtype in ("bfloat16", "float32", "int8", "fp8_e4m3"):
        for mode in PrefixCache:
            assert max(map(len, lines_of(tiny_path, kv_cache_dtype=dtype, prefix_cache=mode))) <= 80
