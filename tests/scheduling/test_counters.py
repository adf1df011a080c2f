"""What is counted as asked, hit, computed and recomputed; and that a soak leaves nothing behind."""

from __future__ import annotations

import random

import pytest
from simulated_engine import SimulatedEngine, never_stop, request

from pageinn.memory.manager import MemoryManager
from pageinn.memory.questions import PrefixCache
from pageinn.memory.scopes import DEFAULT, Scope
from pageinn.scheduling.config import AdmissionMode, SchedulerConfig
from pageinn.scheduling.plan import Abort


def engine(num_blocks: int = 1000, mode: PrefixCache = PrefixCache.KEEP, block_size: int = 16) -> SimulatedEngine:
    config = SchedulerConfig(8, 256, 10_000, admission=AdmissionMode.OPTIMISTIC)
    return SimulatedEngine(MemoryManager(num_blocks, block_size, mode), config)


def computed_by(sim: SimulatedEngine, *arguments: object, **options: object) -> int:
    """How many prompt tokens one more request makes it compute."""
    before = sim.counters["computed_prompt_tokens"]
    sim.arrive(request(*arguments, **options))
    sim.run()
    return sim.counters["computed_prompt_tokens"] - before


@pytest.mark.parametrize("length", [2000, 2001, 2015, 16, 5, 1])
def test_an_exact_repeat_computes_one_token(length: int) -> None:
    """Field case B4: however the prompt ends, all but its last token is a hit, and the answer is the same."""
    sim = engine()
    prompt = [token % 509 for token in range(length)]
    assert computed_by(sim, "cold", prompt) == length
    assert computed_by(sim, "warm", prompt) == 1
    assert sim.cached == {"cold": 0, "warm": length - 1}
    assert sim.answers["warm", 0] == sim.answers["cold", 0]


def test_a_second_turn_computes_only_what_is_new() -> None:
    """The first turn's answer is a hit but for its last token, whose keys and values were never needed."""
    sim = engine()
    first = [token % 509 for token in range(100)]
    computed_by(sim, "one", first, 30)
    second = first + sim.answers["one", 0] + [7] * 10
    assert computed_by(sim, "two", second, 5) == 11
    assert sim.cached["two"] == 129


def test_off_computes_a_repeat_again() -> None:
    sim = engine(mode=PrefixCache.OFF)
    assert [computed_by(sim, f"r{number}", [5] * 100) for number in range(2)] == [100, 100]


@pytest.mark.parametrize("block_size", [4, 16])
def test_recomputation_is_no_hit(block_size: int) -> None:
    """Field case F1: random prompts under preemption: the hit rate stays near 0; recomputing is no hit."""
    sim = engine(480 // block_size, block_size=block_size)
    rng = random.Random(3)
    prompts = [[rng.randrange(10_000) for _ in range(60)] for _ in range(40)]
    sim.arrive(*(request(f"r{number}", prompt, 90, ignore_eos=True) for number, prompt in enumerate(prompts)))
    sim.run(limit=10_000)
    assert sim.counters["preemptions"] > 3
    assert sim.counters["recomputed_tokens"] > 100
    assert sim.counters["queries"] == 40 * 60
    assert sim.counters["hits"] <= 40
    assert sim.counters["computed_prompt_tokens"] + sim.counters["hits"] == 40 * 60


def test_failed_admissions_count_once() -> None:
    """Field case F2: a request that waits through many steps for memory is one query, when it starts."""
    sim = engine(10)
    sim.arrive(request("big", [1] * 100, 40, ignore_eos=True))
    sim.arrive(request("blocked", [2] * 100, 2))
    for _ in range(5):
        sim.step()
    assert sim.counters["queries"] == 100
    sim.run()
    assert sim.counters["queries"] == 200


def test_below_granularity_has_a_counter_of_its_own() -> None:
    """Field case F4: a prompt shorter than one block has nothing to share between blocks; it is told apart."""
    sim = engine()
    computed_by(sim, "short", [1] * 15)
    computed_by(sim, "long", [2] * 16)
    assert sim.counters["below_granularity"] == 1
    assert sim.counters["queries"] == 31


def test_500_requests_leave_an_idle_pool() -> None:
    """Field cases A1 and A2: nothing is in use, the pool is full of what is kept, and the next request is served."""
    sim = engine(60)
    for number in range(500):
        sim.step() if number % 3 else sim.arrive(request(f"r{number}", [number + 1] * 40, 3))
    sim.run()
    usage = sim.memory.usage()
    assert usage.in_use == 0
    assert usage.kept > 50
    assert computed_by(sim, "next", [9999] * 900) == 900
    assert sim.memory.usage().in_use == 0


@pytest.mark.parametrize("mode", list(PrefixCache))
def test_a_soak_of_2000_requests(mode: PrefixCache) -> None:
    """Field case A3: mixed lengths, tenants, forks and aborts; the pool ends at the block count that it began with."""
    rng = random.Random(11)
    sim = SimulatedEngine(MemoryManager(64, 4, mode), SchedulerConfig(8, 48, 400), never_stop)
    check, sim.memory.check = sim.memory.check, lambda: None  # walks everything: here only now and then
    shared = [[rng.randrange(50) for _ in range(rng.randrange(4, 40))] for _ in range(12)]
    sent = 0
    while sent < 2000 or not sim.scheduler.idle:
        events = []
        while sent < 2000 and sim.scheduler.num_waiting + len(events) < 12:
            prompt = rng.choice(shared) + [rng.randrange(50) for _ in range(rng.randrange(1, 12))]
            scope = rng.choice([DEFAULT, DEFAULT, Scope("other"), Scope("other", str(sent))])
            one = request(f"r{sent}", prompt, rng.randrange(1, 9), n=rng.choice([1, 1, 1, 3]), scope=scope)
            events.append(one)
            sent += 1
        aborted = [Abort(f"r{rng.randrange(sent)}")] if rng.random() < 0.1 else []
        sim.arrive(*events)
        sim.step(aborted)
        if len(sim.steps) % 100 < 2:
            check()
    sim.step()
    check()
    assert sim.memory.usage().in_use == 0
    sim.memory.reset()
    check()
    assert sim.memory.usage() == (64, 0, 0)
    assert len(sim.memory.ledger.all()) == 1
