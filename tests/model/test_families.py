"""Each family's logits against transformers' own class, teacher-forced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from families import CASES, converters_factors, tiny_model, write_gguf
from numpy.typing import NDArray
from running import all_logits, store_for
from tiny import write_tiny_llama
from transformers import LlamaConfig, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pageinn.engine import build
from pageinn.engine.config import ConfigError, EngineConfig
from pageinn.kernels.cpu import CpuBackend
from pageinn.kernels.reference import ReferenceBackend
from pageinn.model.decoder import Decoder
from pageinn.model.rotary import frequencies, llama3_factors

#: Three partitions of the keys, and well into what a scaled rotary embedding changes.
TOKENS = [int(token) for token in np.random.default_rng(3).integers(0, 320, 560)]


class Made(NamedTuple):
    model: PreTrainedModel
    gguf: Path
    logits: NDArray[np.float32]


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    model = tiny_model(request.param)
    with torch.inference_mode():
        logits = model(torch.tensor([TOKENS])).logits[0].numpy()
    folder = tmp_path_factory.mktemp("family")
    return Made(model, write_gguf(folder / "m.gguf", model), logits)


@pytest.mark.parametrize("kind", ["reference", "cpu"])
def test_logits_equal_transformers(made: Made, kind: str) -> None:
    model = Decoder.load(made.gguf, ReferenceBackend() if kind == "reference" else CpuBackend(threads=2), "none")
    length = 150 if kind == "reference" else len(TOKENS)
    ours = all_logits(model, store_for(model, 40), TOKENS[:length], range(1, 40), 300)
    np.testing.assert_allclose(ours, made.logits[:length], atol=1e-4, rtol=0)


def test_what_a_family_adds_shows_in_the_logits(made: Made) -> None:
    """A decoder without the case's biases, head norms or rotary scaling is far outside the tolerance."""
    backend = CpuBackend(threads=2)
    whole = Decoder.load(made.gguf, backend, "none")
    bare = [layer._replace(qkv_bias=None, query_norm=None, key_norm=None) for layer in whole.weights.layers]
    without = {
        "rotary scaling": (replace(whole.config, rope_factors=()), whole.weights),
        "biases and norms": (whole.config, whole.weights._replace(layers=bare)),
    }
    family = made.model.config
    matters = {
        "rotary scaling": family.rope_parameters["rope_type"] != "default",
        "biases and norms": family.model_type in ("qwen2", "qwen3"),
    }
    for what, (config, weights) in without.items():
        model = Decoder(config, weights, backend, 512)
        logits = all_logits(model, store_for(model, 10), TOKENS[:150], range(10), 150)
        assert (np.abs(logits - made.logits[:150]).max() > 0.05) == matters[what], what


def test_chunks_do_not_change_a_bit(made: Made) -> None:
    """Biases and head norms are computed row by row too."""
    model = Decoder.load(made.gguf, CpuBackend(threads=2), "int8")
    whole = all_logits(model, store_for(model, 10, "bfloat16"), TOKENS[:150], range(10), 150)
    parts = all_logits(model, store_for(model, 10, "bfloat16"), TOKENS[:150], range(9, -1, -1), 7)
    np.testing.assert_array_equal(parts, whole)


def test_llama3_factors_are_the_converters_bit_for_bit() -> None:
    """The published numbers of Llama 3.2 1B: head 64, theta 500,000, factor 32, waves 1 to 4 of 8,192."""
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(head_dim=64, max_position_embeddings=131072, rope_parameters=rope)
    ours = llama3_factors(64, 500000.0, factor=32.0, low=1.0, high=4.0, original=8192)
    np.testing.assert_array_equal(np.array(ours, np.float32), converters_factors(config))
    theirs, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    np.testing.assert_allclose(frequencies(64, 500000.0) / np.array(ours), theirs.numpy(), rtol=3e-7)


def test_a_window_is_served_where_it_never_bites_and_refused_elsewhere(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", metadata={"llama.attention.sliding_window": 64})
    small = EngineConfig(model=path, kv_cache_memory_bytes=1 << 20)
    with pytest.raises(ConfigError, match=r"sliding window of 64 tokens.*may reach 4096; give --max-model-len 64") as e:
        build(small)
    assert "\n" not in str(e.value)
    with pytest.raises(ConfigError, match="may reach 65"):
        build(replace(small, max_model_len=65))
    assert build(replace(small, max_model_len=64)).max_model_len == 64
