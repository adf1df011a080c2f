"""FLOPs, against torch's own counter and sums by brute force; seconds, by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from pageinn.catalogue.accelerators import ACCELERATORS, find_accelerator
from pageinn.catalogue.compute import (
    Roofline,
    compute_bound_batch,
    decode_attention_flops,
    linear_flops,
    prefill_attention_flops,
    rule_flops,
    seen,
    touched_experts,
)
from pageinn.catalogue.errors import CatalogueError
from pageinn.catalogue.models import find_model


def test_flops_are_those_that_torch_counts() -> None:
    """SmolLM2 over 64 tokens. torch counts the whole square of attention, of which causal attention needs a part."""
    tokens = 64
    config = LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
        ids = torch.zeros(1, tokens, dtype=torch.long)
        mask = torch.zeros(1, 1, tokens, tokens)
    with FlopCounterMode(display=False) as counter:
        model(ids, attention_mask=mask, use_cache=False)
    smol = find_model("smollm2-135m")
    square = prefill_attention_flops(smol, tokens) * tokens**2 / (tokens * (tokens + 1) / 2)
    assert counter.get_total_flops() == linear_flops(smol, tokens, logit_rows=tokens) + square


@given(st.integers(0, 300), st.integers(0, 300), st.one_of(st.none(), st.integers(1, 400)))
def test_pairs_seen_by_brute_force(new: int, cached: int, window: int | None) -> None:
    assert seen(new, cached, window) == sum(min(window or at, at) for at in range(cached + 1, cached + new + 1))


def test_a_chunked_prefill_costs_what_a_whole_one_does() -> None:
    for name in ("llama-3-8b", "gpt-oss-20b", "deepseek-v3"):
        shape = find_model(name)
        chunks = [(0, 512), (512, 512), (1024, 77)]
        assert sum(prefill_attention_flops(shape, new, cached) for cached, new in chunks) == pytest.approx(
            prefill_attention_flops(shape, 1101), rel=1e-12
        )


def test_decoding_sees_what_the_last_prompt_token_would() -> None:
    for name in ("llama-3-8b", "gpt-oss-20b", "mistral-7b-v0.1"):
        shape = find_model(name)
        assert decode_attention_flops(shape, 5000) == prefill_attention_flops(shape, 1, 4999)


def test_latent_attention_by_hand() -> None:
    """DeepSeek-V3: 61 layers, 128 heads; keys of 192 and values of 128 expanded, 576 and 512 compressed."""
    deepseek = find_model("deepseek-v3")
    assert prefill_attention_flops(deepseek, 1) == 61 * 2 * 128 * (192 + 128)
    assert decode_attention_flops(deepseek, 1) == 61 * 2 * 128 * (576 + 512)


def test_experts_that_a_batch_touches() -> None:
    assert touched_experts(8, 2, 1) == pytest.approx(2)
    assert touched_experts(8, 2, 2) == pytest.approx(2 + 2 * (6 / 8))
    assert touched_experts(128, 8, 10_000) == pytest.approx(128)


def line(name: str = "llama-3-8b", card: str = "h100", **changes: object) -> Roofline:
    given = {"weights": "bfloat16", "store": "bfloat16", **changes}
    return Roofline(find_model(name), find_accelerator(card), **given)  # type: ignore[arg-type]


def test_a_decode_step_reads_the_weights_and_every_sequence() -> None:
    step = line().step(decode=[1000, 3000])
    embeddings = 128_256 * 4096
    assert step.memory == (2 * (8_030_261_248 - embeddings) + 4000 * 131_072) / 3.35e12
    attention = 4 * 4096 * 32 * 4000
    linear = 2 * (8_030_261_248 - 128_256 * 4096 - 65 * 4096)
    assert step.compute == pytest.approx((2 * linear + attention) / 989e12, rel=1e-12)
    assert step.total == step.memory
    assert line().step().total == 0


def test_a_prefill_chunk_is_bound_by_compute() -> None:
    step = line().step(prefill=[(8192, 0)])
    assert step.total == step.compute > 10 * step.memory
    assert step.compute * 989e12 < rule_flops(find_model("llama-3-8b"), 8192) + prefill_attention_flops(
        find_model("llama-3-8b"), 8192
    )


def test_a_mixture_reads_the_experts_that_are_used() -> None:
    mixtral = line("mixtral-8x7b", "h200")
    shape = mixtral.shape
    embeddings = 32_000 * 4096
    assert mixtral.read_weights(1) == pytest.approx(2 * (shape.active_parameters - embeddings), rel=1e-12)
    assert mixtral.read_weights(1000) == pytest.approx(2 * (shape.parameters - embeddings), rel=1e-6)


def test_tensor_parallelism_shares_the_work() -> None:
    one, four = line(), line(tp=4)
    assert four.step(prefill=[(4096, 0)]).compute == pytest.approx(one.step(prefill=[(4096, 0)]).compute / 4)
    assert four.step(decode=[4096]).memory == pytest.approx(one.step(decode=[4096]).memory / 4)
    assert four.copy_seconds(4096) == one.copy_seconds(4096) / 4


def test_shares_of_the_peaks() -> None:
    half = line(flops_share=0.5, bandwidth_share=0.25)
    assert half.step(prefill=[(100, 0)]).compute == 2 * line().step(prefill=[(100, 0)]).compute
    assert half.step(decode=[100]).memory == 4 * line().step(decode=[100]).memory


def test_the_batch_where_decoding_turns_compute_bound() -> None:
    """Without context: FLOP/s by bytes/s, all but for the norms' weights; with 8 Ki tokens memory always loses."""
    batch = compute_bound_batch(line())
    assert batch == pytest.approx(989e12 / 3.35e12, rel=1e-4)
    assert batch is not None
    for size, bound in ((int(batch), False), (int(batch) + 1, True)):
        step = line().step(decode=[0] * size)
        assert (step.compute > step.memory) is bound
    assert compute_bound_batch(line(), 8192) is None


def test_every_accelerator_has_plausible_figures_and_a_source() -> None:
    assert len(ACCELERATORS) >= 20
    for card in ACCELERATORS.values():
        assert card.source.startswith(("https://", "assumed"))
        assert card.memory >= 8 * 2**30
        assert card.link < card.bandwidth
        assert card.rate("half") > 0
        ridge = card.rate("half") / card.bandwidth
        assert 5 < ridge < 420, f"{card.name}: {ridge} FLOPs per byte"


def test_rates_fall_back_to_the_next_wider_dtype() -> None:
    assert find_accelerator("A100-80gb").rate("fp8") == 312e12
    assert find_accelerator("cpu-2core").rate("half") == 192e9
    with pytest.raises(CatalogueError, match=r"accelerator 'h1000' is not known \(known: t4, "):
        find_accelerator("h1000")
