"""Whose blocks are whose, down to the bytes in the store."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_runs import Answer, ChoiceKey, alone, poison, run, store_of, take, tokens, with_blocks
from tiny import write_tiny_llama

from pageinn.engine.config import EngineConfig
from pageinn.engine.engine import Engine
from pageinn.engine.messages import Delta, FinishReason, GenerationRequest, SamplingParams
from pageinn.memory.questions import PrefixCache
from pageinn.memory.scopes import DEFAULT
from pageinn.memory.tokens import pack
from pageinn.scheduling.config import SchedulerConfig

GREEDY = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, logprobs=2)
FOUR = replace(GREEDY, max_tokens=24, n=4, temperature=1.0, seed=9)


def request(name: str, prompt: Sequence[int], sampling: SamplingParams = GREEDY) -> GenerationRequest:
    return GenerationRequest(name, tuple(prompt), sampling)


def engine_of(path: Path, blocks: int = 60, **settings: int | str) -> Engine:
    return Engine(with_blocks(path, blocks, replace(EngineConfig(threads=1), **settings)))


def block_bytes(engine: Engine, block: int) -> bytes:
    """All layers' keys and values of a block."""
    store = store_of(engine)
    return b"".join(np.ascontiguousarray(array[:, block]).tobytes() for array in (store.keys, store.values))


def test_a_kept_tail_is_copied_and_left_as_it_was(tiny_path: Path) -> None:
    """Field case A4: four continuations of a kept, half-filled block equal those without a cache; its bytes stay.

    They do until a continuation has filled its copy, which covers the tail: then the tail is dropped.
    """
    engine = engine_of(tiny_path)
    prompt = tokens(random.Random(0), 40)
    run(engine, [request("first", prompt)])
    match = engine.core.scheduler.memory.match(DEFAULT, pack(prompt))
    assert match.partial is not None
    assert match.partial.tokens == 8
    donor = match.partial.node.blocks[match.partial.logical]
    before = block_bytes(engine, donor)
    watched = 0

    def watch() -> None:
        nonlocal watched
        running = [choice.sequence for choice in engine.core.scheduler._running]
        if running and all(sequence and sequence.stored < 48 for sequence in running):
            watched += 1
            assert all(sequence and donor not in sequence.table for sequence in running)
            assert block_bytes(engine, donor) == before

    answers = run(engine, [request("many", prompt, FOUR)], watch)
    assert watched >= 6
    assert answers[ChoiceKey("many", 0)].cached == 39
    expected = alone(with_blocks(tiny_path, 60, EngineConfig()), [request("many", prompt, FOUR)])
    assert {key: answer.bits for key, answer in answers.items()} == {key: each.bits for key, each in expected.items()}
    engine.core.scheduler.memory.check()


@pytest.mark.parametrize("prefix_cache", ["live", "keep"])
def test_children_outlive_the_choice_that_they_were_forked_from(tiny_path: Path, prefix_cache: str) -> None:
    """Field case A5: the first choice stops early, what can be evicted is, and poisoned: the others are the same."""
    prompt = tokens(random.Random(1), 40)
    whole = alone(with_blocks(tiny_path, 60, EngineConfig()), [request("many", prompt, FOUR)])
    texts = [whole[ChoiceKey("many", index)].text for index in range(4)]
    stop = next(char for char in texts[0] if char.isprintable() and not any(char in text for text in texts[1:]))
    engine = engine_of(tiny_path, prefix_cache=prefix_cache)
    memory = engine.core.scheduler.memory
    ended = False

    def evict_all() -> None:
        if ended:
            memory.reset()
            poison(engine, memory.pool._free)

    engine.core.submit(request("many", prompt, replace(FOUR, stop=(stop,))))
    answers: dict[ChoiceKey, Answer] = {}
    while not engine.core.idle:
        evict_all()
        for delta in engine.core.step():
            take(answers, delta)
            ended |= delta.index == 0 and delta.finish_reason is FinishReason.STOP
    assert ended
    assert answers[ChoiceKey("many", 0)].text == texts[0][: texts[0].index(stop)]
    assert len(answers[ChoiceKey("many", 0)].tokens) < 20
    for index in (1, 2, 3):
        assert answers[ChoiceKey("many", index)].bits == whole[ChoiceKey("many", index)].bits


@pytest.mark.parametrize("together", [True, False])
def test_equal_requests_leave_one_path(tiny_path: Path, together: bool) -> None:
    """Field cases A6 and B5: two that generate the same are held once, and the duplicate's blocks are free."""
    engine = engine_of(tiny_path)
    prompt = tokens(random.Random(2), 40)
    two = [request(name, prompt, replace(GREEDY, max_tokens=30)) for name in "ab"]
    rounds = [two] if together else [two[:1], two[1:]]
    answers = {key: answer for each in rounds for key, answer in run(engine, each).items()}
    assert answers[ChoiceKey("a", 0)].bits == answers[ChoiceKey("b", 0)].bits
    memory = engine.core.scheduler.memory
    memory.check()
    # 40 prompt tokens and 29 of the 30 generated: four full blocks and a tail.
    assert memory.usage() == (55, 5, 0)
    assert len({node.tokens for node in memory.tree.nodes()}) == len(memory.tree.nodes())


