"""Teacher-forced comparison: every contender reads the same text, and predicts each next token of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pageinn.drift.distance import F64, Distances, distances
from pageinn.kernels.backend import F32, I32
from pageinn.model.decoder import Batch, Decoder
from pageinn.store.kv_store import KVStore

#: Positions computed together; a run that is cut short reports up to the last whole chunk.
CHUNK = 128


class Contender(NamedTuple):
    """A model with a cache of some dtype, and the name it goes by."""

    name: str
    model: Decoder
    store: KVStore


class Chunk(NamedTuple):
    """Distances of the positions from `start` on of one text, by contender. saturated: elements cut, likewise."""

    text: int
    start: int
    found: dict[str, Distances]
    saturated: dict[str, int]


class Trace(NamedTuple):
    """What one contender did at all positions that were compared. text, position: int64 [n], others as Distances."""

    text: NDArray[np.int64]
    position: NDArray[np.int64]
    kl: F64
    gain: F64
    agree: NDArray[np.bool_]
    saturated: int


def compare(
    reference: Contender, contenders: Sequence[Contender], texts: Sequence[I32], threads: int = 1
) -> Iterator[Chunk]:
    """Lead all along each text at once, a chunk at a time; yields what a chunk brought when all have computed it.

    The stores must hold the longest text; what they held is overwritten. threads: for the comparison of logits.
    """
    with ThreadPoolExecutor(threads) as workers:
        for number, tokens in enumerate(texts):
            # The last token has no successor to predict.
            for start, end in starts(len(tokens) - 1):
                expected = forward_chunk(reference, tokens, start, end).copy()
                found, saturated = {}, {}
                for each in contenders:
                    before = each.model.backend.saturated_values
                    logits = forward_chunk(each, tokens, start, end)
                    saturated[each.name] = each.model.backend.saturated_values - before
                    found[each.name] = distances(expected, logits, tokens[start + 1 : end + 1], workers)
                yield Chunk(number, start, found, saturated)


def joined(chunks: Sequence[Chunk], name: str) -> Trace:
    """One contender's trace over the chunks there are, of which there must be one."""
    found = [chunk.found[name] for chunk in chunks]
    counts = [len(each.kl) for each in found]
    return Trace(
        text=np.repeat([chunk.text for chunk in chunks], counts),
        position=np.concatenate([chunk.start + np.arange(count) for chunk, count in zip(chunks, counts, strict=True)]),
        kl=np.concatenate([each.kl for each in found]),
        gain=np.concatenate([each.gain for each in found]),
        agree=np.concatenate([each.agree for each in found]),
        saturated=sum(chunk.saturated[name] for chunk in chunks),
    )


def starts(tokens: int) -> Iterator[tuple[int, int]]:
    """Where chunks of so many tokens begin and end."""
    for start in range(0, tokens, CHUNK):
        yield start, min(start + CHUNK, tokens)


def forward_chunk(contender: Contender, tokens: I32, start: int, end: int) -> F32:
    """Compute the tokens [start, end) of a text in consecutive blocks; the logits of every row, until the next call."""
    positions = np.arange(start, end, dtype=np.int32)
    batch = Batch(
        token_ids=tokens[start:end],
        positions=positions,
        slots=positions.astype(np.int64),
        tables=np.arange(-(-end // contender.store.block_size), dtype=np.int32)[None],
        query_starts=np.array([0, len(positions)], np.int32),
        context_lens=np.array([end], np.int32),
        logits_rows=np.arange(len(positions), dtype=np.int32),
    )
    return contender.model.forward(batch, contender.store)
