"""What a store's slots hold: float32, float16, or bfloat16 as raw uint16; and how float32 gets in and out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pageinn.kernels import bfloat16


def to_float32(slots: NDArray[Any]) -> NDArray[np.float32]:
    """Read slots of any shape as float32; exact. Raises ValueError for a dtype that no store has."""
    if slots.dtype == np.uint16:
        return bfloat16.to_float32(slots)
    if slots.dtype in (np.float32, np.float16):
        return slots.astype(np.float32, copy=False)
    raise _unknown(slots.dtype)


def from_float32(values: NDArray[np.float32], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert float32 values of any shape to what a store of this dtype holds.

    Rounds to nearest even. As in numpy, torch and the processor, what float16 cannot hold (65520 and more) becomes
    infinity: clipped to the largest, a wrong key would give a wrong answer in silence, while infinity ends as a NaN
    that sampling refuses. A NaN stays a (quiet) NaN. Raises ValueError for a dtype that no store has.
    """
    if dtype == np.uint16:
        return bfloat16.from_float32(values)
    if dtype == np.float16:
        with np.errstate(over="ignore", invalid="ignore"):
            halves = values.astype(np.float16)
        # numpy hands a signalling NaN on as it is.
        raw = halves.view(np.uint16)
        return np.where(np.isnan(values), raw | np.uint16(0x200), raw).view(np.float16)
    if dtype == np.float32:
        return values
    raise _unknown(dtype)


def _unknown(dtype: np.dtype[Any]) -> ValueError:
    return ValueError(f"a store holds float32, float16 or bfloat16 (raw uint16), not {dtype}")
