"""The weights of a decoder, checked against its shape and packed for a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import numpy as np

from pageinn.kernels.backend import F32, I32, Backend, PackedLinear
from pageinn.model.checkpoint import Checkpoint
from pageinn.model.config import ModelConfig, ModelError, naming
from pageinn.model.packed_file import PackedFile, Shape

#: Called with bytes of the file that are done, and bytes in all.
Progress = Callable[[int, int], None]
#: The flag's words and the backend's.
WEIGHT_FORMATS = {"int8": "int8", "none": "float32"}

#: Words in the names of tensors that some decoders have and a family here does not, and what they mean.
FOREIGN = {
    "rope_factors": "rotary scaling 'longrope'",
    "bias": "a bias",
    "experts": "mixture of experts",
    "_exps": "mixture of experts",
    "_shexp": "mixture of experts",
    "ffn_gate_inp": "mixture of experts",
    "attn_q_norm": "normalised queries",
    "attn_k_norm": "normalised keys",
    "lora_": "an adapter that is not merged",
}


class LayerWeights(NamedTuple):
    """One layer's weights.

    qkv: [(H + 2G) * D, hidden], queries and keys in half-split rotary order; qkv_bias: [(H + 2G) * D] or None.
    query_norm and key_norm: [D], or None. gate_up: [2F, hidden].
    """

    attention_norm: F32
    qkv: PackedLinear
    qkv_bias: F32 | None
    query_norm: F32 | None
    key_norm: F32 | None
    output: PackedLinear
    mlp_norm: F32
    gate_up: PackedLinear
    down: PackedLinear


class Embedding:
    """Rows of the embedding matrix, read from the mapped file when they are asked for.

    The latest row of each place is kept as float32: a text repeats its words, and dequantising a few rows costs a
    decode step more than a layer does.
    """

    #: Rows that are kept; a token's place is its id modulo this.
    PLACES = 4096

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._rows = np.empty((self.PLACES, checkpoint.config.hidden_size), np.float32)
        # A place without a row bears an id of the next place, which is never looked for here: no id finds it.
        self._tokens = np.arange(1, self.PLACES + 1, dtype=np.int32)

    def lookup(self, token_ids: I32, out: F32) -> None:
        """out[T, hidden] = the rows of token_ids [T]. Raises IndexError for an id outside the vocabulary."""
        places = token_ids % self.PLACES
        missing = np.flatnonzero(self._tokens[places] != token_ids)
        np.take(self._rows, places, axis=0, out=out, mode="clip")
        if missing.size:
            wanted = token_ids[missing]
            self._require(wanted)
            out[missing] = self._checkpoint.rows("token_embd.weight", wanted)
            self._rows[places[missing]] = out[missing]
            self._tokens[places[missing]] = wanted

    def _require(self, wanted: I32) -> None:
        # numpy would take the rows of negative ids from the end.
        vocab_size = self._checkpoint.config.vocab_size
        outside = wanted[(wanted < 0) | (wanted >= vocab_size)]
        if outside.size:
            raise IndexError(f"token {outside[0]} is outside 0..{vocab_size - 1}")


class DecoderWeights(NamedTuple):
    """All of a decoder's weights."""

    embedding: Embedding
    layers: list[LayerWeights]
    norm: F32
    head: PackedLinear

    @property
    def nbytes(self) -> int:
        """Bytes that the packed linear layers occupy in memory; the embedding stays in the mapped file."""
        linears = [linear for layer in self.layers for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        return sum(linear.nbytes for linear in [*linears, self.head])


def load_weights(
    checkpoint: Checkpoint, backend: Backend, quantization: str, progress: Progress, kept: PackedFile | None = None
) -> DecoderWeights:
    """Pack the weights, one packed matrix at a time, so that little is held as float32 at once.

    kept: where the packed matrices are taken from, if they are there, and left for the next time if not.
    quantization: "int8" or "none" (float32). Raises ModelError for missing, foreign or misshapen tensors and
    values that are not finite; ValueError if the backend does not support the format.
    """
    if quantization not in WEIGHT_FORMATS:
        raise ValueError(f"quantization {quantization!r} is not one of {', '.join(WEIGHT_FORMATS)}")
    check_tensors(checkpoint)
    weight_format = WEIGHT_FORMATS[quantization]
    shapes = {name: Shape(*shape, weight_format) for name, shape in _matrices(checkpoint.config)}
    known = {} if kept is None else kept.read(shapes)
    packer = _Packer(checkpoint, backend, weight_format, progress, known)
    weights = packer.pack()
    if kept is not None and not known:
        kept.write(packer.packed)
    return weights


def _matrices(config: ModelConfig) -> Iterator[tuple[str, tuple[int, int]]]:
    """Names and shapes of the matrices that are packed, those that are read together put together."""
    hidden, inner = config.hidden_size, config.intermediate_size
    for index in range(config.num_layers):
        yield f"blk.{index}.qkv", (config.q_size + 2 * config.kv_size, hidden)
        yield f"blk.{index}.output", (hidden, config.q_size)
        yield f"blk.{index}.gate_up", (2 * inner, hidden)
        yield f"blk.{index}.down", (hidden, inner)
    yield "head", (config.vocab_size, hidden)


class _Packer:
    """Reads tensors and counts the bytes that are done."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        backend: Backend,
        weight_format: str,
        progress: Progress,
        known: Mapping[str, PackedLinear],
    ) -> None:
        self.checkpoint, self.backend, self.format, self.progress = checkpoint, backend, weight_format, progress
        self.known = known
        self.packed: dict[str, PackedLinear] = {}
        self.config = checkpoint.config
        self.done = 0
        self.total = sum(tensor.nbytes for tensor in checkpoint.tensors.values())

    def pack(self) -> DecoderWeights:
        layers = [self.layer(f"blk.{index}.") for index in range(self.config.num_layers)]
        norm = self.read("output_norm.weight")
        head = self.linear("head", "token_embd.weight" if self.config.tied_embeddings else "output.weight")
        # Untied embeddings are never read here; they count as done when everything else is.
        self.progress(self.total, self.total)
        return DecoderWeights(Embedding(self.checkpoint), layers, norm, head)

    def layer(self, prefix: str) -> LayerWeights:
        normalised = self.config.qk_norm
        return LayerWeights(
            attention_norm=self.read(prefix + "attn_norm.weight"),
            qkv=self.matrix(prefix + "qkv", lambda: self.qkv(prefix, "weight")),
            qkv_bias=self.qkv(prefix, "bias") if self.config.qkv_bias else None,
            query_norm=self.read(prefix + "attn_q_norm.weight") if normalised else None,
            key_norm=self.read(prefix + "attn_k_norm.weight") if normalised else None,
            output=self.linear(prefix + "output", prefix + "attn_output.weight"),
            mlp_norm=self.read(prefix + "ffn_norm.weight"),
            gate_up=self.linear(prefix + "gate_up", prefix + "ffn_gate.weight", prefix + "ffn_up.weight"),
            down=self.linear(prefix + "down", prefix + "ffn_down.weight"),
        )

    def qkv(self, prefix: str, kind: str) -> F32:
        queries, keys, values = (self.read(f"{prefix}attn_{part}.{kind}") for part in "qkv")
        if self.checkpoint.interleaved_rotary:
            queries = half_split(queries, self.config.head_dim, self.config.rotary_dim)
            keys = half_split(keys, self.config.head_dim, self.config.rotary_dim)
        return np.concatenate([queries, keys, values])

    def linear(self, name: str, *tensors: str) -> PackedLinear:
        return self.matrix(name, lambda: self.stacked(tensors))

    def stacked(self, tensors: tuple[str, ...]) -> F32:
        parts = [self.read(tensor) for tensor in tensors]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def matrix(self, name: str, values: Callable[[], F32]) -> PackedLinear:
        found = self.known.get(name)
        self.packed[name] = self.backend.pack_linear(values(), self.format) if found is None else found
        return self.packed[name]

    def read(self, name: str) -> F32:
        values = self.checkpoint.tensor(name)
        self.done += self.checkpoint.tensors[name].nbytes
        self.progress(self.done, self.total)
        return values


def half_split(weight: F32, head_dim: int, rotary_dim: int) -> F32:
    """Undo a GGUF's permutation of query or key rows [heads * head_dim, hidden].

    Llama GGUFs order a head's rows for rotary embedding of neighbouring pairs (2i, 2i + 1), as in Meta's
    original code; the kernels pair i with i + rotary_dim / 2, as in Hugging Face's.
    """
    order = np.concatenate([np.arange(0, rotary_dim, 2), np.arange(1, rotary_dim, 2), np.arange(rotary_dim, head_dim)])
    heads = weight.reshape(-1, head_dim, weight.shape[1])
    return np.ascontiguousarray(heads[:, order]).reshape(weight.shape)


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a decoder's tensors, one by one (a corrupt count may promise billions)."""
    hidden, inner = config.hidden_size, config.intermediate_size
    yield "token_embd.weight", (config.vocab_size, hidden)
    yield "output_norm.weight", (hidden,)
    if not config.tied_embeddings:
        yield "output.weight", (config.vocab_size, hidden)
    for index in range(config.num_layers):
        prefix = f"blk.{index}."
        yield prefix + "attn_norm.weight", (hidden,)
        yield prefix + "attn_q.weight", (config.q_size, hidden)
        yield prefix + "attn_k.weight", (config.kv_size, hidden)
        yield prefix + "attn_v.weight", (config.kv_size, hidden)
        if config.qkv_bias:
            yield prefix + "attn_q.bias", (config.q_size,)
            yield prefix + "attn_k.bias", (config.kv_size,)
            yield prefix + "attn_v.bias", (config.kv_size,)
        if config.qk_norm:
            yield prefix + "attn_q_norm.weight", (config.head_dim,)
            yield prefix + "attn_k_norm.weight", (config.head_dim,)
        yield prefix + "attn_output.weight", (hidden, config.q_size)
        yield prefix + "ffn_norm.weight", (hidden,)
        yield prefix + "ffn_gate.weight", (inner, hidden)
        yield prefix + "ffn_up.weight", (inner, hidden)
        yield prefix + "ffn_down.weight", (hidden, inner)


def check_tensors(checkpoint: Checkpoint) -> None:
    """Raise ModelError for the first tensor that is foreign, missing or misshapen. Reads no weights."""
    tensors, own_name = checkpoint.tensors, checkpoint.own_name
    with naming(checkpoint.path):
        _refuse_foreign(checkpoint)
        known = set()
        for name, shape in expected_shapes(checkpoint.config):
            if name not in tensors:
                raise ModelError(f"tensor {own_name(name)!r} is missing")
            if tensors[name].shape != shape:
                raise ModelError(f"tensor {own_name(name)!r} has shape {tensors[name].shape}, not {shape}")
            known.add(name)
        for name in tensors:
            if name not in known:
                raise ModelError(f"tensor {own_name(name)!r} is not part of a {checkpoint.config.architecture} model")


def _refuse_foreign(checkpoint: Checkpoint) -> None:
    """Told first: it says why something else may be missing (experts have no plain ffn_gate)."""
    # A corrupt count may promise billions of layers; what the file holds is among the first ones.
    most = 2 * len(checkpoint.tensors) + 16
    expected = {name for name, _ in islice(expected_shapes(checkpoint.config), most)}
    for name in checkpoint.tensors:
        for word, meaning in FOREIGN.items():
            if word in name and name not in expected:
                raise ModelError(f"{meaning} is not supported (tensor {checkpoint.own_name(name)!r})")
