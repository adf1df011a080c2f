"""The slots themselves: one preallocated array of keys and one of values, cut in layers and blocks."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pageinn.kernels.backend import F32, I32, Backend, LayerStore
from pageinn.kernels.slots import SCALE_DTYPES, STORE_DTYPES, Scales, StoreDtype

Bytes = NDArray[np.uint8]

#: The share of the available memory that an error suggests; the rest is for activations and the server.
SAFE_SHARE = 0.8


class StoreTooLargeError(MemoryError):
    """The pool does not fit in the memory that is available now; the message says what would."""


class HeadScales(NamedTuple):
    """What a number in the store is multiplied by, for dtypes with scales by head: float32 [layers, G], above 0."""

    keys: F32
    values: F32


class KVStore:
    """Keys [layers, blocks, G, D, B], values [layers, blocks, G, B, D] and, for some dtypes, scales of a pool.

    The arrays are not filled: a page of memory is taken when its first slot is written.
    """

    def __init__(
        self,
        *,
        layers: int,
        blocks: int,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        dtype: str,
        scales: HeadScales | None = None,
        pairs: bool = False,
    ) -> None:
        """Allocate the pool. scales: for dtypes that have them by head; 1 if None. pairs: keep bfloat16 in pairs.

        Raises StoreTooLargeError if it exceeds the memory available now, ValueError for an unknown dtype or scales
        that do not fit.
        """
        needed = blocks * bytes_per_block(layers, kv_heads, head_dim, block_size, dtype)
        require_memory(needed, available_memory())
        self.dtype = dtype
        self.num_blocks = blocks
        self.block_size = block_size
        self.pairs = pairs and dtype == "bfloat16"
        kind = STORE_DTYPES[dtype]
        self.keys: NDArray[Any] = np.empty((layers, blocks, kv_heads, head_dim, block_size), kind.raw)
        self.values: NDArray[Any] = np.empty((layers, blocks, kv_heads, block_size, head_dim), kind.raw)
        self.key_scales, self.value_scales = _scales(kind, (layers, blocks, kv_heads, block_size), scales)
        self._layers = [self._layer(index) for index in range(layers)]
        self._parts = [_block_bytes(array) for array in self.block_arrays()]

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, touched or not."""
        return self.num_blocks * self.block_bytes

    @property
    def layout(self) -> str:
        """What bytes of a block mean: two stores with the same layout may exchange blocks."""
        layers, _, heads, size, slots = self.keys.shape
        scales = [each.tobytes() for each in (self.key_scales, self.value_scales) if each is not None]
        by_head = STORE_DTYPES[self.dtype].scales is Scales.HEAD
        declared = f" scales {sha256(b''.join(scales)).hexdigest()}" if by_head else ""
        pairs = " in pairs" if self.pairs else ""
        return f"{layers} layers, {heads} heads of {size}, {slots} slots, {self.dtype}{pairs}{declared}"

    def block_arrays(self) -> list[NDArray[Any]]:
        """What blocks are made of, each [layers, blocks, ...]: keys, values, and scales that belong to tokens."""
        by_token = STORE_DTYPES[self.dtype].scales is Scales.TOKEN
        scales = [array for array in (self.key_scales, self.value_scales) if by_token and array is not None]
        return [self.keys, self.values, *scales]

    def _layer(self, index: int) -> LayerStore:
        scales = (self.key_scales, self.value_scales)
        key_scales, value_scales = (None if each is None else each[index] for each in scales)
        return LayerStore(self.keys[index], self.values[index], self.dtype, key_scales, value_scales, self.pairs)

    def declared_scales(self) -> list[F32]:
        """Scales that are the same for all tokens: no part of a block, but what its bits mean depends on them."""
        by_head = STORE_DTYPES[self.dtype].scales is Scales.HEAD
        return [array for array in (self.key_scales, self.value_scales) if by_head and array is not None]

    def layer(self, index: int) -> LayerStore:
        """One layer's slots, views of the pool."""
        return self._layers[index]

    def copy_blocks(self, backend: Backend, pairs: I32) -> None:
        """Copy whole blocks in every layer, pairs[i] = (source, destination), in order."""
        for layer in self._layers:
            backend.copy_blocks(layer, pairs)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers: the length of a row of `read_blocks`."""
        return sum(part.shape[0] * part.shape[2] for part in self._parts)

    def read_blocks(self, blocks: Sequence[int] | I32, out: Bytes) -> None:
        """Copy whole blocks out of the pool: out[i] becomes everything that block blocks[i] holds.

        out: uint8 [len(blocks), block_bytes], rows contiguous: the keys of all layers, then their values, then
        the scales of both where tokens have them. The bytes mean the same to any store of the same `layout`. Raises
        ValueError for another shape and IndexError for a block outside the pool.
        """
        for source, row in zip(self._checked(blocks, out), out, strict=True):
            for part, piece in self._pieces(row):
                piece[:] = part[:, source]

    def write_blocks(self, blocks: Sequence[int] | I32, data: Bytes) -> None:
        """Copy whole blocks into the pool: block blocks[i] becomes data[i], as `read_blocks` gave it.

        In order, so that of a block named twice the last row stays. Raises as `read_blocks` does.
        """
        for destination, row in zip(self._checked(blocks, data), data, strict=True):
            for part, piece in self._pieces(row):
                part[:, destination] = piece

    def _checked(self, blocks: Sequence[int] | I32, data: Bytes) -> list[int]:
        numbers = np.asarray(blocks, np.int64)
        expected = (len(numbers), self.block_bytes)
        if data.dtype != np.uint8 or data.shape != expected:
            raise ValueError(f"bytes of blocks must be uint8 {expected}, got {data.dtype} {data.shape}")
        outside = numbers[(numbers < 0) | (numbers >= self.num_blocks)]
        if len(outside):
            raise IndexError(f"block {outside[0]} is outside 0..{self.num_blocks - 1}")
        if data.strides[1] != 1:
            raise ValueError("bytes of blocks must be contiguous within a row")
        return [int(number) for number in numbers]

    def _pieces(self, row: Bytes) -> list[tuple[Bytes, Bytes]]:
        """Each part of the pool and, of one block's bytes, the piece [layers, bytes] that belongs to it."""
        pieces, start = [], 0
        for part in self._parts:
            end = start + part.shape[0] * part.shape[2]
            pieces.append((part, row[start:end].reshape(part.shape[0], part.shape[2])))
            start = end
        return pieces


