"""Eight-bit floats as raw uint8: the two formats of the OCP 8-bit floating point specification, revision 1.0.

e4m3fn has no infinity and one NaN of each sign (all ones), e5m2 is the upper half of a float16. Casts saturate, as a
GPU's do: what lies beyond the largest number, infinity included, becomes the largest number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Format(NamedTuple):
    """mantissa: its bits. bias: of the exponent. largest: the largest number, and largest_bits what it is stored as."""

    mantissa: int
    bias: int
    largest: float
    largest_bits: int


FORMATS = {"fp8_e4m3": Format(3, 7, 448.0, 0x7E), "fp8_e5m2": Format(2, 15, 57344.0, 0x7B)}
_NAN_BITS = 0x7F


def from_float32(values: NDArray[np.float32], kind: Format) -> NDArray[np.uint8]:
    """Round float32 values of any shape to nearest even, saturating; a NaN stays a NaN."""
    magnitudes = np.minimum(np.abs(values), np.float32(kind.largest))
    # In units of the last place: the exponent is that of the value, or of the least normal number below that.
    _, exponents = np.frexp(magnitudes)
    exponents = np.where(magnitudes == 0, 1 - kind.bias, np.maximum(exponents - 1, 1 - kind.bias))
    with np.errstate(invalid="ignore"):
        units = np.rint(np.ldexp(magnitudes, kind.mantissa - exponents)).astype(np.int32)
    # A carry into the next binade adds one to the exponent's field by itself.
    bits = ((exponents + kind.bias - 1) << kind.mantissa) + units
    bits = np.where(np.isnan(values), _NAN_BITS, bits)
    return (bits | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def to_float32(raw: NDArray[np.uint8], kind: Format) -> NDArray[np.float32]:
    """Widen raw values of any shape to float32; exact."""
    table: NDArray[np.float32] = _TABLES[kind][raw]
    return table


def _value(bits: int, kind: Format) -> float:
    exponent, mantissa = (bits & 0x7F) >> kind.mantissa, bits & ((1 << kind.mantissa) - 1)
    if bits & 0x7F > kind.largest_bits:
        magnitude = np.inf if kind is FORMATS["fp8_e5m2"] and mantissa == 0 else np.nan
    elif exponent == 0:
        magnitude = mantissa * 2.0 ** (1 - kind.bias - kind.mantissa)
    else:
        magnitude = ((1 << kind.mantissa) + mantissa) * 2.0 ** (exponent - kind.bias - kind.mantissa)
    return -magnitude if bits & 0x80 else magnitude


_TABLES = {kind: np.array([_value(bits, kind) for bits in range(256)], np.float32) for kind in FORMATS.values()}
