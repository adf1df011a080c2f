"""Log-probabilities of a prompt's own tokens: whole, equal to the cold run's, and the cache's books still balance."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_runs import OPTIMISTIC, poison, with_blocks

from pageinn.engine.engine import Engine
from pageinn.engine.messages import Delta, FinishReason, GenerationRequest, PromptLogProb, SamplingParams

VOCAB = 320
SCORE = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, prompt_logprobs=3, logprobs=3)
PLAIN = replace(SCORE, prompt_logprobs=None)


def tokens(seed: int, count: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(3, VOCAB) for _ in range(count))


def engine_of(path: Path, blocks: int, **fields: object) -> Engine:
    engine = Engine(with_blocks(path, blocks, replace(OPTIMISTIC, **fields)))
    poison(engine)
    return engine


def steps(engine: Engine, requests: list[GenerationRequest]) -> dict[tuple[str, int], list[Delta]]:
    """Run to the end with the books checked after every step; each choice's deltas."""
    for request in requests:
        engine.core.submit(request)
    deltas: dict[tuple[str, int], list[Delta]] = {}
    while not engine.core.idle:
        for delta in engine.core.step():
            deltas.setdefault((delta.request_id, delta.index), []).append(delta)
        engine.core.scheduler.memory.check()
    return deltas


def test_equal_to_generating_each_prefix(tiny_path: Path) -> None:
    """What a prompt token gets is what it would get as the token that follows the tokens before it."""
    engine = engine_of(tiny_path, 200)
    prompt = tokens(0, 40)
    (whole,) = engine.generate([prompt], SCORE)[0]
    assert whole.prompt_logprobs[0] is None
    assert len(whole.prompt_logprobs) == len(prompt)
    for position in range(1, len(prompt)):
        entry = whole.prompt_logprobs[position]
        bias = ((prompt[position], 100.0),)
        (one,) = engine.generate([prompt[:position]], replace(PLAIN, logit_bias=bias, temperature=0.0))[0]
        assert one.tokens == (entry.token,) == (prompt[position],)
        assert one.logprobs[0].logprob == entry.logprob
        assert one.logprobs[0].top == entry.top


def test_ranks_count_what_is_more_likely(tiny_path: Path) -> None:
    engine = engine_of(tiny_path, 200)
    (whole,) = engine.generate([tokens(1, 60)], replace(SCORE, prompt_logprobs=20))[0]
    for entry in whole.prompt_logprobs[1:]:
        places = [place for place, (token, _) in enumerate(entry.top, 1) if token == entry.token]
        assert places == [entry.rank] if entry.rank <= 20 else not places
        assert 1 <= entry.rank <= VOCAB
    assert len({entry.rank for entry in whole.prompt_logprobs[1:]}) > 5


@pytest.mark.parametrize("prefix_cache", ["off", "live", "keep"])
@pytest.mark.parametrize("budget", [16, 37, 256])
def test_a_cached_prefix_changes_nothing(tiny_path: Path, prefix_cache: str, budget: int) -> None:
    """Field case G2: full length and equal to the cold run, with the prefix, or all of it, in the cache."""
    prompt = tokens(2, 300)
    cold = engine_of(tiny_path, 100).generate([prompt], replace(SCORE, max_tokens=5))[0][0]
    engine = engine_of(tiny_path, 100, prefix_cache=prefix_cache, max_num_batched_tokens=budget, max_num_seqs=8)
    engine.generate([prompt[:200]], PLAIN)
    for _ in range(2):
        (again,) = engine.generate([prompt], replace(SCORE, max_tokens=5))[0]
        assert again == cold
        assert again.cached_tokens == 0
    (reader,) = engine.generate([prompt], replace(PLAIN, max_tokens=5))[0]
    assert (reader.tokens, reader.logprobs) == (cold.tokens, cold.logprobs)
    assert reader.cached_tokens == (299 if prefix_cache == "keep" else 0)


