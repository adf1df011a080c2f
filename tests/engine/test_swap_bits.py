"""Demand three times the pool: whatever is swapped, recomputed, evicted to the host or lost there, no bit changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from engine_runs import Answer, ChoiceKey, alone, poison, run, store_of
from test_bit_identity import VOCAB, requests_of

from pageinn.engine.config import EngineConfig
from pageinn.engine.engine import Engine
from pageinn.kernels.cpu import CpuBackend
from pageinn.memory.moves import MoveKind
from pageinn.memory.questions import PrefixCache
from pageinn.scheduling.config import AdmissionMode, ConfigError, Preemption
from pageinn.store.host_store import HostStore
from pageinn.store.kv_store import KVStore, StoreTooLargeError, bytes_per_block

DTYPES = sorted(CpuBackend(1).store_dtypes)
#: Answers longer than the prompts, so that what is admitted outgrows the pool.
REQUESTS = [
    replace(request, sampling=replace(request.sampling, max_tokens=50 + number, ignore_eos=True))
    for number, request in enumerate(requests_of(8, VOCAB, 16, 40, 20))
]
BLOCK = 16


def block_bytes(dtype: str) -> int:
    return bytes_per_block(2, 2, 16, BLOCK, dtype)


@cache
def reference(path: Path, dtype: str) -> Mapping[ChoiceKey, Answer]:
    config = EngineConfig(model=path, kv_cache_dtype=dtype, kv_cache_memory_bytes=8 << 20)
    return alone(replace(config, max_num_batched_tokens=512), REQUESTS)


@cache
def demand(path: Path) -> int:
    """Blocks that all requests hold at once, sharing what they can, where there is no limit."""
    engine = Engine(EngineConfig(model=path, kv_cache_memory_bytes=8 << 20, max_num_seqs=64))
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, engine.core.scheduler.memory.usage().in_use)

    run(engine, REQUESTS, look)
    return most


def engine_with(path: Path, dtype: str, host_blocks: int, way: Preemption, **settings: object) -> Engine:
    blocks = demand(path) // 3
    config = EngineConfig(
        model=path,
        kv_cache_dtype=dtype,
        kv_cache_memory_bytes=blocks * block_bytes(dtype),
        host_memory_bytes=host_blocks * block_bytes(dtype),
        max_num_seqs=64,
        admission=AdmissionMode.OPTIMISTIC,
        preempt_by=way,
    )
    engine = Engine(replace(config, **settings))
    assert (engine.num_blocks, engine.host_blocks) == (blocks, host_blocks)
    return engine


def check(engine: Engine, dtype: str, path: Path) -> None:
    """A round cold and one with what the first left, over free blocks and slots that hold no numbers."""
    memory, host = engine.core.scheduler.memory, engine.core._executor._host

    def spoil() -> None:
        # What is free may still have to be stored: it is read before anything is written.
        sources = {move.source for move in memory.outbox._moves if move.kind is not MoveKind.LOAD}
        poison(engine, [block for block in memory.pool._free if block not in sources])
        host.bytes[memory.host.pool._free] = 0xFF

    expected = reference(path, dtype)
    for _ in ("cold", "warm"):
        answers = run(engine, REQUESTS, spoil)
        assert {key: answer.bits for key, answer in answers.items()} == {
            key: answer.bits for key, answer in expected.items()
        }
        memory.check()
    assert memory.usage().in_use == memory.host_usage().held == 0


@pytest.mark.parametrize(
    ("dtype", "prefix_cache"), [*((dtype, PrefixCache.KEEP) for dtype in DTYPES), ("bfloat16", PrefixCache.LIVE)]
)
def test_swap_only(tiny_path: Path, dtype: str, prefix_cache: PrefixCache) -> None:
    """Field case D5: nothing is computed twice, and the answers are those of a pool without limit."""
    engine = engine_with(tiny_path, dtype, 400, Preemption.SWAP, prefix_cache=prefix_cache)
    check(engine, dtype, tiny_path)
    stats = engine.core.stats()
    assert stats.preemptions == stats.swaps > 0
    assert stats.swapped_in_blocks > 0
    assert prefix_cache is PrefixCache.LIVE or stats.demoted_blocks > 0


@pytest.mark.parametrize(("dtype", "host_blocks"), [*((dtype, 0) for dtype in DTYPES), ("bfloat16", 400)])
def test_recompute_only(tiny_path: Path, dtype: str, host_blocks: int) -> None:
    engine = engine_with(tiny_path, dtype, host_blocks, Preemption.RECOMPUTE)
    check(engine, dtype, tiny_path)
    stats = engine.core.stats()
    assert stats.preemptions > 0
    assert stats.swaps == 0
    assert (stats.promoted_blocks > 0) == (host_blocks > 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_some_are_swapped_and_some_are_not(tiny_path: Path, dtype: str) -> None:
    engine = engine_with(tiny_path, dtype, 12, Preemption.SWAP)
    check(engine, dtype, tiny_path)
    stats = engine.core.stats()
    assert stats.preemptions > stats.swaps > 0
    assert stats.dropped_host_blocks > 0


@pytest.mark.parametrize(("dtype", "every"), [*((dtype, 1) for dtype in DTYPES), ("bfloat16", 3)])
def test_a_host_store_that_raises(
    tiny_path: Path, dtype: str, every: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All stores fail, or each third: a miss and a counter, never an error of a request."""
    count, store = 0, HostStore.store

    def raising(self: HostStore, kv: KVStore, block: int, slot: int) -> None:
        nonlocal count
        count += 1
        if count % every == 0:
            self.bytes[slot, :7] = 0xFF
            raise OSError("no space left on device")
        store(self, kv, block, slot)

    monkeypatch.setattr(HostStore, "store", raising)
    engine = engine_with(tiny_path, dtype, 400, Preemption.SWAP)
    check(engine, dtype, tiny_path)
    stats = engine.core.stats()
    assert stats.failed_stores == count // every > 0
    assert stats.swaps > 0
    assert (stats.promoted_blocks > 0) == (every > 1)
    assert "no space left on device" in caplog.text


