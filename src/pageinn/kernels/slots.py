"""What a store's slots hold, by the dtype's name, and how float32 gets in and out.

| dtype | raw | scales |
|---|---|---|
| float32, float16 | itself | none |
| bfloat16 | uint16 | none |
| fp8_e4m3, fp8_e5m2 | uint8 | one float32 per layer and head, declared before anything is stored, 1 by default |
| int8 | int8 | one bfloat16 (raw uint16) per token and head, from that token's own values |

A bfloat16 store may be in pairs: it then keeps two numbers side by side that attention adds one after the other,
because some processors multiply such pairs at once: of keys two dimensions, [D / 2, B, 2], of values two tokens,
[B / 2, D, 2].
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pageinn.kernels import bfloat16, fp8

#: The largest magnitude of an int8 slot: symmetric, so that no value has a partner it cannot be negated to.
INT8_LIMIT = 127
_BFLOAT16_NAN = 0x7FC0


class Scales(Enum):
    """What shares a scale."""

    NONE = "none"
    HEAD = "head"
    TOKEN = "token"


class StoreDtype(NamedTuple):
    """raw: numpy's dtype of a slot."""

    raw: np.dtype[Any]
    scales: Scales


STORE_DTYPES = {
    "float32": StoreDtype(np.dtype(np.float32), Scales.NONE),
    "float16": StoreDtype(np.dtype(np.float16), Scales.NONE),
    "bfloat16": StoreDtype(np.dtype(np.uint16), Scales.NONE),
    "fp8_e4m3": StoreDtype(np.dtype(np.uint8), Scales.HEAD),
    "fp8_e5m2": StoreDtype(np.dtype(np.uint8), Scales.HEAD),
    "int8": StoreDtype(np.dtype(np.int8), Scales.TOKEN),
}
#: numpy's dtype of the scales, where there are any.
SCALE_DTYPES: dict[Scales, np.dtype[Any]] = {Scales.HEAD: np.dtype(np.float32), Scales.TOKEN: np.dtype(np.uint16)}


class Quantised(NamedTuple):
    """slots: raw, the shape of the values. scales: raw, one per vector, or None. saturated: how many were cut."""

    slots: NDArray[Any]
    scales: NDArray[Any] | None
    saturated: int


def quantise(values: NDArray[np.float32], dtype: str, head_scales: NDArray[np.float32] | None) -> Quantised:
    """Convert one token's vectors [heads, D], each by itself.

    Rounds to nearest even. As in numpy, torch and the processor, what float16 cannot hold (65520 and more) becomes
    infinity: clipped to the largest, a wrong key would give a wrong answer in silence, while infinity ends as a NaN
    that sampling refuses. fp8 saturates and counts; int8 has no largest value, and a vector with NaN or infinity
    becomes NaN altogether. A NaN stays a (quiet) NaN. head_scales: [heads], for the dtypes that have them.
    """
    if dtype in fp8.FORMATS:
        assert head_scales is not None
        kind = fp8.FORMATS[dtype]
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = values / head_scales[:, None]
        return Quantised(fp8.from_float32(scaled, kind), None, int((np.abs(scaled) > kind.largest).sum()))
    if dtype == "int8":
        return _quantise_int8(values)
    return Quantised(_from_float32(values, dtype), None, 0)


def to_float32(slots: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Read slots of any shape as float32, before scales; exact."""
    if dtype in fp8.FORMATS:
        return fp8.to_float32(slots, fp8.FORMATS[dtype])
    if dtype == "bfloat16":
        return bfloat16.to_float32(slots)
    return slots.astype(np.float32, copy=False)


def put_keys(array: NDArray[Any], pairs: bool, block: int | slice, offset: int, slots: NDArray[Any]) -> None:
    """Place one token's raw keys [G, D] in an array [blocks, G, D, B]."""
    if pairs:
        key_pairs(array)[block, :, :, offset] = slots.reshape(len(slots), -1, 2)
    else:
        array[block, :, :, offset] = slots


def put_values(array: NDArray[Any], pairs: bool, block: int | slice, offset: int, slots: NDArray[Any]) -> None:
    """Place one token's raw values [G, D] in an array [blocks, G, B, D]."""
    if pairs:
        value_pairs(array)[block, :, offset // 2, :, offset % 2] = slots
    else:
        array[block, :, offset] = slots


def plain_keys(array: NDArray[Any], pairs: bool) -> NDArray[Any]:
    """Raw keys of blocks [n, G, D, B] in the order that their shape says."""
    return key_pairs(array).swapaxes(3, 4).reshape(array.shape) if pairs else array


def plain_values(array: NDArray[Any], pairs: bool) -> NDArray[Any]:
    """Raw values of blocks [n, G, B, D] in the order that their shape says."""
    return value_pairs(array).swapaxes(3, 4).reshape(array.shape) if pairs else array


def key_pairs(array: NDArray[Any]) -> NDArray[Any]:
    """A contiguous array of bfloat16 keys [n, G, D, B] seen as [n, G, D / 2, B, 2]."""
    blocks, heads, size, block_size = array.shape
    return array.reshape(blocks, heads, size // 2, block_size, 2)


def value_pairs(array: NDArray[Any]) -> NDArray[Any]:
    """A contiguous array of bfloat16 values [n, G, B, D] seen as [n, G, B / 2, D, 2]."""
    blocks, heads, block_size, size = array.shape
    return array.reshape(blocks, heads, block_size // 2, size, 2)


def _from_float32(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    if dtype == "bfloat16":
        return bfloat16.from_float32(values)
    if dtype == "float16":
        with np.errstate(over="ignore", invalid="ignore"):
            halves = values.astype(np.float16)
        # numpy hands a signalling NaN on as it is.
        raw = halves.view(np.uint16)
        return np.where(np.isnan(values), raw | np.uint16(0x200), raw).view(np.float16)
    return values


def _quantise_int8(values: NDArray[np.float32]) -> Quantised:
    """Scales are absmax / 127 rounded up to bfloat16, so that nothing exceeds 127."""
    largest = np.abs(values).max(axis=1)
    finite = np.isfinite(largest)
    exact = np.where(finite, largest, np.float32(0)) / np.float32(INT8_LIMIT)
    scales = ((exact.view(np.uint32) + np.uint32(0xFFFF)) >> np.uint32(16)).astype(np.uint16)
    divisors = bfloat16.to_float32(scales)[:, None]
    usable = finite[:, None] & (divisors > 0)
    integers = np.rint(np.divide(values, divisors, out=np.zeros_like(values), where=usable))
    return Quantised(integers.astype(np.int8), np.where(finite, scales, np.uint16(_BFLOAT16_NAN)), 0)
