"""The decoder over paged keys and values: Llama and its relatives, whose differences are configuration.

Llama: Touvron et al. 2023, arXiv:2302.13971. Mistral: Jiang et al. 2023, arXiv:2310.06825. Qwen 2:
arXiv:2407.10671. Qwen 3: arXiv:2505.09388.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from pageinn.kernels.backend import F32, I32, I64, Backend, LayerStore
from pageinn.model.checkpoint import Checkpoint
from pageinn.model.config import ModelConfig
from pageinn.model.packed_file import PackedFile
from pageinn.model.rotary import rotary_tables
from pageinn.model.sources import open_checkpoint
from pageinn.model.weights import DecoderWeights, LayerWeights, Progress, load_weights
from pageinn.store.kv_store import KVStore


class Batch(NamedTuple):
    """One step's T rows (tokens) of S sequences.

    token_ids, positions: int32 [T]. slots: int64 [T], block * block size + offset where a row's key and value
    go, or -1. tables: int32 [S, max blocks]. query_starts: int32 [S + 1], sequence s owns rows
    query_starts[s]:query_starts[s + 1], the last of its context_lens[s] (int32 [S]) tokens. logits_rows:
    int32 [R], the rows whose logits are wanted.
    """

    token_ids: I32
    positions: I32
    slots: I64
    tables: I32
    query_starts: I32
    context_lens: I32
    logits_rows: I32


class Activations(NamedTuple):
    """Views of a workspace for T rows. queries and attended_heads: [T, heads, D], of qkv and of attended."""

    hidden: F32
    normed: F32
    qkv: F32
    queries: F32
    attended: F32
    attended_heads: F32
    gate_up: F32
    activated: F32


class Workspace:
    """The activations of a step, allocated once; memory is taken when rows are first used."""

    def __init__(self, config: ModelConfig, max_tokens: int) -> None:
        def rows(width: int) -> F32:
            return np.empty((max_tokens, width), np.float32)

        self.max_tokens = max_tokens
        self._heads = (config.num_heads, config.head_dim)
        self.hidden = rows(config.hidden_size)
        self.normed = rows(config.hidden_size)
        self.qkv = rows(config.q_size + 2 * config.kv_size)
        self.heads = rows(config.q_size if config.qk_norm else 0)
        self.attended = rows(config.q_size)
        self.gate_up = rows(2 * config.intermediate_size)
        self.activated = rows(config.intermediate_size)
        self.last = rows(config.hidden_size)
        self.logits = rows(config.vocab_size)

    def rows(self, count: int) -> Activations:
        """Views of the first rows, made once a step: made in each layer they would cost as much as a small kernel."""
        heads, dimension = self._heads
        qkv, attended = self.qkv[:count], self.attended[:count]
        return Activations(
            hidden=self.hidden[:count],
            normed=self.normed[:count],
            qkv=qkv,
            queries=qkv[:, : heads * dimension].reshape(count, heads, dimension),
            attended=attended,
            attended_heads=attended.reshape(count, heads, dimension),
            gate_up=self.gate_up[:count],
            activated=self.activated[:count],
        )


class Decoder:
    """A loaded decoder: weights, rotary tables and the buffers of one step at a time."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights, backend: Backend, max_tokens: int) -> None:
        self.config = config
        self.weights = weights
        self.backend = backend
        self.cos, self.sin = rotary_tables(
            config.context_length, config.rotary_dim, config.rope_theta, config.rope_factors
        )
        self._space = Workspace(config, max_tokens)

    @classmethod
    def load(
        cls,
        model: Checkpoint | str | Path,
        backend: Backend,
        quantization: str = "int8",
        progress: Progress = lambda done, total: None,
        max_tokens: int = 512,
        kept: PackedFile | None = None,
    ) -> Decoder:
        """Load an opened model, or what `open_checkpoint` opens. A step then has at most `max_tokens` rows.

        quantization: "int8" or "none" (float32). progress is called with (bytes done, bytes in all). kept: packed
        weights of an earlier start, or where to leave them. Raises ModelError, one line that names the file, if it
        cannot be served; ValueError for a format that the backend does not support.
        """
        checkpoint = open_checkpoint(model) if isinstance(model, str | Path) else model
        weights = load_weights(checkpoint, backend, quantization, progress, kept)
        return cls(checkpoint.config, weights, backend, max_tokens)

    @property
    def max_tokens(self) -> int:
        """The most rows of one step."""
        return self._space.max_tokens

    def forward(self, batch: Batch, store: KVStore) -> F32:
        """Compute a step: write keys and values to the store, return logits [R, vocabulary].

        The result is a view of a buffer and holds until the next call. Raises ValueError for more rows than
        max_tokens.
        """
        rows, wanted = len(batch.token_ids), len(batch.logits_rows)
        if max(rows, wanted) > self.max_tokens:
            raise ValueError(f"a step of {rows} tokens, {wanted} with logits, exceeds max_tokens={self.max_tokens}")
        space, backend, weights = self._space, self.backend, self.weights
        at = space.rows(rows)
        weights.embedding.lookup(batch.token_ids, at.hidden)
        for index, layer in enumerate(weights.layers):
            self._attend(at, layer, store.layer(index), batch)
            self._transform(at, layer)
        last, logits = space.last[:wanted], space.logits[:wanted]
        np.take(at.hidden, batch.logits_rows, axis=0, out=last)
        backend.rms_norm(last, weights.norm, self.config.rms_eps, last)
        backend.linear(last, weights.head, logits)
        return logits

    def _attend(self, at: Activations, layer: LayerWeights, store: LayerStore, batch: Batch) -> None:
        """hidden += output(attention(norm(hidden)))."""
        config, backend, qkv = self.config, self.backend, at.qkv
        backend.rms_norm(at.hidden, layer.attention_norm, config.rms_eps, at.normed)
        backend.linear(at.normed, layer.qkv, qkv)
        if layer.qkv_bias is not None:
            qkv += layer.qkv_bias
        if layer.query_norm is not None and layer.key_norm is not None:
            self._norm_heads(qkv[:, : config.q_size], layer.query_norm)
            self._norm_heads(qkv[:, config.q_size : config.q_size + config.kv_size], layer.key_norm)
        backend.rotary_write(qkv, batch.positions, self.cos, self.sin, config.num_heads, batch.slots, store)
        backend.attention(
            at.queries,
            store,
            batch.tables,
            batch.query_starts,
            batch.context_lens,
            config.head_dim**-0.5,
            at.attended_heads,
        )
        backend.linear(at.attended, layer.output, at.hidden, add=True)

    def _norm_heads(self, part: F32, weight: F32) -> None:
        """Normalise each head of part[T, heads * D], a strided view; the kernel takes heads as rows side by side."""
        size = self.config.head_dim
        heads = self._space.heads.reshape(-1, size)[: part.size // size]
        np.copyto(heads.reshape(part.shape), part)
        self.backend.rms_norm(heads, weight, self.config.rms_eps, heads)
        np.copyto(part, heads.reshape(part.shape))

    def _transform(self, at: Activations, layer: LayerWeights) -> None:
        """hidden += down(silu(gate(norm(hidden))) * up(norm(hidden)))."""
        backend = self.backend
        backend.rms_norm(at.hidden, layer.mlp_norm, self.config.rms_eps, at.normed)
        backend.linear(at.normed, layer.gate_up, at.gate_up)
        backend.silu_mul(at.gate_up, at.activated)
        backend.linear(at.activated, layer.down, at.hidden, add=True)
