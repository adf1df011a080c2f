"""Bytes: of weights, of a token's keys and values, of sequences in blocks. Everything is per accelerator.

Tensor parallelism over `tp` accelerators cuts weights evenly. Key-value heads are cut too, and repeated where there are
fewer than accelerators; a latent cache belongs to all heads, so each accelerator keeps all of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pageinn.catalogue.errors import CatalogueError, known
from pageinn.catalogue.shape import Attention, GroupedQuery, Shape


class StoreDtype(NamedTuple):
    """What an element of the cache takes: its own bytes, and those of the scale that one head's vector has."""

    element: float
    scale: float


#: Names as `--kv-cache-dtype` has them. int8 is pageinn's: one bfloat16 scale per token and head.
STORE_DTYPES = {
    "float32": StoreDtype(4, 0),
    "bfloat16": StoreDtype(2, 0),
    "float16": StoreDtype(2, 0),
    "fp8": StoreDtype(1, 0),
    "fp8_e4m3": StoreDtype(1, 0),
    "fp8_e5m2": StoreDtype(1, 0),
    "int8": StoreDtype(1, 2),
}


class WeightFormat(NamedTuple):
    """Bytes of a weight in a quantised matrix, which matrices those are, and what the products are computed in.

    quantised: "all" parameters, the matrices inside the "layers", or "experts" only; the rest takes 2 bytes.
    """

    weight: float
    quantised: str
    compute: str


#: int4: a 16-bit scale and a 4-bit zero for each group of 128 (GPTQ, AWQ). mxfp4: 8-bit scales for groups of 32
#: (OCP Microscaling 1.0). fp8's scales, one for 128 x 128 weights, are not counted.
WEIGHT_FORMATS = {
    "float32": WeightFormat(4, "all", "float32"),
    "bfloat16": WeightFormat(2, "all", "half"),
    "float16": WeightFormat(2, "all", "half"),
    "fp8": WeightFormat(1, "layers", "fp8"),
    "int8": WeightFormat(1, "layers", "int8"),
    "int4": WeightFormat((4 + 20 / 128) / 8, "layers", "half"),
    "mxfp4": WeightFormat((4 + 8 / 32) / 8, "experts", "half"),
}


def store_dtype(name: str) -> StoreDtype:
    """A dtype of the cache. Raises CatalogueError for another name."""
    if name not in STORE_DTYPES:
        raise known("KV cache dtype", name, list(STORE_DTYPES))
    return STORE_DTYPES[name]


def weight_format(name: str) -> WeightFormat:
    """A format of weights. Raises CatalogueError for another name."""
    if name not in WEIGHT_FORMATS:
        raise known("weight format", name, list(WEIGHT_FORMATS))
    return WEIGHT_FORMATS[name]


def weight_bytes(shape: Shape, name: str, tp: int = 1) -> float:
    """Bytes of all weights in a format, on one of tp accelerators."""
    form = weight_format(name)
    if form.quantised == "all":
        return shape.parameters * form.weight / tp
    small = shape.layer_weights if form.quantised == "layers" else shape.expert_weights
    return (small * form.weight + (shape.parameters - small) * 2) / tp


def layer_token_bytes(attention: Attention, dtype: str, tp: int = 1) -> float:
    """Bytes that one token takes in one layer of the cache: key-value heads only, whatever the hidden size is.

    Raises CatalogueError where tp does not fit the heads.
    """
    element, scale = store_dtype(dtype)
    whole = attention.cached * element + attention.scaled_heads * scale
    if not isinstance(attention, GroupedQuery):
        return whole
    if attention.heads % tp:
        raise CatalogueError(f"{attention.heads} heads cannot be cut over {tp} accelerators")
    kept = -(-attention.kv_heads // tp)
    if tp % attention.kv_heads and attention.kv_heads % tp:
        raise CatalogueError(f"{attention.kv_heads} key-value heads cannot be cut over {tp} accelerators")
    return whole * kept / attention.kv_heads


def token_bytes(shape: Shape, dtype: str, tp: int = 1) -> float:
    """Bytes of one token that no window has dropped, in all layers."""
    return shape.layers * layer_token_bytes(shape.attention, dtype, tp)


def growing_token_bytes(shape: Shape, dtype: str, tp: int = 1) -> float:
    """Bytes that one more token costs once every window is full: only layers that see everything keep more."""
    growing = sum(group.count for group in shape.groups if group.window is None)
    return growing * layer_token_bytes(shape.attention, dtype, tp)


def sequence_bytes(shape: Shape, tokens: float, dtype: str, tp: int = 1) -> float:
    """Bytes of a sequence: a layer with a window keeps min(window, tokens)."""
    kept = sum(group.count * min(group.window or tokens, tokens) for group in shape.groups)
    return kept * layer_token_bytes(shape.attention, dtype, tp)


def multi_head(shape: Shape) -> Shape:
    """The same decoder with keys and values for every query head. Raises CatalogueError for a latent cache."""
    attention = shape.attention
    if not isinstance(attention, GroupedQuery):
        raise CatalogueError(f"{shape.name} keeps one latent vector per token; heads do not multiply it")
    return Shape(**{**vars(shape), "attention": GroupedQuery(attention.heads, attention.heads, attention.head_dim)})


def in_blocks(tokens: int, block_size: int) -> int:
    """Slots of the whole blocks that hold some tokens."""
    return -(-tokens // block_size) * block_size


def mean_slots(lengths: Iterable[int], block_size: int) -> float:
    """Mean slots of sequences of known lengths, each in whole blocks. Raises ValueError for no lengths."""
    slots = [in_blocks(length, block_size) for length in lengths]
    if not slots:
        raise ValueError("no lengths")
    return sum(slots) / len(slots)


def most_slots_lost(block_size: int) -> int:
    """Slots that a sequence's last block can leave empty."""
    return block_size - 1


def mean_slots_lost(block_size: int) -> float:
    """Slots lost in the last block on average, if a length is as likely to end anywhere in it."""
    return (block_size - 1) / 2
