"""What a kernel backend is: the small set of operations that the decoder calls.

Every operation works on numpy arrays that the caller allocated and never keeps a reference to them. Every
operation is *row-independent*: what comes out for a row does not depend on which rows stand beside it, on
how many threads run, or on where a sequence's blocks lie. That is what makes answers bit-identical whatever
the cache did.

Shapes use T rows (tokens of this step), S sequences, H query heads, G key-value heads, D head size, B block
size (a multiple of 8), R rows to sample from, V vocabulary size.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

#: Keys are attended in partitions of this many, counted from position 0, whatever the chunk or block size.
PARTITION = 256
#: Activations and int8 weights share one scale per row and this many inputs.
QUANT_GROUP = 64


class LayerStore(NamedTuple):
    """One layer's key and value slots. All arrays are C-contiguous.

    keys: [blocks, G, D, B], so that the scores of a block's B keys are computed side by side. values: [blocks, G, B,
    D]. dtype: what they hold, a name of `pageinn.kernels.slots.STORE_DTYPES`, which says how it is kept and what its
    scales are. key_scales and value_scales: [G] for scales by head, [blocks, G, B] for scales by token, None for none;
    a slot stands for its number times its scale. pairs: whether a bfloat16 store keeps its numbers in pairs, as `slots`
    says; its D is even.
    """

    keys: NDArray[Any]
    values: NDArray[Any]
    dtype: str
    key_scales: NDArray[Any] | None = None
    value_scales: NDArray[Any] | None = None
    pairs: bool = False


class SampleParams(NamedTuple):
    """Per-row sampling parameters, each of shape [R].

    temperature: float32, 0 is greedy. top_k: int32, 0 is off. top_p and min_p: float32, 1 and 0 are off.
    seed, choice and position: uint64, the last two used as 32-bit counters: the key and the counter of the
    row's Philox draw.
    """

    temperature: F32
    top_k: I32
    top_p: F32
    min_p: F32
    seed: U64
    choice: U64
    position: U64


class LogProbs(NamedTuple):
    """chosen: float32 [R]; top_ids: int32 [R, k] and top: float32 [R, k], most likely first, ties by id."""

    chosen: F32
    top_ids: I32
    top: F32


@runtime_checkable
class PackedLinear(Protocol):
    """A weight matrix in the backend's own layout. `nbytes` is what it occupies, scales included."""

    @property
    def out_features(self) -> int:
        """N."""
        ...

    @property
    def in_features(self) -> int:
        """K."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of weights and scales, padding included."""
        ...


class SavesPacked(Protocol):
    """A backend whose packed matrices can be kept for the next start."""

    def save_linear(self, weight: PackedLinear) -> NDArray[np.uint8]:
        """A packed matrix as bytes, uint8 [weight.nbytes], which mean something to this backend and build alone."""
        ...

    def restore_linear(self, packed: NDArray[np.uint8], outputs: int, inputs: int, weight_format: str) -> PackedLinear:
        """What `save_linear` was given; `packed` is copied. Raises ValueError for bytes of another length."""
        ...


