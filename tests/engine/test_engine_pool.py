"""What happens when the pool is small: refusals, length stops, preemption, and nothing left behind."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_runs import GREEDY, Answer, ChoiceKey, engine_of, finish, request, run, store_of, take, tokens

from pageinn.engine.messages import FinishReason, RefusedError, SamplingParams
from pageinn.kernels.slots import plain_keys


def test_500_finished_requests_leave_nothing_in_use(tiny_path: Path) -> None:
    """Field cases A1 and A2: what is kept is reusable, the next request is served over a pool full of it."""
    engine = engine_of(tiny_path, 40)
    rng = random.Random(0)
    run(engine, [request(f"r{i}", tokens(rng, rng.randrange(1, 60))) for i in range(500)])
    stats = engine.core.stats()
    assert stats.blocks_in_use == 0
    assert stats.blocks_free + stats.blocks_kept == 40
    assert stats.blocks_kept > 20
    assert run(engine, [request("next", tokens(rng, 39 * 16))])[ChoiceKey("next", 0)].finish is FinishReason.LENGTH
    engine.core.scheduler.memory.check()


def test_a_request_larger_than_the_pool_is_refused_and_the_next_served(tiny_path: Path) -> None:
    """Field case D1."""
    engine = engine_of(tiny_path, 4)
    with pytest.raises(RefusedError, match="64"):
        engine.core.submit(request("large", tokens(random.Random(1), 70)))
    assert run(engine, [request("small", [1, 2, 3])])[ChoiceKey("small", 0)].tokens


def test_the_last_running_request_outgrows_the_pool(tiny_path: Path) -> None:
    """Field case D2: four choices cannot all end; each ends with a length stop, and the engine serves on."""
    engine = engine_of(tiny_path, 4)
    fork = replace(GREEDY, max_tokens=30, n=4, temperature=1.0, seed=1)
    answers = run(engine, [request("many", tokens(random.Random(2), 33), fork)])
    assert [answers[ChoiceKey("many", i)].finish for i in range(4)] == [FinishReason.LENGTH] * 4
    assert run(engine, [request("small", [1, 2, 3])])[ChoiceKey("small", 0)].tokens


def test_demand_far_above_the_pool_ends_in_bounded_steps(tiny_path: Path) -> None:
    """Field case D3: 60 requests, each up to half the pool, finish without an evict-and-requeue loop."""
    engine = engine_of(tiny_path, 10, max_num_seqs=16)
    rng = random.Random(3)
    requests = [request(f"r{i}", tokens(rng, 40), replace(GREEDY, max_tokens=40)) for i in range(60)]
    answers = run(engine, requests)
    assert all(len(answer.tokens) == 40 for answer in answers.values())
    # Were they served one by one, each would take 40 steps; preempting must not make it worse than that.
    assert engine.core.stats().steps <= 60 * 41


def test_a_cancelled_request_frees_everything_at_the_next_step(tiny_path: Path) -> None:
    """Field case G1, below HTTP; a normal finish leaves nothing to abort."""
    engine = engine_of(tiny_path, 60, prefix_cache="off")
    rng = random.Random(4)
    for number in range(3):
        engine.core.submit(request(f"r{number}", tokens(rng, 50), replace(GREEDY, max_tokens=100, n=2)))
    for _ in range(4):
        engine.core.step()
    assert engine.core.stats().blocks_in_use > 0
    for number in range(3):
        engine.core.cancel(f"r{number}")
    assert engine.core.step() == []
    stats = engine.core.stats()
    assert (stats.blocks_in_use, stats.running, stats.waiting) == (0, 0, 0)
    assert stats.finished == {"abort": 6}


def test_a_request_cancelled_beside_its_refusal_ends_nothing(tiny_path: Path) -> None:
    """A full queue turns it away in the step that hears of its cancellation: nobody is there to be told."""
    engine = engine_of(tiny_path, 60, max_num_seqs=1, max_queued_requests=1)
    rng = random.Random(9)
    for name in ("runs", "waits"):
        engine.core.submit(request(name, tokens(rng, 20), replace(GREEDY, max_tokens=50)))
        engine.core.step()
    engine.core.submit(request("late", tokens(rng, 20)))
    engine.core.cancel("late")
    assert all(delta.request_id == "runs" for delta in engine.core.step())


def test_a_forks_copy_leaves_the_donors_block_untouched(tiny_path: Path) -> None:
    """Field cases A4 and A5: four continuations of a prompt that ends mid-block share all but a copy of that block."""
    engine = engine_of(tiny_path, 60)
    prompt = tokens(random.Random(5), 40)
    sampling = replace(GREEDY, max_tokens=24, n=4, temperature=1.0, seed=9)
    engine.core.submit(request("many", prompt, sampling))
    engine.core.step()
    donor = engine.core.scheduler._running[0].sequence
    assert donor is not None
    block = donor.table[2]
    store = store_of(engine)
    before = plain_keys(store.keys[:, block], store.pairs)[..., :8].copy()
    engine.core.step()
    assert len(engine.core.scheduler._running) == 4
    tables = {tuple(choice.sequence.table[:2]) for choice in engine.core.scheduler._running if choice.sequence}
    tails = {choice.sequence.table[2] for choice in engine.core.scheduler._running if choice.sequence}
    assert len(tables) == 1, "full blocks are shared"
    assert len(tails) == 4, "the partly filled one is copied"
    assert np.array_equal(plain_keys(store.keys[:, block], store.pairs)[..., :8], before)
    finish(engine)


def test_seeds(tiny_path: Path) -> None:
    """A request's own seed repeats; without one, seeds are drawn from the engine's, and differ between requests."""
    free = SamplingParams(max_tokens=20, temperature=1.0, ignore_eos=True)
    prompt = tokens(random.Random(6), 10)

    def texts(seed: int, sampling: SamplingParams) -> list[list[int]]:
        engine = engine_of(tiny_path, 60, seed=seed)
        return [run(engine, [request(name, prompt, sampling)])[ChoiceKey(name, 0)].tokens for name in "ab"]

    one, two = texts(1, free), texts(1, free)
    assert one == two
    assert one[0] != one[1]
    assert texts(2, free) != one
    fixed = texts(1, replace(free, seed=7))
    assert fixed[0] == fixed[1]


def test_generate_joins_text_and_counts_cached_tokens(tiny_path: Path) -> None:
    """Library use: text prompts and token prompts, n choices each."""
    engine = engine_of(tiny_path, 60)
    prompt = "the other side of the street and the "
    both = engine.generate([prompt, engine.tokenizer.encode(prompt)], SamplingParams(max_tokens=5, n=2, seed=3))
    assert [len(choices) for choices in both] == [2, 2]
    assert both[0] == [choice._replace(cached_tokens=0) for choice in both[1]] or both[1][0].cached_tokens > 0
    for first, second in zip(*both, strict=True):
        assert first.text == second.text == engine.tokenizer.decode(list(first.tokens))


def test_each_choice_ends_once(tiny_path: Path) -> None:
    """Field case G5, below HTTP: three choices, three ends, and nothing after an end (`take` insists on that)."""
    engine = engine_of(tiny_path, 60)
    engine.core.submit(request("one", [1, 2, 3], replace(GREEDY, n=3, temperature=1.0)))
    answers: dict[ChoiceKey, Answer] = {}
    while not engine.core.idle:
        for delta in engine.core.step():
            take(answers, delta)
    assert [answers[ChoiceKey("one", i)].finish for i in range(3)] == [FinishReason.LENGTH] * 3
