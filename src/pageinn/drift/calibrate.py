"""Scales for an fp8 cache from the largest keys and values of each head along some texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pageinn.drift.forced import Contender, forward_chunk, starts
from pageinn.kernels.backend import F32, I32
from pageinn.kernels.fp8 import FORMATS
from pageinn.store.kv_store import HeadScales

#: Twice what was seen still fits: other texts go beyond the largest of these.
HEADROOM = 2.0


class Extremes:
    """The largest magnitudes of keys and values so far, float32 [layers, G], and how many tokens they are from."""

    def __init__(self, contender: Contender) -> None:
        """Contender: a model with a float32 cache."""
        shape = contender.store.keys.shape
        self._contender = contender
        self.tokens = 0
        self.keys: F32 = np.zeros((shape[0], shape[2]), np.float32)
        self.values: F32 = np.zeros_like(self.keys)

    def read(self, texts: Sequence[I32]) -> Iterator[int]:
        """Lead the model along each text; yields how many tokens each chunk had."""
        for tokens in texts:
            for start, end in starts(len(tokens)):
                forward_chunk(self._contender, tokens, start, end)
                self._take(start, end)
                self.tokens += end - start
                yield end - start

    def _take(self, start: int, end: int) -> None:
        """Slots of blocks that only this run has written: others are uninitialised."""
        store = self._contender.store
        blocks = np.s_[start // store.block_size : -(-end // store.block_size)]
        written = end - start
        keys, values = np.abs(store.keys[:, blocks]), np.abs(store.values[:, blocks])
        layers, _, heads = keys.shape[:3]
        by_slot = keys.transpose(0, 2, 3, 1, 4).reshape(layers, heads, keys.shape[3], -1)[..., :written]
        np.maximum(self.keys, by_slot.max(axis=(2, 3)), out=self.keys)
        by_slot = values.transpose(0, 2, 1, 3, 4).reshape(layers, heads, -1, keys.shape[3])[:, :, :written]
        np.maximum(self.values, by_slot.max(axis=(2, 3)), out=self.values)


def scales_from(extremes: Extremes) -> HeadScales:
    """Powers of two, which add no rounding of their own, so that HEADROOM times the largest fits an e4m3."""
    return HeadScales(_scale(extremes.keys), _scale(extremes.values))


def _scale(largest: F32) -> F32:
    wanted = largest * np.float32(HEADROOM / FORMATS["fp8_e4m3"].largest)
    mantissas, exponents = np.frexp(wanted)
    # frexp's mantissas are from a half on: that of a power of two is exactly a half.
    found: F32 = np.ldexp(np.float32(1), np.where(mantissas == 0.5, exponents - 1, exponents)).astype(np.float32)
    return np.where(largest > 0, found, np.float32(1)).astype(np.float32)
