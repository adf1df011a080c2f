from __future__ import annotations

import hashlib
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from tiny import CHAT_TEMPLATE, EOS, MERGES, vocabulary, write_tiny_llama

from pageinn.engine.default_model import default_model
from pageinn.kernels.reference import ReferenceBackend
from pageinn.model.gguf_file import GGUFFile
from pageinn.model.weights import Embedding, half_split, load_weights
from pageinn.text.tokenizer import Tokenizer


def dequantisable(kind: GGMLQuantizationType) -> bool:
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


SUPPORTED = [kind for kind in GGMLQuantizationType if dequantisable(kind)]


def test_k_quants_are_among_the_supported_types() -> None:
    names = {kind.name for kind in SUPPORTED}
    assert {"F32", "F16", "BF16", "Q4_0", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"} <= names


@pytest.mark.parametrize("kind", SUPPORTED, ids=lambda kind: kind.name)
def test_every_type_is_dequantised_as_the_gguf_package_does(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", tensor_type=kind, layers=1, hidden=256, ff=256)
    file = GGUFFile(path)
    for tensor in gguf.GGUFReader(path).tensors:
        expected = dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(file.tensor(tensor.name), expected, err_msg=tensor.name)
        if tensor.name == "token_embd.weight":
            ids = np.array([5, 0, 5, len(expected) - 1], np.int32)
            out = np.empty((4, 256), np.float32)
            Embedding(file).lookup(ids, out)
            np.testing.assert_array_equal(out, expected[ids])


def test_rows_that_share_a_place_or_are_asked_again_are_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every batch against the whole matrix, with so few places that most ids of a batch meet in one."""
    monkeypatch.setattr(Embedding, "PLACES", 3)
    file = GGUFFile(write_tiny_llama(tmp_path / "m.gguf", layers=1))
    matrix, embedding = file.tensor("token_embd.weight"), Embedding(file)
    rng = np.random.default_rng(0)
    for size in rng.integers(1, 9, 60):
        ids = rng.integers(0, len(matrix), size).astype(np.int32)
        out = np.empty((size, matrix.shape[1]), np.float32)
        embedding.lookup(ids, out)
        np.testing.assert_array_equal(out, matrix[ids])


@pytest.mark.parametrize("outside", [-1, -300, 320, -(2**31), 2**31 - 1])
def test_an_id_outside_the_vocabulary_has_no_row(tmp_path: Path, outside: int) -> None:
    """Also beside one that is kept, and with no row kept at all: no empty place is taken for this id's."""
    file = GGUFFile(write_tiny_llama(tmp_path / "m.gguf", layers=1))
    embedding, out = Embedding(file), np.empty((2, file.config.hidden_size), np.float32)
    assert file.config.vocab_size == 320
    for _ in range(2):
        with pytest.raises(IndexError, match=rf"token {outside} is outside 0\.\.319"):
            embedding.lookup(np.array([7, outside], np.int32), out)
        embedding.lookup(np.array([7, 319], np.int32), out)
        np.testing.assert_array_equal(out, file.tensor("token_embd.weight")[[7, 319]])


@pytest.fixture(scope="module")
def smollm2() -> gguf.GGUFReader:
    """As the gguf package reads it, which takes two seconds."""
    return gguf.GGUFReader(default_model())


def test_all_of_smollm2_is_dequantised_as_the_gguf_package_does(smollm2: gguf.GGUFReader) -> None:
    file = GGUFFile(default_model())
    tensors = smollm2.tensors
    assert set(file.tensors) == {tensor.name for tensor in tensors}
    for tensor in tensors:
        np.testing.assert_array_equal(
            file.tensor(tensor.name), dequantize(tensor.data, tensor.tensor_type), err_msg=tensor.name
        )


def test_smollm2_metadata_equals_the_gguf_packages(smollm2: gguf.GGUFReader) -> None:
    data = GGUFFile(default_model()).tokenizer
    fields = smollm2.fields
    assert data.tokens == fields["tokenizer.ggml.tokens"].contents()
    assert data.token_types == fields["tokenizer.ggml.token_type"].contents()
    assert data.merges == fields["tokenizer.ggml.merges"].contents()
    assert data.chat_template == fields["tokenizer.chat_template"].contents()
    assert (data.model, data.pre, data.bos_id, data.eos_id, data.pad_id) == ("gpt2", "smollm", 1, 2, 2)
    assert (data.add_bos, data.add_space_prefix) == (False, False)


def test_smollm2_config() -> None:
    config = GGUFFile(default_model()).config
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (30, 576, 1536)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.rotary_dim) == (9, 3, 64, 64)
    assert (config.rope_theta, config.rms_eps) == (100000.0, float(np.float32(1e-5)))
    assert (config.vocab_size, config.context_length) == (49152, 8192)
    assert config.tied_embeddings


def test_tiny_metadata(tmp_path: Path) -> None:
    file = GGUFFile(write_tiny_llama(tmp_path / "m.gguf", tied=False))
    assert not file.config.tied_embeddings
    assert (file.config.q_size, file.config.kv_size) == (64, 32)
    assert file.tokenizer.tokens == vocabulary(320)
    assert file.tokenizer.merges == MERGES
    assert file.tokenizer.eos_id == EOS
    assert file.tokenizer.chat_template == CHAT_TEMPLATE


def test_what_a_file_leaves_out_is_what_llama_cpp_takes(tmp_path: Path) -> None:
    silent = {
        "tokenizer.ggml.add_bos_token": None,
        "tokenizer.ggml.add_space_prefix": None,
        "tokenizer.chat_template": None,
        "tokenizer.ggml.padding_token_id": None,
        "llama.rope.freq_base": None,
        "llama.rope.dimension_count": None,
        "llama.vocab_size": None,
        "general.name": None,
    }
    file = GGUFFile(write_tiny_llama(tmp_path / "a.gguf", metadata=silent))
    assert (file.config.rope_theta, file.config.rotary_dim) == (10000.0, 16)
    assert (file.config.vocab_size, file.config.name) == (320, "llama")
    assert (file.tokenizer.add_bos, file.tokenizer.add_space_prefix) == (False, False)
    assert (file.tokenizer.chat_template, file.tokenizer.pad_id) == (None, None)
    llama3 = GGUFFile(write_tiny_llama(tmp_path / "b.gguf", metadata={**silent, "tokenizer.ggml.pre": "llama-bpe"}))
    assert llama3.tokenizer.add_bos
    pieces = GGUFFile(write_tiny_llama(tmp_path / "c.gguf", metadata={**silent, "tokenizer.ggml.model": "llama"}))
    assert (pieces.tokenizer.add_bos, pieces.tokenizer.add_space_prefix) == (True, True)


def test_half_split_undoes_the_converters_permutation() -> None:
    """llama.cpp's convert_hf_to_gguf permutes each head's rows (d, dim) -> (dim, d); we go back."""
    heads, head_dim, hidden = 3, 8, 5
    original = np.arange(heads * head_dim * hidden, dtype=np.float32).reshape(-1, hidden)
    permuted = original.reshape(heads, 2, head_dim // 2, hidden).swapaxes(1, 2).reshape(original.shape)
    np.testing.assert_array_equal(half_split(permuted, head_dim, head_dim), original)


def test_half_split_leaves_dimensions_that_do_not_rotate() -> None:
    rows = np.arange(6, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(half_split(rows, 6, 4)[:, 0], [0, 2, 1, 3, 4, 5])


def test_progress_ends_at_the_total_and_never_goes_back(tmp_path: Path) -> None:
    file = GGUFFile(write_tiny_llama(tmp_path / "m.gguf", tied=False))
    seen: list[tuple[int, int]] = []
    load_weights(file, ReferenceBackend(), "int8", lambda done, total: seen.append((done, total)))
    total = sum(tensor.nbytes for tensor in file.tensors.values())
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)
    assert {all_ for _, all_ in seen} == {total}


def test_fingerprint_is_the_hash_of_the_file_and_sees_one_flipped_byte(tmp_path: Path) -> None:
    """J1: weights swapped under the same name are another model."""
    path = write_tiny_llama(tmp_path / "m.gguf")
    before = GGUFFile(path).fingerprint()
    assert before == hashlib.sha256(path.read_bytes()).hexdigest()
    raw = bytearray(path.read_bytes())
    raw[-100] ^= 1
    (tmp_path / "n.gguf").write_bytes(raw)
    assert GGUFFile(tmp_path / "n.gguf").fingerprint() != before


def test_an_unknown_quantization_is_refused_by_name(tmp_path: Path) -> None:
    file = GGUFFile(write_tiny_llama(tmp_path / "m.gguf"))
    with pytest.raises(ValueError, match="'fp4' is not one of int8, none"):
        load_weights(file, ReferenceBackend(), "fp4", lambda done, total: None)


def test_the_tiny_models_tokenizer_is_usable(tmp_path: Path) -> None:
    tokenizer = Tokenizer(GGUFFile(write_tiny_llama(tmp_path / "m.gguf")).tokenizer)
    ids = tokenizer.encode("<|im_start|>user\nthe naïve ☃ and<|im_end|>")
    assert (ids[0], ids[-1]) == (1, EOS)
    assert len(ids) < len("user\nthe naïve ☃ and".encode())
    assert b"".join(tokenizer.token_bytes[token] for token in ids).decode() == "user\nthe naïve ☃ and"