def test_the_oldest_kept_prompt_makes_room(tiny_path: Path) -> None:
    """Field case A2: the pool is full of finished prompts; a new one evicts the oldest, the youngest still hits."""
    engine = engine_of(tiny_path, 12)
    rng = random.Random(3)
    prompts = [[3 + number, *tokens(rng, 47)] for number in range(4)]
    for number, prompt in enumerate(prompts):
        run(engine, [request(f"r{number}", prompt)])
    assert engine.core.scheduler.memory.usage() == (0, 12, 0)
    run(engine, [request("new", [100, *tokens(rng, 47)])])
    assert engine.core.stats().evicted_blocks == 3
    assert run(engine, [request("young", prompts[3])])[ChoiceKey("young", 0)].cached == 47
    assert run(engine, [request("old", prompts[0])])[ChoiceKey("old", 0)].cached == 0


def test_what_outgrows_the_pool_ends_with_a_reason(tiny_path: Path) -> None:
    """Field case D2: a lone request that no refusal could foresee gets a length stop that names the flag.

    An engine's own limit is never above its pool, so the scheduler's is raised here.
    """
    engine = engine_of(tiny_path, 4)
    scheduler = engine.core.scheduler
    scheduler.config = SchedulerConfig(max_model_len=1000)
    open_ended = replace(GREEDY, max_tokens=500, ignore_eos=False, logit_bias=((2, -100.0), (0, -100.0)))
    engine.core.submit(request("large", tokens(random.Random(4), 40), open_ended))
    deltas: list[Delta] = []
    while not engine.core.idle:
        deltas += engine.core.step()
    # The token after the last slot is still sampled; its own keys and values would need a slot.
    assert sum(len(delta.tokens) for delta in deltas) == 64 - 40 + 1
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert deltas[-1].error is not None
    assert "--kv-cache-memory-bytes" in deltas[-1].error
    assert run(engine, [request("small", [1, 2, 3])])[ChoiceKey("small", 0)].tokens
    assert scheduler.memory.usage().in_use == 0


@pytest.mark.parametrize("prefix_cache", list(PrefixCache))
def test_every_request_is_in_the_denominator(tiny_path: Path, prefix_cache: PrefixCache) -> None:
    """Field case F5: also without a cache, and each request once whatever its choices; all that is hit is counted."""
    engine = engine_of(tiny_path, prefix_cache=prefix_cache)
    prompt = tokens(random.Random(5), 50)
    for name, sampling in (("a", GREEDY), ("b", FOUR), ("c", GREEDY)):
        run(engine, [request(name, prompt, sampling)])
    stats = engine.core.stats()
    assert stats.prefix_cache_queries == stats.prompt_tokens == 3 * 50
    assert stats.prefix_cache_hits == (2 * 49 if prefix_cache is PrefixCache.KEEP else 0)
    assert stats.window_queries == stats.prefix_cache_queries
    assert stats.finished == {"length": 6}


@pytest.mark.parametrize("prefix_cache", list(PrefixCache))
def test_a_soak_ends_where_it_began(tiny_path: Path, prefix_cache: PrefixCache) -> None:
    """Field case A3: 2,000 requests, some cancelled at any moment; after a reset every block is free again."""
    engine = engine_of(tiny_path, 24, prefix_cache=prefix_cache, max_num_seqs=16)
    rng = random.Random(6)
    core, memory = engine.core, engine.core.scheduler.memory
    heads = [tokens(rng, 40) for _ in range(5)]
    for number in range(2000):
        prompt = [*rng.choice(heads)[: rng.randrange(41)], *tokens(rng, rng.randrange(1, 12))]
        n = rng.choice([1, 1, 1, 3])
        core.submit(request(str(number), prompt, replace(FOUR, max_tokens=rng.randrange(1, 8), n=n, logprobs=None)))
        if rng.random() < 0.2:
            core.cancel(str(rng.randrange(number + 1)))
        while core.scheduler.num_waiting > 20:
            core.step()
        if number % 100 == 0:
            memory.check()
    while not core.idle:
        core.step()
    memory.check()
    assert memory.usage().in_use == 0
    core.reset_prefix_cache()
    assert memory.usage() == (24, 0, 0)
    assert core.stats().finished["abort"] > 0
    assert not core._streams


def test_another_model_file_under_the_same_name_shares_nothing(tmp_path: Path) -> None:
    """Field case C6: the second model answers cold, and as it answers with no cache at all."""
    prompt = [request("r", range(3, 103), replace(GREEDY, max_tokens=8))]
    answers = []
    for seed in (1, 2):
        (tmp_path / str(seed)).mkdir()
        path = write_tiny_llama(tmp_path / str(seed) / "model.gguf", seed=seed)
        config = with_blocks(path, 60, EngineConfig())
        engine = Engine(config)
        (answer,) = run(engine, prompt).values()
        assert answer.cached == 0
        assert answer.bits == next(iter(alone(config, prompt).values())).bits
        assert engine.model_name == "model"
        answers.append(answer.tokens)
    assert answers[0] != answers[1]
