"""Preemption by swap: what goes to the host and comes back is what was there, whatever fails; nothing stays behind."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import hypothesis.strategies as st
from hypothesis import given, settings
from simulated_engine import SimulatedEngine, request
from test_properties import Traffic, configs, drive, some_token, traffic

from pageinn.memory.manager import MemoryManager
from pageinn.memory.moves import MoveKind
from pageinn.memory.questions import PrefixCache
from pageinn.scheduling.config import AdmissionMode, Preemption, SchedulerConfig
from pageinn.scheduling.plan import Abort, Ending

CONFIG = SchedulerConfig(
    max_num_seqs=8,
    max_num_batched_tokens=64,
    max_model_len=1000,
    admission=AdmissionMode.OPTIMISTIC,
    preempt_by=Preemption.SWAP,
)


def engine(num_blocks: int, host_blocks: int, block_size: int = 4) -> SimulatedEngine:
    return SimulatedEngine(MemoryManager(num_blocks, block_size, host_blocks=host_blocks), CONFIG)


def moves(sim: SimulatedEngine, kind: MoveKind) -> int:
    return sum(move.kind is kind for step in sim.steps for move in step.plan.moves)


@settings(max_examples=70, deadline=None)
@given(
    traffic(),
    configs(),
    st.sampled_from([4, 7, 20]),
    st.sampled_from([2, 1, 4]),
    st.sampled_from([PrefixCache.KEEP, PrefixCache.LIVE]),
    st.sampled_from([2, 8, 100]),
    st.sampled_from([0.0, 0.0, 0.3, 1.0]),
)
def test_whatever_is_swapped_and_whatever_store_fails(
    items: list[Traffic],
    config: SchedulerConfig,
    num_blocks: int,
    block_size: int,
    mode: PrefixCache,
    host_blocks: int,
    failing: float,
) -> None:
    """Field cases D3 and D5: each load is proven, all ends in bounded time, as in a pool that is large and alone."""
    rng = Random(1)
    memory = MemoryManager(num_blocks, block_size, mode, host_blocks=host_blocks)
    sim = SimulatedEngine(memory, config, some_token, lambda: rng.random() < failing)
    drive(sim, items)
    sim.step()
    assert memory.usage().in_use == 0
    assert memory.host_usage().held == 0
    assert mode is PrefixCache.KEEP or memory.host_usage().free == host_blocks
    memory.reset()
    memory.check()
    assert memory.usage().free == num_blocks
    assert memory.host_usage().free == host_blocks
    roomy = SimulatedEngine(MemoryManager(600, block_size, PrefixCache.OFF), config, some_token)
    drive(roomy, items)
    for key, ending in sim.endings.items():
        if ending is not Ending.POOL and key in roomy.endings:
            assert sim.answers[key] == roomy.answers[key]


def test_what_was_swapped_is_not_computed_again() -> None:
    """Field case D5: two that outgrow the pool; the later one goes out and comes back, and computes each token once."""
    sim = engine(num_blocks=12, host_blocks=12)
    sim.arrive(request("a", [1] * 20, 20), request("b", [2] * 20, 20))
    sim.run()
    counters = sim.scheduler.counters
    assert counters.preemptions == counters.swaps > 0
    assert counters.recomputed_tokens == 0
    assert counters.swapped_out_blocks == counters.swapped_in_blocks == moves(sim, MoveKind.LOAD) > 0
    assert sum(sim.computed.values()) == 2 * (20 + 19)
    alone = engine(num_blocks=100, host_blocks=0)
    alone.arrive(request("a", [1] * 20, 20), request("b", [2] * 20, 20))
    alone.run()
    assert sim.answers == alone.answers


def test_an_abort_of_a_swapped_request_frees_its_slots() -> None:
    """Field case D5: and at once, in the step that takes the abort in."""
    sim = engine(num_blocks=12, host_blocks=12)
    sim.arrive(request("a", [1] * 20, 40), request("b", [2] * 20, 20))
    while not sim.scheduler.counters.swaps:
        sim.step()
    assert sim.memory.host_usage().held > 0
    sim.step([Abort("b")])
    assert sim.memory.host_usage() == (12, 0, 0)
    sim.run()
    assert list(sim.endings) == [("a", 0)]


def test_fifty_choices_and_a_tiny_swap_space() -> None:
    """Field case D6: what finds no room is computed again; nothing is aborted."""
    sim = SimulatedEngine(
        MemoryManager(40, 4, host_blocks=3),
        replace(CONFIG, max_num_seqs=50, max_num_batched_tokens=256),
        some_choice,
    )
    sim.arrive(request("r", [1] * 10, 30, n=50))
    sim.run(3000)
    counters = sim.scheduler.counters
    assert counters.preemptions > counters.swaps
    assert counters.recomputed_tokens > 0
    assert sorted(sim.endings) == [("r", index) for index in range(50)]
    assert set(sim.endings.values()) == {Ending.LENGTH}


def some_choice(history: list[int], key: tuple[str, int]) -> int:
    return 10 + key[1]


def test_a_store_that_fails_costs_a_recomputation() -> None:
    """A preempted request whose blocks did not arrive on the host goes on as if it had never been swapped."""
    sim = SimulatedEngine(MemoryManager(12, 4, host_blocks=12), CONFIG, store_fails=lambda: True)
    sim.arrive(request("a", [1] * 20, 20), request("b", [2] * 20, 20))
    sim.run()
    counters = sim.scheduler.counters
    assert counters.swaps > 0
    assert counters.swapped_in_blocks == 0
    assert counters.recomputed_tokens > 0
    assert sim.memory.host.failed_stores == moves(sim, MoveKind.STORE)
    assert sim.memory.host_usage().free == 12


def test_what_was_evicted_is_found_on_the_host() -> None:
    """Twenty prompts through a pool for two, and again: the second time their blocks are loaded, none is computed."""
    sim = engine(num_blocks=12, host_blocks=200)
    for _ in range(2):
        for number in range(20):
            sim.arrive(request(f"{len(sim.steps)}", [number] * 20, 1))
            sim.run()
    counters = sim.scheduler.counters
    assert counters.hits == 20 * 19
    assert counters.computed_prompt_tokens == 20 * 20 + 20
    assert sim.memory.host.promoted_blocks >= 18 * 5
