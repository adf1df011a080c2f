"""Bytes, against published figures, worked examples and sums by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pageinn.catalogue.errors import CatalogueError
from pageinn.catalogue.memory import (
    growing_token_bytes,
    in_blocks,
    layer_token_bytes,
    mean_slots,
    multi_head,
    sequence_bytes,
    token_bytes,
    weight_bytes,
)
from pageinn.catalogue.models import find_model, models
from pageinn.catalogue.shape import GroupedQuery, Shape
from pageinn.kernels.slots import STORE_DTYPES
from pageinn.store.kv_store import bytes_per_block

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "kilobytes"), [("deepseek-v3", 70.272), ("qwen2.5-72b", 327.680), ("llama-3.1-405b", 516.096)]
)
def test_bytes_per_token_are_those_that_deepseek_publishes(name: str, kilobytes: float) -> None:
    """Zhao et al. 2025, arXiv:2505.09343, table 1: latent attention beside grouped-query attention, in 16 bits."""
    assert token_bytes(find_model(name), "bfloat16") == kilobytes * 1000


def test_key_value_heads_count_not_the_hidden_size_and_bytes_not_bits() -> None:
    """Field case I1: the hidden size would say 524,288, and 8 bits taken for bytes 1,048,576."""
    llama = find_model("llama-3-8b")
    assert token_bytes(llama, "bfloat16") == 131_072
    assert token_bytes(llama, "fp8") == 65_536
    assert token_bytes(multi_head(llama), "bfloat16") == 524_288


@pytest.mark.parametrize("dtype", sorted(STORE_DTYPES))
def test_every_dtype_takes_what_the_store_allocates(dtype: str) -> None:
    """A block of SmolLM2: 30 layers, 3 key-value heads of 64."""
    assert 16 * token_bytes(find_model("smollm2-135m"), dtype) == bytes_per_block(30, 3, 64, 16, dtype)


def test_a_scale_per_token_and_head_is_part_of_the_bytes() -> None:
    llama = find_model("llama-3-8b")
    assert token_bytes(llama, "int8") == 32 * 2 * 8 * (128 + 2)


def test_a_window_keeps_min_of_window_and_length() -> None:
    """Field case I2, by hand for gpt-oss-20b: 12 layers of 128 tokens, 12 of all, 1,024 elements of 2 bytes."""
    oss = find_model("gpt-oss-20b")
    assert sequence_bytes(oss, 100, "bfloat16") == 24 * 100 * 2048
    assert sequence_bytes(oss, 10_000, "bfloat16") == 12 * (128 + 10_000) * 2048
    assert growing_token_bytes(oss, "bfloat16") == 12 * 2048
    mistral = find_model("mistral-7b-v0.1")
    assert sequence_bytes(mistral, 32_768, "bfloat16") == sequence_bytes(mistral, 4096, "bfloat16") == GIB // 2
    assert growing_token_bytes(mistral, "bfloat16") == 0


@given(st.sampled_from(models()), st.integers(1, 200_000))
def test_a_sequence_is_the_sum_of_its_tokens(shape: Shape, tokens: int) -> None:
    by_layer = [min(group.window or tokens, tokens) for group in shape.groups for _ in range(group.count)]
    assert sequence_bytes(shape, tokens, "bfloat16") == sum(by_layer) * shape.attention.cached * 2


def test_tensor_parallelism_cuts_heads_repeats_few_and_keeps_a_latent_whole() -> None:
    llama = find_model("llama-3.1-70b")
    assert token_bytes(llama, "bfloat16", tp=8) == 80 * 2 * 128 * 2
    assert token_bytes(llama, "bfloat16", tp=16) == token_bytes(llama, "bfloat16", tp=8)
    deepseek = find_model("deepseek-v3")
    assert token_bytes(deepseek, "bfloat16", tp=8) == token_bytes(deepseek, "bfloat16")
    with pytest.raises(CatalogueError, match="64 heads cannot be cut over 3 accelerators"):
        token_bytes(llama, "bfloat16", tp=3)
    with pytest.raises(CatalogueError, match="6 key-value heads cannot be cut over 4 accelerators"):
        layer_token_bytes(GroupedQuery(12, 6, 64), "bfloat16", tp=4)


def test_weights_of_published_checkpoints() -> None:
    """The files of gpt-oss-120b are 60.8 GiB (its model card), those of Llama-3-8B 16.06 GB."""
    assert weight_bytes(find_model("gpt-oss-120b"), "mxfp4") / GIB == pytest.approx(60.8, abs=0.05)
    assert weight_bytes(find_model("llama-3-8b"), "bfloat16") == 2 * 8_030_261_248
    assert weight_bytes(find_model("llama-3-8b"), "bfloat16", tp=4) == 8_030_261_248 / 2


def test_quantised_weights_leave_embeddings_in_16_bits() -> None:
    llama = find_model("llama-3-8b")
    embeddings = 2 * 128_256 * 4096
    norms = (2 * 32 + 1) * 4096
    assert weight_bytes(llama, "fp8") == llama.parameters + embeddings + norms


def test_a_latent_cache_has_no_multi_head_row() -> None:
    with pytest.raises(CatalogueError, match="one latent vector"):
        multi_head(find_model("deepseek-v3"))


def test_names_that_are_not_known() -> None:
    with pytest.raises(CatalogueError, match=r"KV cache dtype 'fp4' is not known \(known: float32, "):
        token_bytes(find_model("llama-3-8b"), "fp4")
    with pytest.raises(CatalogueError, match="weight format 'q4' is not known"):
        weight_bytes(find_model("llama-3-8b"), "q4")


def test_slots_in_whole_blocks() -> None:
    assert [in_blocks(tokens, 16) for tokens in (0, 1, 16, 17)] == [0, 16, 16, 32]
    assert mean_slots([300, 2000, 600, 4400], 16) == (304 + 2000 + 608 + 4400) / 4
    with pytest.raises(ValueError, match="no lengths"):
        mean_slots([], 16)