class Backend(Protocol):
    """The operations. A backend declares what it supports; nothing falls back silently."""

    @property
    def name(self) -> str:
        """What the backend is called in settings and logs."""
        ...

    @property
    def store_dtypes(self) -> frozenset[str]:
        """Names of supported store dtypes, of those that `pageinn.kernels.slots` describes."""
        ...

    @property
    def saturated_values(self) -> int:
        """How many elements of keys and values a store's dtype could not hold, so far: cut to its largest number."""
        ...

    @property
    def pairs(self) -> bool:
        """Whether attention is faster over a bfloat16 store in pairs, and takes one."""
        ...

    @property
    def block_multiple(self) -> int:
        """A block's number of tokens is a multiple of it."""
        ...

    @property
    def weight_formats(self) -> frozenset[str]:
        """Names of supported linear weight formats, of "float32" and "int8"."""
        ...

    def pack_linear(self, weight: F32, weight_format: str) -> PackedLinear:
        """Pack a [N, K] float32 matrix (a row per output). Raises ValueError for an unsupported format."""
        ...

    def linear(self, x: F32, weight: PackedLinear, out: F32, add: bool = False) -> None:
        """out[T, N] = x[T, K] @ weight.T, or out += that when `add`.

        "int8": weights are symmetric integers in [-63, 63] with one float32 scale (absmax / 63) per output
        and QUANT_GROUP inputs; each row of x is quantised to [-127, 127] with one scale (absmax / 127) per
        QUANT_GROUP inputs. Both round half to even. Products of a group are summed exactly in int32, and
        groups are added in float32 from the first to the last. (Seven bits of weight, because the 16-bit
        multiply-add of AVX2 saturates beyond: stored as weight + 64, two products stay below 2 * 127 * 127
        < 2**15.)
        """
        ...

    def rms_norm(self, x: F32, weight: F32, eps: float, out: F32) -> None:
        """out[T, K] = x / sqrt(mean(x^2) + eps) * weight. `out` may be `x`."""
        ...

    def rotary_write(
        self,
        qkv: F32,
        positions: I32,
        cos: F32,
        sin: F32,
        num_heads: int,
        slots: I64,
        store: LayerStore,
    ) -> None:
        """Rotate queries and keys in place and write keys and values to the store.

        qkv: [T, (H + 2G) * D], queries, then keys, then values. cos and sin: [max positions, rotary/2];
        dimension i is paired with i + rotary/2 (dimensions from `rotary` on pass through). slots: block * B
        + offset for each row, or -1 to write nothing; no slot twice. Each token is quantised by itself, as
        `pageinn.kernels.slots.quantise` says.
        """
        ...

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
        """Causal attention over block tables, prefill chunks and decodes in one call.

        q: [T, H, D], rows may be strided (a view into qkv). tables: [S, max blocks]. Sequence s owns the rows
        query_starts[s]:query_starts[s+1], which are the last of its context_lens[s] tokens; a row at
        position p sees keys 0..p. Keys are cut in partitions of PARTITION from position 0; each yields
        (max, sum, output), merged left to right. Slots outside the mask are never read into a sum.

        What multiplies the numbers of a bfloat16 store, or of an 8-bit one, which bfloat16 holds exactly, is rounded to
        bfloat16: queries times scale and the head's scale, and weights (the exponentials of what scores exceed the
        partition's largest by), whose sum is that of what is multiplied; but weights times scales by token are rounded
        as such, and their sum is of weights as they were. Below 2**-102 such factors are zero. Sums are float32, and of
        two dimensions or keys 2n and 2n + 1 the latter is added first, in pairs or not (but by numpy, which has an
        order of its own). D is then even.
        out: [T, H, D], C-contiguous.
        """
        ...

    def silu_mul(self, gate_up: F32, out: F32) -> None:
        """out[T, F] = silu(gate_up[:, :F]) * gate_up[:, F:]."""
        ...

    def copy_blocks(self, store: LayerStore, pairs: I32) -> None:
        """Copy whole blocks, pairs[i] = (source, destination), in order."""
        ...

    def sample(self, logits: F32, params: SampleParams) -> I32:
        """A token id per row of logits [R, V].

        Greedy takes the largest logit, ties to the lower id. Otherwise, in this order: divide by
        temperature, keep tokens with probability at least min_p times the largest, keep the top_k largest
        (ties to the lower id), keep the smallest set whose share of what is left reaches top_p; then invert
        the cumulative probability of what is kept, in id order, in float64, at one uniform number in [0,
        1): (x >> 5, y >> 6) 53-bit of the first two words of Philox4x32-10 with key = seed and counter =
        (position, choice, 0, 0). A logit may be -inf (a token that cannot be drawn). Raises ValueError for
        a row with NaN or without a finite largest logit.
        """
        ...

    def log_probs(self, logits: F32, tokens: I32, k: int) -> LogProbs:
        """Natural logarithms of softmax(logits) for the given tokens and for the k most likely.

        Raises ValueError for a row with NaN or without a finite largest logit.
        """
        ...
