"""The CPU backend: C++ with AVX-512 or AVX2 chosen at run time, or portable, over a thread pool of its own."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from pageinn.kernels import _cpu
from pageinn.kernels.backend import F32, I32, I64, LayerStore, LogProbs, PackedLinear, SampleParams
from pageinn.kernels.slots import STORE_DTYPES


class CpuBackend:
    """Every operation of the contract on CPU cores.

    threads: how many cores to use, the calling thread included; by default all that this process may run on.
    isa: "avx512_bf16", "avx512", "avx2", "portable" or "auto" (the first that the processor has); the environment
    variable PAGEINN_ISA decides when it is "auto". The first three give the same bits where no number is subnormal,
    portable others in the last places.
    share_prefixes: whether attention reads the keys and values that several sequences' block tables begin with once
    for all of them; the bits are the same either way. Raises ValueError for an unknown or unsupported `isa`, and
    every operation for arguments that do not fit.
    """

    name = "cpu"
    store_dtypes = frozenset(STORE_DTYPES)
    weight_formats = frozenset({"float32", "int8"})
    block_multiple = 8

    def __init__(self, threads: int | None = None, isa: str = "auto", share_prefixes: bool = True) -> None:
        if threads is None:
            threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if isa == "auto":
            isa = os.environ.get("PAGEINN_ISA", "auto")
        self._engine = _cpu.Engine(threads, isa, share_prefixes)

    @property
    def isa(self) -> str:
        """The instruction set in use: "avx512_bf16", "avx512", "avx2" or "portable"."""
        return self._engine.isa

    @property
    def pairs(self) -> bool:
        """Whether attention takes bfloat16 stores in pairs: with "avx512_bf16"."""
        return self._engine.pairs

    @property
    def threads(self) -> int:
        """How many threads compute, the caller included."""
        return self._engine.threads

    @property
    def saturated_values(self) -> int:
        """How many elements of keys and values were cut to the largest number of a store's dtype, so far."""
        return self._engine.saturated_values

    def pack_linear(self, weight: F32, weight_format: str) -> PackedLinear:
        """Pack a finite [N, K] float32 matrix in panels of 16 outputs."""
        return self._engine.pack_linear(weight, weight_format)

    def save_linear(self, weight: PackedLinear) -> NDArray[np.uint8]:
        """A packed matrix as bytes, uint8 [weight.nbytes]: the integers, then the floats."""
        if not isinstance(weight, _cpu.PackedLinear):
            raise ValueError(f"the cpu backend cannot save a {type(weight).__name__}")
        packed = np.empty(weight.nbytes, np.uint8)
        self._engine.save_linear(weight, packed)
        return packed

    def restore_linear(self, packed: NDArray[np.uint8], outputs: int, inputs: int, weight_format: str) -> PackedLinear:
        """What `save_linear` was given, in memory of its own: large pages, which a mapped file does not have."""
        return self._engine.restore_linear(packed, outputs, inputs, weight_format)

    def linear(self, x: F32, weight: PackedLinear, out: F32, add: bool = False) -> None:
        """out[T, N] = x[T, K] @ weight.T, or out += that when `add`. Rows of x and out may be strided."""
        if not isinstance(weight, _cpu.PackedLinear):
            raise ValueError(f"the cpu backend cannot use a {type(weight).__name__}; pack it with pack_linear")
        self._engine.linear(x, weight, out, add)

    def rms_norm(self, x: F32, weight: F32, eps: float, out: F32) -> None:
        """out[T, K] = x / sqrt(mean(x^2) + eps) * weight. `out` may be `x`."""
        self._engine.rms_norm(x, weight, eps, out)

    def rotary_write(
        self, qkv: F32, positions: I32, cos: F32, sin: F32, num_heads: int, slots: I64, store: LayerStore
    ) -> None:
        """Rotate queries and keys in place and write keys and values to the store."""
        self._engine.rotary_write(qkv, positions, cos, sin, num_heads, slots, store)

    def attention(
        self,
        q: F32,
        store: LayerStore,
        tables: I32,
        query_starts: I32,
        context_lens: I32,
        scale: float,
        out: F32,
    ) -> None:
        """Causal attention over block tables, prefill chunks and decodes in one call."""
        self._engine.attention(q, store, tables, query_starts, context_lens, scale, out)

    def silu_mul(self, gate_up: F32, out: F32) -> None:
        """out[T, F] = silu(gate_up[:, :F]) * gate_up[:, F:]."""
        self._engine.silu_mul(gate_up, out)

    def copy_blocks(self, store: LayerStore, pairs: I32) -> None:
        """Copy whole blocks, pairs[i] = (source, destination), in order."""
        _cpu.copy_blocks(store, pairs)

    def sample(self, logits: F32, params: SampleParams) -> I32:
        """A token id per row of logits [R, V]."""
        tokens = np.empty(len(logits), np.int32)
        self._engine.sample(logits, *params, tokens)
        return tokens

    def log_probs(self, logits: F32, tokens: I32, k: int) -> LogProbs:
        """Natural logarithms of softmax(logits) for the given tokens and for the k most likely."""
        rows = len(logits)
        result = LogProbs(np.empty(rows, np.float32), np.empty((rows, k), np.int32), np.empty((rows, k), np.float32))
        self._engine.log_probs(logits, tokens, *result)
        return result
