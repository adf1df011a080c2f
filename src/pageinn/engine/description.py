"""What an engine says of itself when it has started: a few lines for the person who started it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pageinn.memory.questions import PrefixCache

if TYPE_CHECKING:
    from pageinn.engine.engine import Engine

_SHARING = {
    PrefixCache.OFF: "blocks are never shared",
    PrefixCache.LIVE: "blocks are shared between running requests, and not kept",
    PrefixCache.KEEP: "blocks are shared, and kept for reuse",
}


def describe(engine: Engine) -> str:
    """What is served, how long sequences may get, and how much each memory holds."""
    return "\n".join([_model(engine), _sequences(engine), *_cache(engine), *_host(engine), *_disk(engine)])


def _model(engine: Engine) -> str:
    weights = {"int8": "int8", "none": "float32"}[engine.config.quantization]
    return f"{engine.model_name}: weights in {weights}, {_count(engine.threads, 'thread')}"


def _sequences(engine: Engine) -> str:
    longest = f"sequences: up to {engine.max_model_len} tokens, {engine.config.max_num_seqs} computed at once"
    if engine.config.max_model_len is None and engine.max_model_len < engine.context_length:
        return f"{longest};\n  the model goes to {engine.context_length}, with more --kv-cache-memory-bytes"
    return longest


def _cache(engine: Engine) -> list[str]:
    config = engine.config
    slots = engine.num_blocks * config.block_size
    lines = [
        f"KV cache: {slots} tokens in {_count(engine.num_blocks, 'block')} of {config.block_size}, "
        f"{engine.cache_bytes / 2**20:.0f} MiB, {config.store_dtype}"
    ]
    if engine.capacity_ratio != 1:
        lines.append(f"  {engine.capacity_ratio:.4g} times the tokens that bfloat16 would hold in it")
    if engine.calibration is not None:
        lines.append(f"  scales by head from {engine.calibration.tokens} tokens")
    lines.append(f"  {_SHARING[config.prefix_cache]}")
    lines.append(f"  room for {slots / engine.max_model_len:.2f} sequences of {engine.max_model_len} tokens")
    return lines


def _host(engine: Engine) -> list[str]:
    if not engine.host_blocks:
        return []
    tokens = engine.host_blocks * engine.config.block_size
    if engine.config.host_memory_bytes:
        return [f"host memory: {tokens} tokens, for blocks that are evicted or swapped out"]
    return [f"host memory: {tokens} tokens, where blocks from disk arrive"]


def _disk(engine: Engine) -> list[str]:
    disk = engine.core.stats().disk
    if disk is None:
        return []
    most = engine.config.disk_cache_bytes / 2**20
    return [
        f"disk cache: {disk.blocks * engine.config.block_size} tokens found, up to {most:.0f} MiB,\n"
        f"  in {engine.config.disk_cache}"
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
