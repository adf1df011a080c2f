"""bfloat16 as raw uint16: the upper half of a float32, rounded to nearest even."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def from_float32(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round float32 values of any shape to bfloat16, to nearest even; a NaN stays a (quiet) NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    # Half of what the dropped bits can hold, less one when the kept part is even: ties go to even.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, quiet, rounded).astype(np.uint16)


def to_float32(raw: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Widen raw bfloat16 of any shape to float32; exact."""
    return (np.ascontiguousarray(raw).astype(np.uint32) << np.uint32(16)).view(np.float32)


def store_to_float32(slots: NDArray[Any]) -> NDArray[np.float32]:
    """Read store contents as float32, whether they are float32 or raw bfloat16.

    Raises ValueError for any other dtype.
    """
    if slots.dtype == np.uint16:
        return to_float32(slots)
    if slots.dtype == np.float32:
        return slots
    raise ValueError(f"a store holds float32 or bfloat16 (raw uint16), not {slots.dtype}")


def float32_to_store(values: NDArray[np.float32], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert float32 values to what a store of this dtype (float32 or uint16) holds.

    Raises ValueError for any other dtype.
    """
    if dtype == np.uint16:
        return from_float32(values)
    if dtype == np.float32:
        return values
    raise ValueError(f"a store holds float32 or bfloat16 (raw uint16), not {dtype}")
