"""bfloat16 as raw uint16: the upper half of a float32, rounded to nearest even."""

from __future__ import annotations

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
