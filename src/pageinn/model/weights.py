"""The weights of a Llama decoder, checked against its shape and packed for a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pageinn.kernels.backend import F32, I32, Backend, PackedLinear
from pageinn.model.config import ModelConfig, ModelError
from pageinn.model.gguf_file import GGUFFile, dequantise_rows, naming

#: Called with bytes of the file that are done, and bytes in all.
Progress = Callable[[int, int], None]
#: The flag's words and the backend's.
WEIGHT_FORMATS = {"int8": "int8", "none": "float32"}

#: Words in the names of tensors that a plain Llama does not have, and what they mean.
FOREIGN = {
    "rope_freqs": "rotary scaling by frequency factors (llama3, longrope)",
    "rope_factors": "rotary scaling by frequency factors (llama3, longrope)",
    "bias": "a bias",
    "_exps": "mixture of experts",
    "_shexp": "mixture of experts",
    "ffn_gate_inp": "mixture of experts",
    "attn_q_norm": "normalised queries",
    "attn_k_norm": "normalised keys",
}


class LayerWeights(NamedTuple):
    """One layer's weights.

    qkv: [(H + 2G) * D, hidden], queries and keys in half-split rotary order. gate_up: [2F, hidden].
    """

    attention_norm: F32
    qkv: PackedLinear
    output: PackedLinear
    mlp_norm: F32
    gate_up: PackedLinear
    down: PackedLinear


class Embedding:
    """Rows of the embedding matrix, dequantised from the mapped file when they are asked for."""

    def __init__(self, file: GGUFFile) -> None:
        self._rows: NDArray[np.uint8] = file.raw_rows("token_embd.weight")
        self._type = file.tensors["token_embd.weight"].type

    def lookup(self, token_ids: I32, out: F32) -> None:
        """out[T, hidden] = the rows of token_ids [T]. Raises IndexError for an id outside the vocabulary."""
        out[:] = dequantise_rows(self._rows[token_ids], self._type)


class LlamaWeights(NamedTuple):
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


def load_weights(file: GGUFFile, backend: Backend, quantization: str, progress: Progress) -> LlamaWeights:
    """Pack the weights, one packed matrix at a time, so that little is held as float32 at once.

    quantization: "int8" or "none" (float32). Raises ModelError for missing, foreign or misshapen tensors and
    values that are not finite; ValueError if the backend does not support the format.
    """
    if quantization not in WEIGHT_FORMATS:
        raise ValueError(f"quantization {quantization!r} is not one of {', '.join(WEIGHT_FORMATS)}")
    with naming(file.path):
        _check_tensors(file)
    return _Packer(file, backend, WEIGHT_FORMATS[quantization], progress).pack()


class _Packer:
    """Reads tensors and counts the bytes that are done."""

    def __init__(self, file: GGUFFile, backend: Backend, weight_format: str, progress: Progress) -> None:
        self.file, self.backend, self.format, self.progress = file, backend, weight_format, progress
        self.done = 0
        self.total = sum(tensor.nbytes for tensor in file.tensors.values())

    def pack(self) -> LlamaWeights:
        config = self.file.config
        layers = [self.layer(f"blk.{index}.") for index in range(config.num_layers)]
        norm = self.read("output_norm.weight")
        head = self.linear("token_embd.weight" if config.tied_embeddings else "output.weight")
        # Untied embeddings are never read here; they count as done when everything else is.
        self.progress(self.total, self.total)
        return LlamaWeights(Embedding(self.file), layers, norm, head)

    def layer(self, prefix: str) -> LayerWeights:
        config = self.file.config
        queries = half_split(self.read(prefix + "attn_q.weight"), config.head_dim, config.rotary_dim)
        keys = half_split(self.read(prefix + "attn_k.weight"), config.head_dim, config.rotary_dim)
        values = self.read(prefix + "attn_v.weight")
        return LayerWeights(
            attention_norm=self.read(prefix + "attn_norm.weight"),
            qkv=self.backend.pack_linear(np.concatenate([queries, keys, values]), self.format),
            output=self.linear(prefix + "attn_output.weight"),
            mlp_norm=self.read(prefix + "ffn_norm.weight"),
            gate_up=self.linear(prefix + "ffn_gate.weight", prefix + "ffn_up.weight"),
            down=self.linear(prefix + "ffn_down.weight"),
        )

    def linear(self, *names: str) -> PackedLinear:
        parts = [self.read(name) for name in names]
        return self.backend.pack_linear(parts[0] if len(parts) == 1 else np.concatenate(parts), self.format)

    def read(self, name: str) -> F32:
        values = self.file.tensor(name)
        self.done += self.file.tensors[name].nbytes
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
        yield prefix + "attn_output.weight", (hidden, config.q_size)
        yield prefix + "ffn_norm.weight", (hidden,)
        yield prefix + "ffn_gate.weight", (inner, hidden)
        yield prefix + "ffn_up.weight", (inner, hidden)
        yield prefix + "ffn_down.weight", (hidden, inner)


def _check_tensors(file: GGUFFile) -> None:
    # What is foreign is told first: it says why something else may be missing (experts have no plain
    # ffn_gate).
    for name in file.tensors:
        for word, meaning in FOREIGN.items():
            if word in name:
                raise ModelError(f"{meaning} is not supported (tensor {name!r})")
    known = set()
    for name, shape in expected_shapes(file.config):
        if name not in file.tensors:
            raise ModelError(f"tensor {name!r} is missing")
        if file.tensors[name].shape != shape:
            raise ModelError(f"tensor {name!r} has shape {file.tensors[name].shape}, not {shape}")
        known.add(name)
    for name in file.tensors:
        if name not in known:
            raise ModelError(f"tensor {name!r} is not part of a {file.config.architecture} model")
