"""Penalties, biases and held-back ends, against plain definitions, transformers, and sums made by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import MinNewTokensLengthLogitsProcessor, RepetitionPenaltyLogitsProcessor

from pageinn.engine.checks import check_request
from pageinn.engine.logits import Controls, controls_of
from pageinn.engine.messages import GenerationRequest, RefusedError, SamplingParams
from pageinn.kernels.backend import F32

VOCAB = 12
EOS = frozenset({0, 3})
token = st.integers(0, VOCAB - 1)


def after(sampling: SamplingParams, prompt: list[int], generated: list[int], logits: F32) -> F32:
    controls = controls_of(sampling, tuple(prompt), EOS)
    row = logits.copy()
    if controls is not None:
        for each in generated:
            controls.push(each)
        controls.apply(row)
    return row


def by_definition(sampling: SamplingParams, prompt: list[int], generated: list[int], logits: F32) -> list[np.float32]:
    """vLLM's order, one token at a time: hold back, bias, repetition, frequency, presence."""
    result = []
    for each, logit in enumerate(logits):
        if len(generated) < sampling.min_tokens and each in {*EOS, *sampling.stop_token_ids}:
            result.append(np.float32(-np.inf))
            continue
        value = logit + np.float32(dict(sampling.logit_bias).get(each, 0.0))
        if each in prompt or each in generated:
            factor = np.float32(sampling.repetition_penalty)
            value = value / factor if value > 0 else value * factor
        value -= np.float32(sampling.frequency_penalty) * np.float32(generated.count(each))
        value -= np.float32(sampling.presence_penalty) if each in generated else np.float32(0)
        result.append(value)
    return result


samplings = st.builds(
    SamplingParams,
    presence_penalty=st.sampled_from([0.0, 0.3, -2.0, 2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.7, -1.1]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    logit_bias=st.dictionaries(token, st.sampled_from([-100.0, 0.1, 100.0]), max_size=4).map(lambda d: (*d.items(),)),
    stop_token_ids=st.lists(token, max_size=3).map(tuple),
    min_tokens=st.integers(0, 5),
)


@given(samplings, st.lists(token, min_size=1, max_size=20), st.lists(token, max_size=90), st.integers(0, 2**32 - 1))
def test_equal_to_the_definition(sampling: SamplingParams, prompt: list[int], generated: list[int], seed: int) -> None:
    logits = np.random.default_rng(seed).normal(0, 5, VOCAB).astype(np.float32)
    got = after(sampling, prompt, generated, logits)
    assert got.tolist() == by_definition(sampling, prompt, generated, logits)


def test_by_hand() -> None:
    """Token 1 is in the prompt, 2 was generated three times, 4 is both, once; 5 has a bias."""
    sampling = SamplingParams(
        repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25, logit_bias=((5, 1.5), (1, 2.0))
    )
    logits = np.array([1, 2, 4, -1, -4, 0, 1, 1, 1, 1, 1, 1], np.float32)
    got = after(sampling, [1, 4, 1], [2, 2, 4, 2], logits)
    assert got.tolist() == [1, (2 + 2) / 2, 4 / 2 - 1.5 - 0.25, -1, -8 - 0.5 - 0.25, 1.5, 1, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("penalty", [0.8, 1.0, 1.7])
def test_repetition_as_transformers_has_it(penalty: float) -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 4, VOCAB).astype(np.float32)
    prompt, generated = [1, 5, 5, 9], [2, 5, 2]
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    expected = processor(torch.tensor([prompt + generated]), torch.tensor(logits[None]).clone())[0]
    got = after(SamplingParams(repetition_penalty=penalty), prompt, generated, logits)
    assert got.tolist() == expected.tolist()


def test_min_tokens_as_transformers_has_it() -> None:
    logits = np.zeros(VOCAB, np.float32)
    for generated in range(5):
        processor = MinNewTokensLengthLogitsProcessor(2, 3, sorted(EOS), device="cpu")
        ids = torch.tensor([[1, 2, *[7] * generated]])
        expected = processor(ids, torch.tensor(logits[None]).clone())[0]
        assert after(SamplingParams(min_tokens=3), [1, 2], [7] * generated, logits).tolist() == expected.tolist()


class _Ended:
    """A grammar that allows an end and nothing else."""

    def allowed(self) -> NDArray[np.bool_]:
        return np.isin(np.arange(VOCAB - 2), list(EOS))

    def push(self, token: int) -> None:
        pass


def test_a_complete_answer_may_end_before_min_tokens() -> None:
    controls = Controls(SamplingParams(min_tokens=5), (1,), EOS, _Ended())
    row = np.arange(VOCAB, dtype=np.float32)
    controls.apply(row)
    assert np.flatnonzero(np.isfinite(row)).tolist() == sorted(EOS)


def test_a_request_without_controls_has_none() -> None:
    assert controls_of(SamplingParams(temperature=0.5, top_k=3, stop_token_ids=(4,)), (1,), EOS) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": 101.0}, "repetition_penalty"),
        ({"logit_bias": ((1, 100.5),)}, "logit_bias"),
        ({"logit_bias": ((VOCAB, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((1, 1.0), (1, 2.0))}, "logit_bias"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids"),
        ({"stop_token_ids": (VOCAB,)}, "stop_token_ids"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"min_tokens": 1, "stop_token_ids": tuple(range(VOCAB))}, "min_tokens"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(fields: dict[str, object], param: str) -> None:
    request = GenerationRequest("r", (1,), SamplingParams(**fields))
    with pytest.raises(RefusedError, match=param) as caught:
        check_request(request, VOCAB, EOS)
    assert caught.value.param == param
