"""Whatever is wrong with a file: ModelError, one line that names it; never anything else."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import write_tiny_llama

from pageinn.kernels.reference import ReferenceBackend
from pageinn.model.config import ModelError
from pageinn.model.decoder import Decoder
from pageinn.model.gguf_file import GGUFFile
from pageinn.model.weights import load_weights


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as raised:
        Decoder.load(path, ReferenceBackend())
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def test_a_missing_file(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "absent.gguf")


def test_a_directory(tmp_path: Path) -> None:
    assert "config.json is missing" in refusal(tmp_path)
    write_tiny_llama(tmp_path / "m.gguf")
    assert "a directory, not a GGUF file; name the one in it" in refusal(tmp_path)


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    assert "empty" in refusal(tmp_path / "m.gguf")


def test_something_else(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "not a GGUF" in refusal(tmp_path / "m.gguf")


@pytest.mark.parametrize("version", [1, 4, 3 << 24])
def test_other_versions_and_big_endian(tmp_path: Path, version: int) -> None:
    raw = bytearray(write_tiny_llama(tmp_path / "m.gguf").read_bytes())
    raw[4:8] = struct.pack("<I", version)
    (tmp_path / "m.gguf").write_bytes(raw)
    assert f"version {version} is not supported" in refusal(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"general.architecture": "mamba"}, "'mamba' is not supported (supported: llama, qwen2, qwen3)"),
        (
            {"llama.rope.scaling.type": "yarn"},
            "rotary scaling 'yarn' is not supported (supported: linear, llama3)",
        ),
        ({"llama.rope.scaling.factor": -4.0}, "above 0"),
        ({"llama.rope.scaling.attn_factor": 2.0}, "attention factor"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.logit_scale": 0.5}, "scaled logits"),
        ({"llama.block_count": None}, "lacks 'llama.block_count'"),
        ({"llama.block_count": 3}, "tensor 'blk.2.attn_norm.weight' is missing"),
        ({"llama.block_count": 2**32 - 1}, "is missing"),
        ({"llama.block_count": 1}, "tensor 'blk.1."),
        ({"llama.block_count": 0}, "at least 1"),
        ({"llama.context_length": 2**31}, "beyond the supported"),
        ({"llama.embedding_length": "64"}, "not an integer"),
        ({"llama.embedding_length": 66}, "not a multiple of 4 heads"),
        ({"llama.embedding_length": 128}, "has shape (320, 64), not (320, 128)"),
        ({"llama.attention.head_count_kv": 3}, "4 query heads cannot share 3"),
        ({"llama.attention.head_count_kv": [2, 2]}, "not an integer"),
        ({"llama.attention.value_length": 8}, "different sizes"),
        ({"llama.rope.dimension_count": 18}, "18 rotary dimensions"),
        ({"llama.rope.freq_base": 0.0}, "above 0"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "finite"),
        ({"llama.vocab_size": 321}, "disagree"),
        ({"tokenizer.ggml.tokens": None}, "lacks 'tokenizer.ggml.tokens'"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "not a list of strings"),
        ({"tokenizer.ggml.model": None}, "lacks 'tokenizer.ggml.model'"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "320 tokens and 2 token types"),
        ({"tokenizer.ggml.eos_token_id": 320}, "outside the vocabulary"),
        ({"tokenizer.chat_template": 5}, "not a string"),
        ({"general.alignment": 24}, "not a power of two"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_metadata_that_cannot_be_served(tmp_path: Path, metadata: dict[str, Any], said: str) -> None:
    assert said in refusal(write_tiny_llama(tmp_path / "m.gguf", metadata=metadata))


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("blk.1.ffn_up.weight", None, "tensor 'blk.1.ffn_up.weight' is missing"),
        ("output_norm.weight", None, "'output_norm.weight' is missing"),
        ("blk.0.attn_v.weight", np.zeros((64, 64), np.float32), "has shape (64, 64), not (32, 64)"),
        ("blk.0.attn_q.bias", np.zeros(64, np.float32), "a bias is not supported"),
        ("rope_freqs.weight", np.ones(7, np.float32), "'rope_freqs.weight' has 7 factors, not 8"),
        ("rope_freqs.weight", np.zeros(8, np.float32), "factors that are not above 0"),
        ("rope_factors_long.weight", np.ones(8, np.float32), "rotary scaling 'longrope'"),
        ("blk.0.ffn_gate_exps.weight", np.zeros((2, 96, 64), np.float32), "mixture of experts"),
        ("blk.0.attn_q_norm.weight", np.zeros(16, np.float32), "normalised queries"),
        ("blk.0.surprise", np.zeros(16, np.float32), "not part of a llama model"),
        ("blk.0.ffn_norm.weight", np.full(64, np.nan, np.float32), "not finite"),
        ("blk.0.ffn_norm.weight", np.zeros(64, np.int32), "type I32, which is not supported"),
    ],
)
def test_tensors_that_cannot_be_served(
    tmp_path: Path, name: str, values: np.ndarray[Any, Any] | None, said: str
) -> None:
    assert said in refusal(write_tiny_llama(tmp_path / "m.gguf", tensors={name: values}))


def tensor_row(raw: bytes, name: str) -> int:
    """Where the dimensions of a tensor of the table begin."""
    key = struct.pack("<Q", len(name)) + name.encode()
    return raw.index(key) + len(key)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        (0, struct.pack("<I", 0), "0 dimensions"),
        (0, struct.pack("<I", 2**31), "dimensions"),
        (4, struct.pack("<Q", 2**63), "truncated or corrupt"),
        (4, struct.pack("<Q", 0), "cannot have shape"),
        (12, struct.pack("<Q", 7), "has shape"),
        (20, struct.pack("<I", 999), "unknown type 999"),
        (24, struct.pack("<Q", 1), "not a multiple"),
        (24, struct.pack("<Q", 2**62), "truncated or corrupt"),
        (24, struct.pack("<Q", 0), "overlap"),
    ],
)
def test_a_corrupt_table_of_tensors(tmp_path: Path, field: int, value: bytes, said: str) -> None:
    raw = bytearray(write_tiny_llama(tmp_path / "m.gguf").read_bytes())
    at = tensor_row(bytes(raw), "blk.1.ffn_up.weight") + field
    raw[at : at + len(value)] = value
    (tmp_path / "m.gguf").write_bytes(raw)
    assert said in refusal(tmp_path / "m.gguf")


@pytest.mark.parametrize("count", [2**63, 2**40, 2**20])
def test_a_lying_count_costs_no_memory(tmp_path: Path, count: int) -> None:
    raw = bytearray(write_tiny_llama(tmp_path / "m.gguf").read_bytes())
    at = raw.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") + 8
    raw[at : at + 8] = struct.pack("<Q", count)
    (tmp_path / "m.gguf").write_bytes(raw)
    assert "corrupt header" in refusal(tmp_path / "m.gguf")


@pytest.fixture(scope="module")
def tiny_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("fuzz") / "m.gguf"
    write_tiny_llama(path, tensor_type=GGMLQuantizationType.Q8_0, layers=1)
    return path.read_bytes()


def loads_or_refuses(path: Path, raw: bytes) -> bool:
    path.write_bytes(raw)
    message = None
    try:
        load_weights(GGUFFile(path), ReferenceBackend(), "none", lambda done, total: None)
    except ModelError as error:
        message = str(error)
    assert message is None or message.startswith(f"{path}: ")
    assert message is None or "\n" not in message
    return message is None


def test_every_truncation_is_refused(tiny_bytes: bytes, tmp_path: Path) -> None:
    lengths = [*range(1, 400), *range(400, len(tiny_bytes), 997), len(tiny_bytes) - 1]
    assert not any(loads_or_refuses(tmp_path / "m.gguf", tiny_bytes[:length]) for length in lengths)
    assert loads_or_refuses(tmp_path / "m.gguf", tiny_bytes)


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bytes_are_refused_or_harmless(
    tiny_bytes: bytes, tmp_path: Path, flips: list[tuple[float, int]]
) -> None:
    raw = bytearray(tiny_bytes)
    for where, mask in flips:
        # Most of the file is weights; half of the flips go to the header's first and last parts.
        span = len(raw) if mask % 2 else 12_000
        raw[int(where * span)] ^= mask
    loads_or_refuses(tmp_path / "m.gguf", bytes(raw))


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    where=st.floats(0, 1, exclude_max=True),
    value=st.sampled_from([0, 1, 2**16, 2**31, 2**32, 2**63, 2**64 - 1]),
)
def test_a_hostile_number_anywhere_in_the_header(tiny_bytes: bytes, tmp_path: Path, where: float, value: int) -> None:
    raw = bytearray(tiny_bytes)
    at = int(where * 12_000)
    raw[at : at + 8] = struct.pack("<Q", value)
    loads_or_refuses(tmp_path / "m.gguf", bytes(raw))
