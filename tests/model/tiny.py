"""Tiny random Llama GGUFs with a usable byte-level BPE tokenizer, written in milliseconds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
EOS = 2
_MERGES = (
    "Ġ t|Ġ a|i n|h e|r e|o n|e r|Ġt he|a t|Ġ s|Ġ o|e n|Ġ c|e s|o r|Ġ w|a n|i s|Ġ b|i t|Ġ f|a l|l e|o u|Ġ p|"
    "i ng|n g|Ġa n|Ġan d|Ġ d|Ġt o|Ġ m|e d|Ċ Ċ|Ġ Ġ|ĠĠ ĠĠ|s y|u s|us er"
)
MERGES = _MERGES.split("|")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_characters() -> list[str]:
    """How byte-level BPE spells each byte (Radford et al. 2019)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def vocabulary(size: int) -> list[str]:
    """`size` tokens: special ones, bytes, merged pairs, and unused ones to fill."""
    merged = [merge.replace(" ", "") for merge in MERGES]
    tokens = list(dict.fromkeys([*SPECIAL, *byte_characters(), *merged]))
    if size < len(tokens):
        raise ValueError(f"a tiny vocabulary has at least {len(tokens)} tokens, not {size}")
    return tokens + [f"<unused{index}>" for index in range(size - len(tokens))]


def tensor_shapes(
    layers: int, hidden: int, heads: int, kv_heads: int, ff: int, vocab: int, tied: bool
) -> Iterator[tuple[str, tuple[int, ...]]]:
    head_dim = hidden // heads
    yield "token_embd.weight", (vocab, hidden)
    yield "output_norm.weight", (hidden,)
    if not tied:
        yield "output.weight", (vocab, hidden)
    for layer in range(layers):
        yield f"blk.{layer}.attn_norm.weight", (hidden,)
        yield f"blk.{layer}.attn_q.weight", (hidden, hidden)
        yield f"blk.{layer}.attn_k.weight", (kv_heads * head_dim, hidden)
        yield f"blk.{layer}.attn_v.weight", (kv_heads * head_dim, hidden)
        yield f"blk.{layer}.attn_output.weight", (hidden, hidden)
        yield f"blk.{layer}.ffn_norm.weight", (hidden,)
        yield f"blk.{layer}.ffn_gate.weight", (ff, hidden)
        yield f"blk.{layer}.ffn_up.weight", (ff, hidden)
        yield f"blk.{layer}.ffn_down.weight", (hidden, ff)


def random_blocks(rng: np.random.Generator, shape: tuple[int, ...], kind: GGMLQuantizationType) -> NDArray[np.uint8]:
    """Random whole blocks of any type, redrawn where a scale happens to be infinite or not a number."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    count = math.prod(shape) // block
    raw = rng.integers(0, 256, (count, block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        while len(bad := np.flatnonzero(~np.isfinite(dequantize(raw, kind)).all(axis=1))):
            raw[bad] = rng.integers(0, 256, (len(bad), block_bytes), dtype=np.uint8)
    return raw.reshape(*shape[:-1], -1)


def encode(rng: np.random.Generator, shape: tuple[int, ...], kind: GGMLQuantizationType) -> NDArray[Any]:
    """A random matrix as a GGUF stores it: normal values, or random blocks where gguf cannot quantise."""
    values = rng.normal(0, 1.5 / math.sqrt(shape[-1]), shape).astype(np.float32)
    try:
        return quantize(values, kind)
    except NotImplementedError:
        return random_blocks(rng, shape, kind)


def write_tiny_llama(
    path: Path,
    *,
    seed: int = 0,
    tensor_type: GGMLQuantizationType = GGMLQuantizationType.F32,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    ff: int = 96,
    vocab: int = 320,
    context_length: int = 4096,
    tied: bool = True,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, NDArray[Any] | None] | None = None,
) -> Path:
    """Write a random Llama and return its path.

    Matrices have `tensor_type`, norms are float32. Same arguments, same file. `metadata` replaces or adds
    keys (None leaves one out); `tensors` replaces or adds tensors as they are (None leaves one out).
    """
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    keys: dict[str, Any] = {
        "general.name": "tiny",
        "llama.block_count": layers,
        "llama.context_length": context_length,
        "llama.embedding_length": hidden,
        "llama.feed_forward_length": ff,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": hidden // heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": vocab,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": vocabulary(vocab),
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (vocab - len(SPECIAL)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.padding_token_id": EOS,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
        **(metadata or {}),
    }
    for key, value in keys.items():
        add_key(writer, key, value)
    replaced = dict(tensors or {})
    for name, shape in tensor_shapes(layers, hidden, heads, kv_heads, ff, vocab, tied):
        if name in replaced:
            continue
        if len(shape) == 1:
            writer.add_tensor(name, rng.normal(1, 0.1, shape).astype(np.float32))
        else:
            _add_matrix(writer, name, encode(rng, shape, tensor_type), tensor_type)
    for name, values in replaced.items():
        if values is not None:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_matrix(writer: gguf.GGUFWriter, name: str, raw: NDArray[Any], kind: GGMLQuantizationType) -> None:
    writer.add_tensor(name, raw, raw_dtype=kind)


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)