def check_scales(scales: HeadScales, layers: int, heads: int) -> None:
    """Raise ValueError for scales that are not positive numbers, or not one per layer and key-value head."""
    for each in scales:
        if each.shape != (layers, heads) or not (np.isfinite(each) & (each > 0)).all():
            raise ValueError(f"scales must be {layers} x {heads} numbers above 0, one per layer and key-value head")


def _scales(
    kind: StoreDtype, shape: tuple[int, int, int, int], given: HeadScales | None
) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """Scales of keys and of values. shape: (layers, blocks, G, B)."""
    layers, blocks, heads, block_size = shape
    if given is not None and kind.scales is not Scales.HEAD:
        raise ValueError("scales by head are for fp8 stores; others have none, or take their own from the data")
    if kind.scales is Scales.NONE:
        return None, None
    if kind.scales is Scales.TOKEN:
        raw = SCALE_DTYPES[Scales.TOKEN]
        return np.empty((layers, blocks, heads, block_size), raw), np.empty((layers, blocks, heads, block_size), raw)
    keys, values = given or HeadScales(np.ones((layers, heads), np.float32), np.ones((layers, heads), np.float32))
    check_scales(HeadScales(keys, values), layers, heads)
    return keys.astype(np.float32), values.astype(np.float32)


def _block_bytes(array: NDArray[Any]) -> Bytes:
    """A view of [layers, blocks, ...] as bytes [layers, blocks, bytes of one block in one layer]."""
    layers, blocks = array.shape[:2]
    return array.view(np.uint8).reshape(layers, blocks, -1)


def bytes_per_block(layers: int, kv_heads: int, head_dim: int, block_size: int, dtype: str) -> int:
    """Bytes of one block's keys and values over all layers. Raises ValueError for an unknown dtype."""
    if dtype not in STORE_DTYPES:
        raise ValueError(f"a KV cache holds {' or '.join(STORE_DTYPES)}, not {dtype!r}")
    kind = STORE_DTYPES[dtype]
    scale = SCALE_DTYPES[kind.scales].itemsize if kind.scales is Scales.TOKEN else 0
    return layers * 2 * kv_heads * block_size * (head_dim * kind.raw.itemsize + scale)


def require_memory(needed: int, available: int) -> None:
    """Raise StoreTooLargeError if a pool of `needed` bytes exceeds `available` bytes."""
    if needed > available:
        raise StoreTooLargeError(
            f"a KV cache of {needed / 2**30:.2f} GiB does not fit in the {available / 2**30:.2f} GiB of "
            f"available memory; --kv-cache-memory-bytes {int(available * SAFE_SHARE)} would"
        )


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes that can be taken without swapping, by the kernel's own estimate."""
    for line in meminfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OSError(f"{meminfo} has no line MemAvailable")
