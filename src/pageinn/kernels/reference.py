"""The reference backend: numpy, slow, obviously right. Other backends are tested against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pageinn.kernels import bfloat16
from pageinn.kernels import slots as slot_values
from pageinn.kernels.backend import F32, I32, I64, PARTITION, LayerStore, LogProbs, PackedLinear, SampleParams
from pageinn.kernels.philox import uniform
from pageinn.kernels.quantise import ACTIVATION_LIMIT, WEIGHT_LIMIT, quantise_groups

#: What is rounded counts as zero below this: see the contract.
_LEAST_FACTOR = np.float32(2.0**-102)


@dataclass(frozen=True)
class Float32Linear:
    """A plain float32 matrix [N, K]."""

    weight: F32

    @property
    def out_features(self) -> int:
        """N."""
        return int(self.weight.shape[0])

    @property
    def in_features(self) -> int:
        """K."""
        return int(self.weight.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix."""
        return int(self.weight.nbytes)


@dataclass(frozen=True)
class Int8Linear:
    """Integers int8 [N, groups, QUANT_GROUP] in [-63, 63] and their float32 scales [N, groups]."""

    integers: NDArray[np.int8]
    scales: F32
    in_features: int

    @property
    def out_features(self) -> int:
        """N."""
        return int(self.integers.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes of integers and scales."""
        return int(self.integers.nbytes + self.scales.nbytes)


class Slots(NamedTuple):
    """A sequence's slots as stored: keys [G, D, n], values [G, n, D], and the scales of tokens [G, n], 1 for none."""

    keys: F32
    values: F32
    key_scales: F32
    value_scales: F32

    def cut(self, start: int, end: int) -> Slots:
        """The tokens [start, end)."""
        keys, values = self.keys[:, :, start:end], self.values[:, start:end]
        return Slots(keys, values, self.key_scales[:, start:end], self.value_scales[:, start:end])


class Part(NamedTuple):
    """What one partition of keys yields for one query token: maximum and sum [G, r], output [G, r, D]."""

    largest: F32
    total: F32
    output: F32


class ReferenceBackend:
    """Every operation of the contract in numpy, a row at a time where a library chooses by shape."""

    name = "reference"
    store_dtypes = frozenset(slot_values.STORE_DTYPES)
    weight_formats = frozenset({"float32", "int8"})
    block_multiple = 1
    pairs = False

    def __init__(self) -> None:
        self.saturated_values = 0

    def pack_linear(self, weight: F32, weight_format: str) -> PackedLinear:
        """Keep or quantise a [N, K] float32 matrix. Raises ValueError for an unsupported format."""
        if weight_format == "float32":
            return Float32Linear(np.array(weight, np.float32, order="C"))
        if weight_format == "int8":
            integers, scales = quantise_groups(weight, WEIGHT_LIMIT)
            return Int8Linear(integers, scales, int(weight.shape[1]))
        raise ValueError(f"weight format {weight_format!r} is not one of {sorted(self.weight_formats)}")

    def linear(self, x: F32, weight: PackedLinear, out: F32, add: bool = False) -> None:
        """out[T, N] = x[T, K] @ weight.T, or out += that when `add`."""
        if isinstance(weight, Float32Linear):
            # One matrix-vector product per row: a matrix product may choose its order by the shape.
            result = np.stack([weight.weight @ np.ascontiguousarray(row) for row in x]) if len(x) else x[:, :0]
        elif isinstance(weight, Int8Linear):
            result = _int8_linear(x, weight)
        else:
            raise ValueError(f"the reference backend cannot use a {type(weight).__name__}; pack it with pack_linear")
        if len(x):
            out[:] = out + result if add else result

    def rms_norm(self, x: F32, weight: F32, eps: float, out: F32) -> None:
        """out[T, K] = x / sqrt(mean(x^2) + eps) * weight."""
        mean = np.mean(x * x, axis=1, keepdims=True, dtype=np.float32)
        out[:] = x * (np.float32(1) / np.sqrt(mean + np.float32(eps))) * weight

    def rotary_write(
        self, qkv: F32, positions: I32, cos: F32, sin: F32, num_heads: int, slots: I64, store: LayerStore
    ) -> None:
        """Rotate queries and keys in place and write keys and values to the store."""
        _, kv_heads, size, block_size = store.keys.shape
        half = cos.shape[1]
        for row, position, slot in zip(qkv, positions, slots, strict=True):
            rotated = row[: (num_heads + kv_heads) * size].reshape(-1, size)
            left, right = rotated[:, :half].copy(), rotated[:, half : 2 * half].copy()
            rotated[:, :half] = left * cos[position] - right * sin[position]
            rotated[:, half : 2 * half] = right * cos[position] + left * sin[position]
            if slot >= 0:
                block, offset = divmod(int(slot), block_size)
                values = row[(num_heads + kv_heads) * size :].reshape(kv_heads, size)
                self.saturated_values += write_slot(store, block, offset, rotated[num_heads:], values)

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
        """Causal attention over block tables, one query token at a time, partition after partition."""
        kv_heads, block_size = store.keys.shape[1], store.keys.shape[3]
        heads, size = q.shape[1:]
        for sequence, context in enumerate(context_lens.tolist()):
            first, last = int(query_starts[sequence]), int(query_starts[sequence + 1])
            if first == last:
                continue
            table = tables[sequence, : -(-context // block_size)]
            slots = read_slots(store, table, context)
            key_scales, value_scales = head_scales(store)
            for row in range(first, last):
                visible = context - (last - row) + 1
                grouped = np.ascontiguousarray(q[row]).reshape(kv_heads, heads // kv_heads, size)
                grouped = grouped * (np.float32(scale) * key_scales)
                if rounds(store.dtype):
                    grouped = rounded(grouped)
                parts = [attend_part(grouped, slots.cut(*each), store.dtype) for each in partitions(0, visible)]
                out[row] = (merge_parts(parts) * value_scales).reshape(heads, size)

    def silu_mul(self, gate_up: F32, out: F32) -> None:
        """out[T, F] = silu(gate_up[:, :F]) * gate_up[:, F:]."""
        gate, up = np.split(gate_up, 2, axis=1)
        # exp overflows to infinity for gates below -88, and the quotient is then -0, as it should be.
        with np.errstate(over="ignore"):
            out[:] = gate / (np.float32(1) + np.exp(-gate)) * up

    def copy_blocks(self, store: LayerStore, pairs: I32) -> None:
        """Copy whole blocks, pairs[i] = (source, destination), in order."""
        for source, destination in pairs.tolist():
            for array in block_arrays(store):
                array[destination] = array[source]

    def sample(self, logits: F32, params: SampleParams) -> I32:
        """A token id per row of logits [R, V]. Raises ValueError for a row without a finite largest logit."""
        _require_finite(logits)
        tokens = np.empty(len(logits), np.int32)
        for row, values in enumerate(logits):
            if params.temperature[row] == 0:
                tokens[row] = np.argmax(values)
                continue
            probabilities = token_probabilities(
                values,
                float(params.temperature[row]),
                int(params.top_k[row]),
                float(params.top_p[row]),
                float(params.min_p[row]),
            )
            draw = uniform(int(params.seed[row]), int(params.choice[row]), int(params.position[row]))
            cumulative = np.cumsum(probabilities)
            chosen = int(np.searchsorted(cumulative, draw * cumulative[-1], side="right"))
            # Rounding may carry the draw to the very top; the last token that can be drawn is then meant.
            tokens[row] = min(chosen, int(np.flatnonzero(probabilities)[-1]))
        return tokens

    def log_probs(self, logits: F32, tokens: I32, k: int) -> LogProbs:
        """Natural logarithms of softmax(logits) for the given tokens and for the k most likely.

        Raises ValueError for a row without a finite largest logit.
        """
        _require_finite(logits)
        wide = logits.astype(np.float64)
        largest = wide.max(axis=1, keepdims=True) if len(wide) else wide[:, :1]
        logs = (wide - largest - np.log(np.exp(wide - largest).sum(axis=1, keepdims=True))).astype(np.float32)
        # A stable sort of the negated logits: most likely first, ties to the lower id.
        top_ids = np.argsort(-logits, axis=1, kind="stable")[:, :k].astype(np.int32)
        chosen = logs[np.arange(len(tokens)), tokens]
        return LogProbs(chosen, top_ids, np.take_along_axis(logs, top_ids, axis=1))


def block_arrays(store: LayerStore) -> list[NDArray[Any]]:
    """The arrays of a layer that have a part for every block."""
    if slot_values.STORE_DTYPES[store.dtype].scales is not slot_values.Scales.TOKEN:
        return [store.keys, store.values]
    return [array for array in (store.keys, store.values, store.key_scales, store.value_scales) if array is not None]


def write_slot(store: LayerStore, block: int | slice, offset: int, keys: F32, values: F32) -> int:
    """Store one token's keys and values, each [G, D], in one block or several; returns how many elements saturated."""
    key = slot_values.quantise(keys, store.dtype, store.key_scales)
    value = slot_values.quantise(values, store.dtype, store.value_scales)
    slot_values.put_keys(store.keys, store.pairs, block, offset, key.slots)
    slot_values.put_values(store.values, store.pairs, block, offset, value.slots)
    if key.scales is not None and store.key_scales is not None and store.value_scales is not None:
        store.key_scales[block, :, offset] = key.scales
        store.value_scales[block, :, offset] = value.scales
    return key.saturated + value.saturated


def head_scales(store: LayerStore) -> tuple[F32, F32]:
    """Keys' and values' scales by head [G, 1, 1]; 1 where there are none."""
    if slot_values.STORE_DTYPES[store.dtype].scales is not slot_values.Scales.HEAD:
        return np.ones((1, 1, 1), np.float32), np.ones((1, 1, 1), np.float32)
    assert store.key_scales is not None
    assert store.value_scales is not None
    return store.key_scales[:, None, None], store.value_scales[:, None, None]


def read_slots(store: LayerStore, table: I32, context: int) -> Slots:
    """Read a sequence's slots from its blocks."""
    keys = slot_values.to_float32(slot_values.plain_keys(store.keys[table], store.pairs), store.dtype)
    values = slot_values.to_float32(slot_values.plain_values(store.values[table], store.pairs), store.dtype)
    _, kv_heads, size, block_size = keys.shape
    scales = [np.ones((len(table), kv_heads, block_size), np.float32)] * 2
    if slot_values.STORE_DTYPES[store.dtype].scales is slot_values.Scales.TOKEN:
        assert store.key_scales is not None
        assert store.value_scales is not None
        scales = [bfloat16.to_float32(each[table]) for each in (store.key_scales, store.value_scales)]
    return Slots(
        keys.transpose(1, 2, 0, 3).reshape(kv_heads, size, -1),
        values.transpose(1, 0, 2, 3).reshape(kv_heads, -1, size),
        *(each.transpose(1, 0, 2).reshape(kv_heads, -1) for each in scales),
    ).cut(0, context)


def partitions(start: int, end: int) -> list[tuple[int, int]]:
    """Cut [start, end) in runs of PARTITION counted from `start`."""
    return [(left, min(left + PARTITION, end)) for left in range(start, end, PARTITION)]


def rounds(dtype: str) -> bool:
    """Whether what multiplies a store's keys and values is rounded to bfloat16: where bfloat16 holds those exactly."""
    return dtype not in ("float32", "float16")


def rounded(numbers: F32) -> F32:
    """To bfloat16 and back, and to zero what is smaller than the least factor."""
    kept = np.where(np.abs(numbers) < _LEAST_FACTOR, np.float32(0), numbers)
    return bfloat16.to_float32(bfloat16.from_float32(kept))


def attend_part(q: F32, slots: Slots, dtype: str) -> Part:
    """One partition of n tokens for one query token: q [G, r, D] as multiplied."""
    # Contiguous copies: a library may choose its order by strides, which depend on the context.
    scores = np.matmul(q, np.ascontiguousarray(slots.keys)) * slots.key_scales[:, None]
    largest = scores.max(axis=2)
    weights = np.exp(scores - largest[:, :, None])
    scaled = weights * slots.value_scales[:, None]
    if rounds(dtype):
        scaled = rounded(scaled)
    by_token = slot_values.STORE_DTYPES[dtype].scales is slot_values.Scales.TOKEN
    # Where weights are scaled they are not rounded apart from that.
    total = weights if by_token else scaled
    return Part(largest, total.sum(axis=2), np.matmul(scaled, np.ascontiguousarray(slots.values)))


def merge_parts(parts: list[Part]) -> F32:
    """Merge partitions from left to right and normalise: [G, r, D]."""
    merged = parts[0]
    for part in parts[1:]:
        largest = np.maximum(merged.largest, part.largest)
        old, new = np.exp(merged.largest - largest), np.exp(part.largest - largest)
        merged = Part(
            largest,
            merged.total * old + part.total * new,
            merged.output * old[:, :, None] + part.output * new[:, :, None],
        )
    return merged.output / merged.total[:, :, None]


def token_probabilities(logits: F32, temperature: float, top_k: int, top_p: float, min_p: float) -> NDArray[np.float64]:
    """What `sample` draws from: unnormalised float64 [V], zero where a token is filtered out.

    Raises nothing; `temperature` must be above 0. The largest probability is 1.
    """
    scaled = logits.astype(np.float64) / temperature
    probabilities: NDArray[np.float64] = np.exp(scaled - scaled.max())
    probabilities[probabilities < min_p] = 0
    order = np.argsort(-logits, kind="stable")
    if top_k > 0:
        probabilities[order[top_k:]] = 0
    if top_p < 1:
        cumulative = np.cumsum(probabilities[order])
        kept = int(np.searchsorted(cumulative, top_p * cumulative[-1])) + 1
        probabilities[order[kept:]] = 0
    return probabilities


def _int8_linear(x: F32, weight: Int8Linear) -> F32:
    integers, scales = quantise_groups(x, ACTIVATION_LIMIT)
    result = np.zeros((len(x), weight.out_features), np.float32)
    for group in range(scales.shape[1]):
        # Sums of at most 64 * 63 * 127 are exact in float32, in whatever order the library adds them.
        left: NDArray[Any] = integers[:, group].astype(np.float32)
        sums = left @ weight.integers[:, group].astype(np.float32).T
        result += sums * (scales[:, group, None] * weight.scales[None, :, group])
    return result


def _require_finite(logits: F32) -> None:
    bad = [row for row, values in enumerate(logits) if not np.isfinite(values.max())]
    if bad:
        raise ValueError(f"logits row {bad[0]} has NaN, or no finite largest value; check the model's weights")
