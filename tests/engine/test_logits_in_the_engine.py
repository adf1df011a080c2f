"""Controlled rows among others: what they do to answers, and that nothing else does."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from engine_runs import OPTIMISTIC, ChoiceKey, alone, poison, run, with_blocks

from pageinn.engine.config import EngineConfig
from pageinn.engine.engine import Engine
from pageinn.engine.messages import FinishReason, GenerationRequest, SamplingParams

PROMPT = (300, 301, 302, 303, 304)
GREEDY = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(tiny_path: Path) -> Engine:
    return Engine(with_blocks(tiny_path, 100, EngineConfig()))


def controlled(vocab: int, count: int) -> list[GenerationRequest]:
    """Requests that share beginnings, most of them with controls, a few with four choices."""
    rng = random.Random(17)
    head = [rng.randrange(vocab) for _ in range(50)]
    requests = []
    for number in range(count):
        prompt = (*head[: rng.randrange(1, 50)], *(rng.randrange(vocab) for _ in range(rng.randrange(1, 15))))
        biased = rng.sample(range(vocab), 5)
        sampling = SamplingParams(
            max_tokens=30,
            n=rng.choice([1, 1, 4]),
            temperature=rng.choice([0.0, 1.0]),
            seed=number,
            logprobs=2,
            presence_penalty=rng.choice([0.0, 1.0]),
            frequency_penalty=rng.choice([0.0, 0.5]),
            repetition_penalty=rng.choice([1.0, 1.2]),
            logit_bias=tuple((token, rng.choice([-100.0, 3.0])) for token in biased),
            stop_token_ids=tuple(rng.sample(range(vocab), 4)),
            min_tokens=rng.choice([0, 8]),
        )
        requests.append(
            GenerationRequest(f"r{number}", prompt, sampling if number % 5 else replace(GREEDY, logprobs=2))
        )
    return requests


@pytest.mark.parametrize(("blocks", "budget", "prefix_cache"), [(400, 64, "keep"), (14, 37, "keep"), (14, 16, "off")])
def test_nothing_but_the_request_decides(tiny_path: Path, blocks: int, budget: int, prefix_cache: str) -> None:
    """Field cases A4, B6: cold, warm, forked and preempted, the bits of each answer are those it has alone."""
    requests = controlled(320, 14)
    expected = alone(EngineConfig(model=tiny_path, kv_cache_memory_bytes=8 << 20), requests)
    config = replace(OPTIMISTIC, max_num_seqs=16, max_num_batched_tokens=budget, prefix_cache=prefix_cache, threads=2)
    engine = Engine(with_blocks(tiny_path, blocks, config))
    poison(engine)
    for part in ("cold", "warm"):
        answers = run(engine, [replace(request, request_id=f"{request.request_id}/{part}") for request in requests])
        for key, answer in answers.items():
            alike = expected[ChoiceKey(key.request_id.removesuffix(f"/{part}"), key.index)]
            assert (answer.bits, answer.finish) == (alike.bits, alike.finish)
    assert engine.core.stats().blocks_in_use == 0
    if blocks == 14:
        assert engine.core.stats().preemptions > 0


def test_log_probabilities_are_the_models_own(engine: Engine) -> None:
    """As vLLM's raw_logprobs: a bias decides the token, its log-probability is the one it had without."""
    (plain,) = engine.generate([PROMPT], replace(GREEDY, max_tokens=1, logprobs=5))[0]
    second = plain.logprobs[0].top[1][0]
    (biased,) = engine.generate([PROMPT], replace(GREEDY, max_tokens=1, logprobs=5, logit_bias=((second, 100.0),)))[0]
    assert biased.tokens == (second,)
    assert biased.logprobs[0].top == plain.logprobs[0].top
    assert biased.logprobs[0].logprob == plain.logprobs[0].top[1][1]


def test_penalties_end_a_repetition(engine: Engine) -> None:
    (plain,) = engine.generate([PROMPT], GREEDY)[0]
    (penalised,) = engine.generate([PROMPT], replace(GREEDY, presence_penalty=2.0, frequency_penalty=2.0))[0]
    assert plain.tokens[0] == penalised.tokens[0]
    assert len(set(penalised.tokens)) == 30 > len(set(plain.tokens))
    (unseen,) = engine.generate([PROMPT], replace(GREEDY, repetition_penalty=100.0, max_tokens=3))[0]
    assert not set(unseen.tokens) & set(PROMPT)


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_a_stop_token_ends_an_answer_and_does_not_show(engine: Engine, ignore_eos: bool) -> None:
    free = replace(GREEDY, presence_penalty=2.0, ignore_eos=ignore_eos)
    (plain,) = engine.generate([PROMPT], free)[0]
    stop = plain.tokens[4]
    (stopped,) = engine.generate([PROMPT], replace(free, stop_token_ids=(stop,)))[0]
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.tokens == plain.tokens[: plain.tokens.index(stop) + 1]
    shown = b"".join(engine.tokenizer.token_bytes[token] for token in stopped.tokens[:-1])
    assert stopped.text == shown.decode(errors="replace")


def test_ends_are_held_back_until_min_tokens(engine: Engine) -> None:
    """End tokens that a bias makes certain, stop tokens likewise, and stop strings in the text before."""
    eos = min(engine.tokenizer.eos_ids)
    for field in ({"logit_bias": ((eos, 100.0),)}, {"stop_token_ids": (7,), "logit_bias": ((7, 100.0),)}):
        sampling = replace(GREEDY, ignore_eos=False, min_tokens=9, **field)
        (answer,) = engine.generate([PROMPT], sampling)[0]
        assert (len(answer.tokens), answer.finish_reason) == (10, FinishReason.STOP)
    letter = engine.tokenizer.encode("a")[0]
    always = replace(GREEDY, logit_bias=((letter, 100.0),), min_tokens=9)
    (answer,) = engine.generate([PROMPT], replace(always, stop=("aa",)))[0]
    assert (len(answer.tokens), answer.finish_reason, answer.text) == (10, FinishReason.STOP, "a" * 8)
