"""Run a model over whole sequences, block tables and chunks made by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pageinn.model.decoder import Batch, Decoder
from pageinn.store.kv_store import KVStore

BLOCK = 16


def store_for(model: Decoder, blocks: int, dtype: str = "float32") -> KVStore:
    config = model.config
    return KVStore(
        layers=config.num_layers,
        blocks=blocks,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_size=BLOCK,
        dtype=dtype,
    )


def batch_of(
    parts: Sequence[tuple[Sequence[int], int, Sequence[int]]], logits_rows: Sequence[int] | None = None
) -> Batch:
    """One step of several sequences, each (new token ids, position of the first, block table).

    logits_rows: all rows if None.
    """
    positions = [np.arange(start, start + len(tokens)) for tokens, start, _ in parts]
    tables = np.zeros((len(parts), max(len(table) for _, _, table in parts)), np.int32)
    for row, (_, _, table) in enumerate(parts):
        tables[row, : len(table)] = table
    slots = [
        np.asarray(table)[at // BLOCK] * BLOCK + at % BLOCK for at, (_, _, table) in zip(positions, parts, strict=True)
    ]
    starts = np.cumsum([0, *(len(tokens) for tokens, _, _ in parts)])
    return Batch(
        token_ids=np.concatenate([np.asarray(tokens) for tokens, _, _ in parts]).astype(np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        slots=np.concatenate(slots).astype(np.int64),
        tables=tables,
        query_starts=starts.astype(np.int32),
        context_lens=np.array([start + len(tokens) for tokens, start, _ in parts], np.int32),
        logits_rows=np.arange(starts[-1], dtype=np.int32) if logits_rows is None else np.array(logits_rows, np.int32),
    )


def logits_by_chunk(
    model: Decoder, store: KVStore, tokens: Sequence[int], table: Sequence[int], chunk: int
) -> Iterator[NDArray[np.float32]]:
    """Teacher-forced logits of a sequence, [chunk, vocabulary] at a time; each holds until the next."""
    for start in range(0, len(tokens), chunk):
        yield model.forward(batch_of([(tokens[start : start + chunk], start, table)]), store)


def all_logits(
    model: Decoder, store: KVStore, tokens: Sequence[int], table: Sequence[int], chunk: int
) -> NDArray[np.float32]:
    """Teacher-forced logits of a whole sequence [T, vocabulary]."""
    return np.concatenate([logits.copy() for logits in logits_by_chunk(model, store, tokens, table, chunk)])
