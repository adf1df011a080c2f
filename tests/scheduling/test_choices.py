"""Several choices of one request: they fork from the first."""

from __future__ import annotations

import pytest
from simulated_engine import SimulatedEngine, request

from pageinn.memory.manager import MemoryManager
from pageinn.memory.questions import PrefixCache
from pageinn.memory.tokens import unpack
from pageinn.scheduling.config import SchedulerConfig
from pageinn.scheduling.plan import Abort, Stop


def next_by_choice(history: list[int], key: tuple[str, int]) -> int:
    return 100 + (sum(history) + key[1]) % 50


def engine(num_blocks: int = 200, mode: PrefixCache = PrefixCache.KEEP, *, seats: int = 8) -> SimulatedEngine:
    return SimulatedEngine(MemoryManager(num_blocks, 16, mode), SchedulerConfig(seats, 64, 10_000), next_by_choice)


PROMPT = [token % 97 + 1 for token in range(150)]


@pytest.mark.parametrize("mode", [PrefixCache.KEEP, PrefixCache.LIVE])
def test_choices_fork_with_one_block_copy_each(mode: PrefixCache) -> None:
    """Field case A4: four choices share nine blocks, copy the tenth, and compute only the last token again."""
    sim = engine(mode=mode)
    sim.arrive(request("r", PROMPT, 20, n=4))
    for _ in range(2):
        sim.step()
    step = sim.step()
    assert list(step.seated) == [("r", 1), ("r", 2), ("r", 3)]
    assert len(step.plan.moves) == 3
    assert len({table[-1] for table in step.seated.values()}) == 3
    assert len({tuple(table[:9]) for table in step.seated.values()}) == 1
    assert [(work.start, work.write_from) for work in step.plan.work[1:]] == [(149, 150)] * 3
    sim.run()
    assert sum(len(step.plan.moves) for step in sim.steps) == 3
    assert sim.counters["computed_prompt_tokens"] == 150 + 3
    assert sim.counters["queries"] == 150
    assert len({tuple(sim.answers["r", index]) for index in range(4)}) == 4


def test_each_choice_equals_the_one_computed_without_sharing() -> None:
    """Field case A4: keeping and sharing off gives the same four answers."""
    answers = []
    for mode in (PrefixCache.KEEP, PrefixCache.OFF):
        sim = engine(mode=mode)
        sim.arrive(request("r", PROMPT, 20, n=4))
        sim.run()
        answers.append(sim.answers)
    assert answers[0] == answers[1]


def test_whole_blocks_need_no_copy() -> None:
    sim = engine()
    sim.arrive(request("r", PROMPT[:144], 20, n=4))
    sim.run()
    assert sum(len(step.plan.moves) for step in sim.steps) == 0
    assert sim.counters["computed_prompt_tokens"] == 144 + 3


def test_choices_of_a_follower_fork_too() -> None:
    """The first choice waits for another request's prefix; its siblings wait for it and compute no more."""
    sim = engine()
    sim.arrive(request("leader", [*PROMPT[:144], 500], 4), request("r", PROMPT, 20, n=4))
    sim.run()
    assert sim.counters["computed_prompt_tokens"] == 145 + 6 + 3
    assert sum(len(step.plan.moves) for step in sim.steps) == 3


def test_more_choices_than_seats() -> None:
    """Those that find no seat start later, from what is in the tree by then."""
    sim = engine(seats=3)
    sim.arrive(request("r", PROMPT, 20, n=10))
    sim.run()
    assert all(len(sim.answers["r", index]) == 20 for index in range(10))
    assert sim.counters["computed_prompt_tokens"] <= 150 + 9 * (150 - 144)


def test_the_first_choice_may_end_before_the_others_begin() -> None:
    for event in (Stop("r", 0), Abort("r")):
        sim = engine()
        sim.arrive(request("r", PROMPT, 5, n=3))
        sim.step([event])
        sim.run()
        expected = {("r", 1), ("r", 2)} if isinstance(event, Stop) else set()
        assert set(sim.endings) == expected


def test_a_choice_that_ends_early_leaves_the_others_their_blocks() -> None:
    """Field case A5: the parent of the forks is stopped; their contents stay (the simulated store proves each read)."""
    sim = engine(num_blocks=16)
    sim.arrive(request("r", PROMPT, 30, n=3))
    for _ in range(5):
        sim.step()
    sim.step([Stop("r", 0)])
    assert sim.scheduler.num_running == 2
    sim.arrive(request("other", [800] * 40, 3))
    sim.run()
    assert [len(sim.answers["r", index]) for index in (1, 2)] == [30, 30]


def test_a_fork_in_a_full_pool_waits_or_recomputes() -> None:
    """Field case D6, the scheduler's part: many choices in a tiny pool all end, by recomputing; none is aborted."""
    sim = engine(num_blocks=14, seats=8)
    sim.arrive(request("r", PROMPT, 40, n=50))
    sim.run(limit=5000)
    assert all(len(sim.answers["r", index]) == 40 for index in range(50))
    assert unpack(sim.requests["r"].prompt) == PROMPT
