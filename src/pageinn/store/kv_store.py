"""The slots themselves: one preallocated array of keys and one of values, cut in layers and blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pageinn.kernels.backend import I32, Backend, LayerStore

Bytes = NDArray[np.uint8]

#: numpy's side of the store dtypes; bfloat16 is kept as raw integers.
STORE_DTYPES: dict[str, DTypeLike] = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
#: The share of the available memory that an error suggests; the rest is for activations and the server.
SAFE_SHARE = 0.8


class StoreTooLargeError(MemoryError):
    """The pool does not fit in the memory that is available now; the message says what would."""


class KVStore:
    """Keys [layers, blocks, G, D, B] and values [layers, blocks, G, B, D] of a pool.

    The arrays are not filled: a page of memory is taken when its first slot is written.
    """

    def __init__(self, *, layers: int, blocks: int, kv_heads: int, head_dim: int, block_size: int, dtype: str) -> None:
        """Allocate the pool.

        Raises StoreTooLargeError if it exceeds the memory available now, ValueError for an unknown dtype.
        """
        needed = blocks * bytes_per_block(layers, kv_heads, head_dim, block_size, dtype)
        require_memory(needed, available_memory())
        self.dtype = dtype
        self.num_blocks = blocks
        self.block_size = block_size
        kind = STORE_DTYPES[dtype]
        self.keys: NDArray[Any] = np.empty((layers, blocks, kv_heads, head_dim, block_size), kind)
        self.values: NDArray[Any] = np.empty((layers, blocks, kv_heads, block_size, head_dim), kind)
        self._layers = [LayerStore(self.keys[index], self.values[index]) for index in range(layers)]
        self._parts = [_block_bytes(array) for array in (self.keys, self.values)]

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, touched or not."""
        return int(self.keys.nbytes + self.values.nbytes)

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

        out: uint8 [len(blocks), block_bytes], rows contiguous: the keys of all layers, then their values. The bytes
        mean the same to any store of the same layers, heads, block size and dtype. Raises ValueError for another
        shape and IndexError for a block outside the pool.
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


def _block_bytes(array: NDArray[Any]) -> Bytes:
    """A view of [layers, blocks, ...] as bytes [layers, blocks, bytes of one block in one layer]."""
    layers, blocks = array.shape[:2]
    return array.view(np.uint8).reshape(layers, blocks, -1)


def bytes_per_block(layers: int, kv_heads: int, head_dim: int, block_size: int, dtype: str) -> int:
    """Bytes of one block's keys and values over all layers. Raises ValueError for an unknown dtype."""
    if dtype not in STORE_DTYPES:
        raise ValueError(f"a KV cache holds {' or '.join(STORE_DTYPES)}, not {dtype!r}")
    return layers * 2 * kv_heads * head_dim * block_size * np.dtype(STORE_DTYPES[dtype]).itemsize


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
