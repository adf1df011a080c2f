from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from pageinn.kernels.reference import ReferenceBackend
from pageinn.kernels.slots import STORE_DTYPES
from pageinn.store.kv_store import HeadScales, KVStore, StoreTooLargeError, available_memory, bytes_per_block


def small(dtype: str = "float32", blocks: int = 5) -> KVStore:
    return KVStore(layers=3, blocks=blocks, kv_heads=2, head_dim=4, block_size=8, dtype=dtype)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_block_of_smollm2_takes_what_a_hand_computes() -> None:
    """I1: key-value heads and bytes: 30 layers * (key, value) * 3 heads * 64 dims * 16 slots * 2 bytes."""
    assert bytes_per_block(30, 3, 64, 16, "bfloat16") == 368_640
    assert bytes_per_block(30, 3, 64, 16, "float32") == 737_280
    assert bytes_per_block(30, 3, 64, 16, "fp8_e4m3") == 184_320
    assert bytes_per_block(30, 3, 64, 16, "int8") == 30 * 2 * 3 * 16 * (64 + 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shapes_and_size(dtype: str) -> None:
    store = small(dtype)
    layer = store.layer(2)
    assert layer.keys.shape == (5, 2, 4, 8)
    assert layer.values.shape == (5, 2, 8, 4)
    assert layer.keys.flags.c_contiguous
    assert layer.values.flags.c_contiguous
    assert layer.keys.dtype == (np.float32 if dtype == "float32" else np.uint16)
    assert store.nbytes == 5 * bytes_per_block(3, 2, 4, 8, dtype)


def test_only_bfloat16_is_kept_in_pairs_and_blocks_of_pairs_are_no_others() -> None:
    shape = {"layers": 1, "blocks": 2, "kv_heads": 2, "head_dim": 4, "block_size": 8}
    plain, paired = (KVStore(**shape, dtype="bfloat16", pairs=pairs) for pairs in (False, True))
    assert (plain.layer(0).pairs, paired.layer(0).pairs) == (False, True)
    assert plain.layout != paired.layout
    assert not KVStore(**shape, dtype="float32", pairs=True).layer(0).pairs


def test_layers_are_views_of_one_pool() -> None:
    store = small()
    store.layer(1).keys[...] = 7
    assert (store.keys[1] == 7).all()


def test_copying_blocks_copies_them_in_every_layer_and_touches_no_other() -> None:
    store = small()
    rng = np.random.default_rng(0)
    store.keys[...] = rng.normal(size=store.keys.shape)
    store.values[...] = rng.normal(size=store.values.shape)
    keys, values = store.keys.copy(), store.values.copy()
    store.copy_blocks(ReferenceBackend(), np.array([[0, 3], [1, 4]], np.int32))
    order = [0, 1, 2, 0, 1]
    np.testing.assert_array_equal(store.keys, keys[:, order])
    np.testing.assert_array_equal(store.values, values[:, order])


def filled(dtype: str, seed: int) -> KVStore:
    """A store of random bytes."""
    store, rng = small(dtype), np.random.default_rng(seed)
    for array in store.block_arrays():
        raw = array.view(np.uint8)
        raw[:] = rng.integers(0, 256, raw.shape)
    return store


@pytest.mark.parametrize("dtype", STORE_DTYPES)
def test_blocks_read_from_one_store_and_written_to_another_are_the_same_blocks(dtype: str) -> None:
    store, other = filled(dtype, 0), filled(dtype, 1)
    untouched = [array.copy() for array in other.block_arrays()]
    data = np.zeros((2, store.block_bytes), np.uint8)
    assert data.shape[1] == bytes_per_block(3, 2, 4, 8, dtype)
    store.read_blocks([4, 1], data)
    other.write_blocks(np.array([0, 3], np.int32), data)
    for ours, theirs, before in zip(store.block_arrays(), other.block_arrays(), untouched, strict=True):
        assert theirs[:, [0, 3]].tobytes() == ours[:, [4, 1]].tobytes()
        assert theirs[:, [1, 2, 4]].tobytes() == before[:, [1, 2, 4]].tobytes()


def test_a_block_is_the_keys_of_all_layers_and_then_their_values() -> None:
    store = filled("bfloat16", 2)
    data = np.zeros((1, store.block_bytes), np.uint8)
    store.read_blocks([2], data)
    assert data.tobytes() == store.keys[:, 2].tobytes() + store.values[:, 2].tobytes()


def test_scales_of_tokens_are_part_of_their_block() -> None:
    store = filled("int8", 2)
    assert store.key_scales is not None
    assert store.value_scales is not None
    data = np.zeros((1, store.block_bytes), np.uint8)
    store.read_blocks([2], data)
    scales = store.key_scales[:, 2].tobytes() + store.value_scales[:, 2].tobytes()
    assert data.tobytes().endswith(store.values[:, 2].tobytes() + scales)
    store.copy_blocks(ReferenceBackend(), np.array([[2, 4]], np.int32))
    again = np.zeros_like(data)
    store.read_blocks([4], again)
    assert again.tobytes() == data.tobytes()


def test_scales_by_head_are_checked() -> None:
    shape = {"layers": 3, "blocks": 5, "kv_heads": 2, "head_dim": 4, "block_size": 8}
    good = np.full((3, 2), 0.5, np.float32)
    assert (KVStore(**shape, dtype="fp8_e4m3", scales=HeadScales(good, good)).key_scales == 0.5).all()
    for bad in (good[:2], good * 0, good * np.inf):
        with pytest.raises(ValueError, match="scales must be 3 x 2 numbers above 0"):
            KVStore(**shape, dtype="fp8_e4m3", scales=HeadScales(good, bad))
    with pytest.raises(ValueError, match="scales by head are for fp8 stores"):
        KVStore(**shape, dtype="int8", scales=HeadScales(good, good))


def test_reading_and_writing_blocks_names_what_is_wrong() -> None:
    store = small()
    good = np.zeros((1, store.block_bytes), np.uint8)
    with pytest.raises(IndexError, match=r"block 5 is outside 0\.\.4"):
        store.read_blocks([5], good)
    with pytest.raises(IndexError, match="block -1 is outside"):
        store.write_blocks([-1], good)
    with pytest.raises(ValueError, match=r"must be uint8 \(2, 1536\), got uint8 \(1, 1536\)"):
        store.write_blocks([0, 1], good)
    with pytest.raises(ValueError, match="got float32"):
        store.read_blocks([0], good.astype(np.float32))
    with pytest.raises(ValueError, match="contiguous within a row"):
        store.read_blocks([0], np.asfortranarray(np.zeros((3, store.block_bytes), np.uint8))[:1])


def test_memory_is_taken_only_when_slots_are_written() -> None:
    before = resident_bytes()
    store = KVStore(layers=8, blocks=4096, kv_heads=4, head_dim=64, block_size=16, dtype="float32")
    assert store.nbytes == 2**30
    assert resident_bytes() - before < 2**26
    store.layer(0).keys[:] = 1
    # But for what the system takes away meanwhile of what this process has left lying for long.
    assert resident_bytes() - before > store.layer(0).keys.nbytes * 3 // 4


def test_a_pool_beyond_the_memory_is_refused_in_one_line_that_says_what_fits() -> None:
    blocks = 2 * available_memory() // bytes_per_block(3, 2, 4, 8, "float32")
    with pytest.raises(StoreTooLargeError) as raised:
        small(blocks=blocks)
    message = str(raised.value)
    assert "\n" not in message
    found = re.search(r"--kv-cache-memory-bytes (\d+)", message)
    assert found
    fits = int(found.group(1))
    assert 0 < fits <= available_memory() * 1.1


def test_an_unknown_dtype_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="float32 or float16 or bfloat16 or fp8_e4m3 or fp8_e5m2 or int8, not 'fp4'"):
        small("fp4")


def test_meminfo_without_the_line_is_said(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 5 kB\n")
    with pytest.raises(OSError, match="MemAvailable"):
        available_memory(tmp_path / "meminfo")
