"""Prefixes in flight: one computes, the others wait for it without a seat and start as soon as it has them."""

from __future__ import annotations

import pytest
from simulated_engine import SimulatedEngine, request

from pageinn.memory.manager import MemoryManager
from pageinn.memory.questions import PrefixCache
from pageinn.memory.scopes import DEFAULT, Scope
from pageinn.scheduling.config import AdmissionMode, SchedulerConfig
from pageinn.scheduling.plan import Abort

SHARED = [token % 251 + 1 for token in range(1536)]


def engine(num_blocks: int = 4000, mode: PrefixCache = PrefixCache.KEEP, *, budget: int = 512) -> SimulatedEngine:
    return SimulatedEngine(MemoryManager(num_blocks, 16, mode), SchedulerConfig(64, budget, 100_000))


@pytest.mark.parametrize("mode", [PrefixCache.KEEP, PrefixCache.LIVE])
def test_what_64_share_is_computed_once(mode: PrefixCache) -> None:
    """All arrive together; 1,536 tokens are computed once and each request's own 24 by itself."""
    sim = engine(mode=mode)
    sim.arrive(*(request(f"r{number}", SHARED + [1000 + number] * 24, 8) for number in range(64)))
    sim.run()
    assert sim.counters["computed_prompt_tokens"] == 1536 + 64 * 24
    assert sim.counters["hits"] == 63 * 1536
    assert sim.counters["queries"] == 64 * (1536 + 24)


def test_off_computes_all_of_it() -> None:
    sim = engine(10_000, PrefixCache.OFF, budget=8192)
    sim.arrive(*(request(f"r{number}", SHARED + [1000 + number] * 24, 2) for number in range(8)))
    sim.run()
    assert sim.counters["computed_prompt_tokens"] == 8 * (1536 + 24)
    assert sim.counters["hits"] == 0


def test_a_waiter_holds_no_seat_and_starts_one_step_after_the_commit() -> None:
    """The leader computes its last chunk, with the last block that the follower shares, in the third step."""
    sim = engine(budget=128)
    sim.arrive(request("leader", SHARED[:360]), request("follower", SHARED[:320] + [9000] * 20))
    sim.step()
    assert (sim.scheduler.num_running, sim.scheduler.num_waiting) == (1, 1)
    sim.step()
    assert sim.computed["leader", 0] == 360
    assert list(sim.step().seated) == [("follower", 0)]
    sim.run()
    assert sim.computed["follower", 0] == 20 + 3


def test_less_than_a_shared_block_is_not_waited_for() -> None:
    sim = engine(budget=512)
    step = sim.arrive(request("leader", SHARED[:480]), request("other", SHARED[:15] + [9000] * 50))
    assert step.computed == {("leader", 0): 480, ("other", 0): 32}


def test_another_scope_never_waits() -> None:
    """What waits would tell a tenant what another one asks."""
    sim = engine()
    prompt = SHARED[:160]
    step = sim.arrive(
        request("a", prompt),
        request("b", prompt, scope=Scope("b")),
        request("c", prompt, scope=Scope("default", "salt")),
    )
    assert set(step.seated) == {("a", 0), ("b", 0), ("c", 0)}
    sim.run()
    assert sim.counters["hits"] == 0


def test_when_the_leader_is_aborted_a_follower_takes_over() -> None:
    """What the leader had computed is used, the first follower computes the rest, and the others follow that one."""
    sim = engine(budget=128)
    sim.arrive(*(request(f"r{number}", [*SHARED, 1000 + number]) for number in range(4)))
    sim.step()
    step = sim.step([Abort("r0")])
    assert list(step.seated) == [("r1", 0)]
    assert sim.cached.get("r1") is None
    assert step.plan.work[0].start == 256
    sim.run()
    assert sim.counters["computed_prompt_tokens"] == 1536 + 3
    assert sim.computed["r2", 0] == sim.computed["r3", 0] == 1 + 3


def test_when_the_leader_is_preempted_a_follower_takes_over() -> None:
    """Four that grow put the leader out half-way; the follower, which needs less, computes on from what is kept."""
    sim = SimulatedEngine(MemoryManager(44, 4), SchedulerConfig(8, 8, 1000, admission=AdmissionMode.OPTIMISTIC))
    sim.arrive(*(request(f"old{number}", [900 + number] * 2, 40, ignore_eos=True) for number in range(4)))
    while len(sim.answers.get(("old3", 0), [])) < 16:
        sim.step()
    prompt = SHARED[:72]
    sim.arrive(request("leader", prompt, 30, ignore_eos=True), request("follower", [*prompt[:32], 1], 2))
    assert sim.scheduler.num_running == 5
    while not sim.counters["preemptions"]:
        step = sim.step()
        assert len(sim.steps) < 200
    before = sim.computed["leader", 0]
    step = sim.step()
    assert list(step.seated) == [("follower", 0)]
    assert 0 < before < 32
    sim.run()
    assert sim.counters["preemptions"] == 1
    assert [len(sim.answers[key, 0]) for key in ("old0", "leader", "follower")] == [40, 30, 2]
    assert sim.computed["follower", 0] == 33 - before + 1, (
        "what the leader had, and the last answer, it does not compute"
    )


def test_chains_of_followers() -> None:
    """Each shares more with the one before it than with the first: nobody computes what somebody else computes."""
    sim = engine(budget=64)
    tails = [[*SHARED[: 160 * length], 5000 + length] for length in range(1, 6)]
    sim.arrive(*(request(f"r{number}", tail, 2) for number, tail in enumerate(tails)))
    sim.run()
    assert sim.counters["computed_prompt_tokens"] == 160 * 5 + 5


def test_equal_prompts_at_once() -> None:
    """Field case B4: ten equal prompts of whole blocks: one computes it, the nine others one token each."""
    sim = engine()
    sim.arrive(*(request(f"r{number}", SHARED[:320], 2) for number in range(10)))
    sim.run()
    assert sim.counters["computed_prompt_tokens"] == 320 + 9
    answers = [sim.answers[f"r{number}", 0] for number in range(10)]
    assert answers == answers[:1] * 10


def test_a_leader_of_the_default_scope_is_found_whoever_is_first_in_the_queue() -> None:
    """The one that shares nothing is not held back by the followers that wait before it."""
    sim = engine(budget=64)
    step = sim.arrive(
        request("leader", SHARED),
        *(request(f"f{number}", [*SHARED, number]) for number in range(40)),
        request("other", [8000] * 8, scope=DEFAULT),
    )
    step = sim.step()
    assert [set(sim.steps[0].seated), set(step.seated)] == [{("leader", 0)}, {("other", 0)}]
    sim.run()
    assert sim.counters["computed_prompt_tokens"] == 1536 + 40 + 8
