"""Symmetric integer quantisation in groups of QUANT_GROUP inputs, as the "int8" linear layers use it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pageinn.kernels.backend import F32, QUANT_GROUP

#: Weights are integers in [-63, 63] and activations in [-127, 127]: stored as weight + 64 (unsigned), two
#: products stay below 2 * 127 * 127 < 2**15, so that the 16-bit multiply-add of AVX2 never saturates.
WEIGHT_LIMIT = 63
ACTIVATION_LIMIT = 127
#: A group whose largest magnitude is below this counts as zero: the inverse of its scale would overflow.
SMALLEST = np.float32(1e-30)


def quantise_groups(matrix: F32, limit: int) -> tuple[NDArray[np.int8], F32]:
    """Quantise the rows of a [rows, K] float32 matrix.

    Returns integers in [-limit, limit], int8 [rows, groups, QUANT_GROUP] with the last group padded by zeros,
    and float32 scales [rows, groups], absmax / limit. Integers are value * (limit / absmax), rounded half
    to even.
    """
    rows, inputs = matrix.shape
    groups = -(-inputs // QUANT_GROUP)
    padded = np.zeros((rows, groups * QUANT_GROUP), np.float32)
    padded[:, :inputs] = matrix
    grouped = padded.reshape(rows, groups, QUANT_GROUP)
    largest = np.abs(grouped).max(axis=2)
    largest[largest < SMALLEST] = 0
    scales = largest / np.float32(limit)
    inverse = np.divide(np.float32(limit), largest, out=np.zeros_like(largest), where=largest > 0)
    integers = np.rint(grouped * inverse[:, :, None])
    return integers.astype(np.int8), scales
