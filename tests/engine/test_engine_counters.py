"""What is computed, what is found, and what the counters say of it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from engine_runs import GREEDY, ChoiceKey, engine_of, finish, request, run, tokens

from pageinn.engine.core import WINDOW_SECONDS, EngineCore
from pageinn.engine.messages import GenerationRequest
from pageinn.memory.scopes import Scope


def test_an_exact_repeat_computes_one_token(tiny_path: Path) -> None:
    """Field case B4: of a prompt that is cached whole, the last token is computed again and nothing else."""
    engine = engine_of(tiny_path, 300)
    prompt = tokens(random.Random(0), 2000)
    first = run(engine, [request("a", prompt)])
    assert engine.core.stats().prompt_tokens_computed == 2000
    again = run(engine, [request("b", prompt)])
    stats = engine.core.stats()
    assert stats.prompt_tokens_computed == 2001
    assert stats.prefix_cache_hits == 1999
    assert again[ChoiceKey("b", 0)].cached == 1999
    assert again[ChoiceKey("b", 0)].tokens == first[ChoiceKey("a", 0)].tokens


def test_64_requests_compute_a_shared_prefix_once(tiny_path: Path) -> None:
    """All arrive together: one leads, 63 follow block by block and start when the shared part is there."""
    engine = engine_of(tiny_path, 600, max_num_seqs=64)
    rng = random.Random(1)
    shared = tokens(rng, 1536)
    # Own parts begin differently, so that not even one token more is found by chance.
    run(engine, [request(f"r{i}", [*shared, 3 + i, *tokens(rng, 63)]) for i in range(64)])
    stats = engine.core.stats()
    assert stats.prompt_tokens_computed == 1536 + 64 * 64
    assert stats.prefix_cache_queries == 64 * 1600
    assert stats.prefix_cache_hits == 63 * 1536


def test_a_second_turn_hits_the_first_turns_answer(tiny_path: Path) -> None:
    """Generated tokens are kept like prompt tokens; of the answer only its last token has no keys and values."""
    engine = engine_of(tiny_path, 300)
    rng = random.Random(2)
    first = tokens(rng, 50)
    answer = run(engine, [request("one", first, replace(GREEDY, max_tokens=40))])[ChoiceKey("one", 0)]
    assert len(answer.tokens) == 40
    second = first + answer.tokens + tokens(rng, 30)
    assert run(engine, [request("two", second)])[ChoiceKey("two", 0)].cached == 50 + 39


def test_recomputation_is_not_a_hit(tiny_path: Path) -> None:
    """Field cases F1 and F2: random prompts under preemption hit nothing, and each prompt is queried once."""
    engine = engine_of(tiny_path, 12, max_num_seqs=8)
    rng = random.Random(3)
    prompts = [tokens(rng, 30) for _ in range(20)]
    run(engine, [request(f"r{i}", prompt, replace(GREEDY, max_tokens=40)) for i, prompt in enumerate(prompts)])
    stats = engine.core.stats()
    assert stats.preemptions > 0
    assert stats.recomputed_tokens > 0
    assert stats.prefix_cache_queries == 20 * 30
    assert stats.prefix_cache_hits <= 20  # a first token in common, at most
    assert stats.prompt_tokens_computed == stats.prefix_cache_queries - stats.prefix_cache_hits


def test_the_windowed_rate_moves_and_an_idle_server_has_none(tiny_path: Path) -> None:
    """Field cases F3, F4, F7: all hits in one minute, none in the next; no queries give no rate; kept is not in use."""
    engine = engine_of(tiny_path, 300)
    now = [1000.0]
    scheduler, executor = engine.core.scheduler, engine.core._executor
    core = engine.core = EngineCore(scheduler, executor, engine.tokenizer, 0, lambda: now[0])
    rng = random.Random(4)
    assert (core.stats().window_queries, core.stats().window_hits) == (0, 0)
    prompt = tokens(rng, 160)
    run(engine, [request("cold", prompt)])
    now[0] += WINDOW_SECONDS + 5
    run(engine, [request("warm", prompt)])
    assert (core.stats().window_queries, core.stats().window_hits) == (160, 159)
    now[0] += WINDOW_SECONDS + 5
    run(engine, [request("other", [1, *tokens(rng, 99)])])
    assert (core.stats().window_queries, core.stats().window_hits) == (100, 0)
    now[0] += WINDOW_SECONDS + 5
    stats = core.stats()
    assert stats.window_queries == 0
    assert stats.blocks_in_use == 0
    assert stats.blocks_kept == 10 + 7
    run(engine, [request("short", [5, 6, 7])])
    assert core.stats().below_granularity == 1


def test_a_reset_says_what_it_did(tiny_path: Path) -> None:
    """Field case F6: blocks freed, and blocks that a running request still holds."""
    engine = engine_of(tiny_path, 300)
    rng = random.Random(5)
    run(engine, [request("done", tokens(rng, 64))])
    engine.core.submit(request("running", tokens(rng, 40), replace(GREEDY, max_tokens=20)))
    engine.core.step()
    assert engine.core.reset_prefix_cache() == (4, 3)
    finish(engine)
    assert engine.core.stats().blocks_in_use == 0


@pytest.mark.parametrize(
    ("first", "second", "shares"),
    [
        (Scope("a"), Scope("a"), True),
        (Scope("a"), Scope("b"), False),
        (Scope("a", "x"), Scope("a"), False),
        (Scope("a", "x"), Scope("a", "x"), True),
        (Scope("org_1", "2345"), Scope("org_12345", ""), False),
    ],
)
def test_who_reads_what(tiny_path: Path, first: Scope, second: Scope, shares: bool) -> None:
    """Field cases C2 and C4: another tenant's or salt's prompt is never found, one's own always."""
    engine = engine_of(tiny_path, 300)
    prompt = tuple(tokens(random.Random(6), 100))
    run(engine, [GenerationRequest("one", prompt, GREEDY, first)])
    answer = run(engine, [GenerationRequest("two", prompt, GREEDY, second)])[ChoiceKey("two", 0)]
    assert answer.cached == (99 if shares else 0)