def test_moves_are_measured(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor says how many blocks went out and came in, and that it took time."""
    engine = engine_with(tiny_path, "bfloat16", 400, Preemption.SWAP)
    executor, results = engine.core._executor, []
    execute = executor.execute
    monkeypatch.setattr(executor, "execute", lambda *given: results.append(execute(*given)) or results[-1])
    run(engine, REQUESTS)
    stats = engine.core.stats()
    out, back = (sum(getattr(result.moves.copied, name) for result in results) for name in ("blocks_out", "blocks_in"))
    assert out == stats.swapped_out_blocks + stats.demoted_blocks
    assert back == stats.promoted_blocks
    assert all((result.moves.copied.out_seconds > 0) == (result.moves.copied.blocks_out > 0) for result in results)
    assert all((result.moves.copied.in_seconds > 0) == (result.moves.copied.blocks_in > 0) for result in results)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_comes_back_from_the_host_as_it_was(dtype: str) -> None:
    sizes = {"layers": 2, "kv_heads": 2, "head_dim": 16, "block_size": BLOCK, "dtype": dtype}
    store = KVStore(blocks=4, **sizes)
    for number, array in enumerate(store.block_arrays()):
        raw = array.view("uint8")
        raw.reshape(-1)[:] = [(7 * place + number) % 251 for place in range(raw.size)]
    before = [array[:, 1].tobytes() for array in store.block_arrays()]
    host = HostStore(3, store.block_bytes, 1 << 20)
    host.store(store, 1, 2)
    host.load(store, 2, 3)
    assert [array[:, 3].tobytes() for array in store.block_arrays()] == before
    assert [array[:, 1].tobytes() for array in store.block_arrays()] == before


def test_what_cannot_be_is_refused(tiny_path: Path) -> None:
    with pytest.raises(ConfigError, match="--host-memory-bytes needs --prefix-cache keep or live"):
        EngineConfig(host_memory_bytes=1 << 20, prefix_cache=PrefixCache.OFF)
    with pytest.raises(ConfigError, match="--host-memory-bytes 100 is less than one block"):
        Engine(EngineConfig(model=tiny_path, kv_cache_memory_bytes=1 << 20, host_memory_bytes=100))
    with pytest.raises(StoreTooLargeError, match="give less --host-memory-bytes"):
        Engine(EngineConfig(model=tiny_path, kv_cache_memory_bytes=1 << 20, host_memory_bytes=1 << 50))
    assert store_of(Engine(EngineConfig(model=tiny_path, kv_cache_memory_bytes=1 << 20))).num_blocks > 0
