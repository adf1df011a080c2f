"""Rotary tables (Su et al. 2021, arXiv:2104.09864) and the scalings of their frequencies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pageinn.kernels.backend import F32
from pageinn.model.config import ModelError


def frequencies(rotary_dim: int, theta: float) -> F32:
    """Angle per position of each pair of dimensions, float32 [rotary_dim / 2].

    In float32, as Hugging Face computes them: an angle at position 6,000 keeps ten bits after the point, so a
    frequency that is rounded otherwise shows. The power is rounded once, from float64, because float32 powers
    differ between libraries in the last bit.
    """
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    powers = (np.float64(theta) ** exponents.astype(np.float64)).astype(np.float32)
    return np.float32(1) / powers


def rotary_tables(positions: int, rotary_dim: int, theta: float, factors: Sequence[float] = ()) -> tuple[F32, F32]:
    """Cosines and sines, each float32 [positions, rotary_dim / 2].

    factors: what each frequency is divided by, empty if by nothing.
    """
    each: F32 = frequencies(rotary_dim, theta)
    if factors:
        each = np.divide(each, np.array(factors, np.float32), dtype=np.float32)
    angles = np.arange(positions, dtype=np.float32)[:, None] * each
    return np.cos(angles), np.sin(angles)


def linear_factors(rotary_dim: int, factor: float) -> tuple[float, ...]:
    """Every frequency divided by the same factor, rounded to float32 (Chen et al. 2023, arXiv:2306.15595)."""
    return (float(np.float32(factor)),) * (rotary_dim // 2)


def llama3_factors(
    rotary_dim: int, theta: float, *, factor: float, low: float, high: float, original: int
) -> tuple[float, ...]:
    """Llama 3.1's: long waves are stretched by `factor`, short ones not at all, those between in part.

    low and high: the numbers of waves in the `original` context between which the stretch fades out. The same
    float32 values as llama.cpp's converter writes to rope_freqs.weight, so that both files give the same bits.
    Raises ModelError, without the file's name, where high does not exceed low.
    """
    if not high > low:
        raise ModelError(f"rotary scaling llama3: high_freq_factor {high} must exceed low_freq_factor {low}")
    factors = []
    for frequency in frequencies(rotary_dim, theta):
        wavelength = np.float32(2 * math.pi) / frequency
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(float(np.float32(factor)))
        else:
            kept = (np.float32(original) / wavelength - np.float32(low)) / np.float32(high - low)
            stretch = np.float32(1) / ((np.float32(1) - kept) / np.float32(factor) + kept)
            factors.append(float(stretch))
    return tuple(factors)
