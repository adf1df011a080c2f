"""The decoder against transformers on the same weights, and against itself however the work is cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from references import hugging_face_llama
from running import all_logits, batch_of, store_for
from tiny import write_tiny_llama
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pageinn.kernels.backend import Backend
from pageinn.kernels.cpu import CpuBackend
from pageinn.kernels.reference import ReferenceBackend
from pageinn.model.decoder import Decoder
from pageinn.model.rotary import rotary_tables

#: Long enough for three partitions of the keys.
TOKENS = [int(token) for token in np.random.default_rng(7).integers(0, 320, 600)]


@pytest.fixture(params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return ReferenceBackend() if request.param == "reference" else CpuBackend(threads=2)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_transformers(tmp_path: Path, backend: Backend, tied: bool) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", tied=tied)
    model = Decoder.load(path, backend, "none")
    ours = all_logits(model, store_for(model, 41), TOKENS, range(1, 41), 512)
    with torch.no_grad():
        theirs = hugging_face_llama(path)(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_chunks_tables_and_company_do_not_change_a_bit(tmp_path: Path, backend: Backend, quantization: str) -> None:
    """One pass over an identity table; chunks of 7 over a shuffled one; beside two other sequences."""
    model = Decoder.load(write_tiny_llama(tmp_path / "m.gguf"), backend, quantization, max_tokens=600)
    tokens = TOKENS[:300]
    expected = all_logits(model, store_for(model, 60, "bfloat16"), tokens, range(19), 600)
    shuffled = np.random.default_rng(1).permutation(60)
    store = store_for(model, 60, "bfloat16")
    store.keys[...] = store.values[...] = 0x7FC0  # not a number wherever nothing was written
    np.testing.assert_array_equal(all_logits(model, store, tokens, shuffled[:19], 7), expected)

    first, second, third = shuffled[:19], shuffled[20:25], shuffled[30:55]
    model.forward(batch_of([(tokens[:250], 0, first), (TOKENS[400:430], 0, second)]), store)
    mixed = batch_of([(TOKENS[430:450], 30, second), (tokens[250:], 250, first), (TOKENS[100:400], 0, third)])
    np.testing.assert_array_equal(model.forward(mixed, store)[20:70], expected[250:])


def test_only_the_rows_asked_for_come_back(tmp_path: Path, backend: Backend) -> None:
    model = Decoder.load(write_tiny_llama(tmp_path / "m.gguf"), backend)
    store = store_for(model, 3)
    everything = model.forward(batch_of([(TOKENS[:40], 0, range(3))]), store).copy()
    picked = model.forward(batch_of([(TOKENS[:40], 0, range(3))], logits_rows=[39, 3]), store)
    np.testing.assert_array_equal(picked, everything[[39, 3]])
    assert model.forward(batch_of([(TOKENS[:40], 0, range(3))], logits_rows=[]), store).shape == (0, 320)


def test_a_query_without_a_write_reads_what_is_stored(tmp_path: Path, backend: Backend) -> None:
    """B4: the last token of a prompt that is cached whole is computed again and gives the same answer."""
    model = Decoder.load(write_tiny_llama(tmp_path / "m.gguf"), backend)
    store = store_for(model, 3)
    expected = model.forward(batch_of([(TOKENS[:40], 0, range(3))], logits_rows=[39]), store).copy()
    keys = store.keys.copy()
    again = batch_of([(TOKENS[39:40], 39, range(3))])._replace(slots=np.array([-1], np.int64))
    np.testing.assert_array_equal(model.forward(again, store), expected)
    np.testing.assert_array_equal(store.keys, keys)


def test_a_step_that_is_too_large_is_refused(tmp_path: Path) -> None:
    model = Decoder.load(write_tiny_llama(tmp_path / "m.gguf"), ReferenceBackend(), max_tokens=8)
    with pytest.raises(ValueError, match=r"9 tokens.*max_tokens=8"):
        model.forward(batch_of([(TOKENS[:9], 0, [0])]), store_for(model, 1))


def test_rotary_tables_equal_transformers() -> None:
    """One last bit of a frequency is 5e-4 of an angle at position 8,191: the tolerance would show it."""
    config = LlamaConfig(
        hidden_size=576, num_attention_heads=9, rope_parameters={"rope_type": "default", "rope_theta": 1e5}
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(8192)[None])
    ours = rotary_tables(8192, 64, 1e5)
    np.testing.assert_allclose(ours[0], cos[0, :, :32].numpy(), atol=1e-6, rtol=0)
    np.testing.assert_allclose(ours[1], sin[0, :, :32].numpy(), atol=1e-6, rtol=0)