def test_among_readers_writers_and_preemptions(tiny_path: Path) -> None:
    """Requests that read and that do not, together, over a pool that preempts; four choices each have all of it."""
    prompts = {f"r{i}": tokens(3, 60 + 10 * i) + tokens(4 + i, 7) for i in range(6)}
    sampling = replace(SCORE, max_tokens=20, n=4, temperature=1.0, seed=5)
    expected = {name: engine_of(tiny_path, 100).generate([prompt], sampling)[0] for name, prompt in prompts.items()}
    engine = engine_of(tiny_path, 16, max_num_seqs=10, max_num_batched_tokens=37)
    requests = [GenerationRequest(name, prompt, sampling) for name, prompt in prompts.items()]
    reading = [GenerationRequest(f"{name}/reads", prompt, PLAIN) for name, prompt in prompts.items()]
    deltas = steps(engine, [*requests, *reading])
    for name in prompts:
        for choice in range(4):
            pieces, alike = deltas[name, choice], expected[name][choice]
            assert pieces[0].prompt_logprobs == alike.prompt_logprobs
            assert not any(piece.prompt_logprobs for piece in pieces[1:])
            assert tuple(token for piece in pieces for token in piece.tokens) == alike.tokens
            assert tuple(entry for piece in pieces for entry in piece.logprobs) == alike.logprobs
    stats = engine.core.stats()
    assert stats.preemptions > 0
    assert stats.blocks_in_use == 0


def test_preempted_within_its_prompt(tiny_path: Path) -> None:
    """Four answers grow until a long prompt, half computed, gives way; it starts over, and each token counts once."""
    engine = engine_of(tiny_path, 33, max_num_seqs=6, max_num_batched_tokens=16)
    prompt = tokens(10, 400)
    (expected,) = engine_of(tiny_path, 100).generate([prompt], SCORE)[0]
    growing = [GenerationRequest(f"g{i}", tokens(11 + i, 8), replace(PLAIN, max_tokens=60)) for i in range(4)]
    deltas = steps(engine, [*growing, GenerationRequest("scores", prompt, SCORE)])
    (only,) = deltas["scores", 0]
    assert only.prompt_logprobs == expected.prompt_logprobs
    stats = engine.core.stats()
    assert stats.preemptions == 1
    assert 100 < stats.recomputed_tokens < 400


def test_it_is_in_the_denominator_and_has_a_counter_of_its_own(tiny_path: Path) -> None:
    """Field case F5. What it computed may be read by others."""
    engine = engine_of(tiny_path, 100)
    prompt = tokens(6, 100)
    engine.generate([prompt], SCORE)
    engine.generate([prompt], replace(SCORE, n=3))
    engine.generate([prompt], PLAIN)
    stats = engine.core.stats()
    assert stats.prefix_cache_queries == 300
    assert stats.prefix_cache_bypassed == 200
    assert stats.prefix_cache_hits == 99
    assert stats.prompt_tokens_computed == 100 + 100 + 2 + 1
    assert stats.blocks_kept == 7


def test_a_reader_follows_who_does_not_read_and_not_the_other_way_round(tiny_path: Path) -> None:
    engine = engine_of(tiny_path, 100, max_num_batched_tokens=64)
    prompt = tokens(7, 200)
    steps(engine, [GenerationRequest("scores", prompt, SCORE), GenerationRequest("reads", prompt, PLAIN)])
    assert engine.core.stats().prompt_tokens_computed == 200 + 200 % 16
    engine.core.reset_prefix_cache()
    before = engine.core.stats().prompt_tokens_computed
    steps(engine, [GenerationRequest("reads", prompt, PLAIN), GenerationRequest("scores", prompt, SCORE)])
    assert engine.core.stats().prompt_tokens_computed - before == 400


def test_a_prompt_alone(tiny_path: Path) -> None:
    """max_tokens 0 generates nothing; a prompt of one token has nothing before it."""
    engine = engine_of(tiny_path, 100)
    for prompt in (tokens(8, 50), (5,)):
        full = engine.generate([prompt], SCORE)[0][0]
        (only,) = engine.generate([prompt], replace(SCORE, max_tokens=0))[0]
        assert (only.text, only.tokens, only.logprobs, only.finish_reason) == ("", (), (), FinishReason.LENGTH)
        assert only.prompt_logprobs == full.prompt_logprobs
        assert len(only.prompt_logprobs) == len(prompt)
    assert engine.core.stats().generation_tokens == 2


def test_a_distribution(tiny_path: Path) -> None:
    """All of a small vocabulary's probabilities cannot be asked for, but 20 of them sum to less than 1."""
    (answer,) = engine_of(tiny_path, 100).generate([tokens(9, 30)], replace(SCORE, prompt_logprobs=20))[0]
    entries: list[PromptLogProb] = [entry for entry in answer.prompt_logprobs if entry is not None]
    assert len(entries) == 29
    assert all(0 < np.exp([value for _, value in entry.top]).sum() < 1 for entry in entries)
