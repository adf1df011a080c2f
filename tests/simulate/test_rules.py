"""Other systems' rules of reuse, and a router's, against cases worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pageinn.memory.manager import MemoryManager
from pageinn.memory.scopes import DEFAULT, Scope
from pageinn.memory.tokens import pack
from pageinn.scheduling.config import SchedulerConfig
from pageinn.scheduling.measuring import Copied
from pageinn.scheduling.plan import Plan
from pageinn.scheduling.scheduler import Scheduler
from pageinn.simulate.granularity import WholeBlocks
from pageinn.simulate.jobs import Job, job
from pageinn.simulate.machine import Took
from pageinn.simulate.routing import Routing, route
from pageinn.simulate.rules import Breakpoints, Rule, Slots, Steps, reuse
from pageinn.simulate.run import simulate


def turn(number: int, prompt: Sequence[int], time: float = 0.0, scope: Scope = DEFAULT, answer: bytes = b"") -> Job:
    return job(number, time, pack(prompt), 1, 1, scope, answer, session="")


def cached(rule: Rule, jobs: list[Job]) -> list[int]:
    return [rule.cached(one) for one in jobs]


def test_openai_reuses_from_1024_tokens_on_in_steps_of_128() -> None:
    """1,500 known tokens: 1,024 + 3 x 128 = 1,408 of them; 1,023 are too few; a minute apart is not five."""
    known = list(range(1500))
    jobs = [
        turn(0, known),
        turn(1, [*known, 9], 60.0),
        turn(2, [*known[:1151], 9, 9], 61.0),
        turn(3, known[:1023], 62.0),
    ]
    assert cached(Steps(), jobs) == [0, 1408, 1024, 0]


def test_openai_forgets_after_idle_time_and_keeps_organisations_apart() -> None:
    known = list(range(1024))
    jobs = [turn(0, known), turn(1, known, 299.0), turn(2, known, 599.0 + 1), turn(3, known, 601.0, Scope("other"))]
    assert cached(Steps(), jobs) == [0, 1024, 0, 0]


def test_anthropic_reads_what_an_earlier_prompt_wrote_up_to_its_end() -> None:
    """Each turn reads the prompt before it whole; one that parts inside it reads nothing."""
    first = list(range(1100))
    second = [*first, *range(5000, 5100)]
    parted = [*first[:1090], 7, *range(200)]
    jobs = [turn(0, first), turn(1, second, 10.0), turn(2, [*second, 1], 20.0), turn(3, parted, 30.0)]
    assert cached(Breakpoints(), jobs) == [0, 1100, 1200, 0]


def test_anthropic_reads_up_to_the_breakpoints_of_the_bodies() -> None:
    """A breakpoint behind the system prompt is read by other questions; a request that sets none reads nothing."""
    system = list(range(1200))
    first, second, third = (turn(n, [*system, *range(3000 + n, 3100 + n)], float(n)) for n in range(3))
    jobs = [first._replace(breakpoints=(1200, 1300)), second._replace(breakpoints=(1200,)), third]
    jobs[2] = third._replace(breakpoints=())
    assert cached(Breakpoints(), jobs) == [0, 1200, 0]
    below = [one._replace(breakpoints=(1023,)) for one in jobs]
    assert cached(Breakpoints(), below) == [0, 0, 0]


def test_anthropic_writes_nothing_below_1024_tokens_and_renews_on_use() -> None:
    short, long = list(range(1000)), list(range(1024))
    assert cached(Breakpoints(), [turn(0, short), turn(1, short)]) == [0, 0]
    late = [turn(0, long), turn(1, long, 200.0), turn(2, long, 450.0), turn(3, long, 751.0)]
    assert cached(Breakpoints(), late) == [0, 1024, 1024, 0]


def test_a_slot_holds_one_conversation_with_its_answer() -> None:
    """Two slots: the third conversation takes the older slot, whose own next turn then finds nothing."""
    a, b, c = ([base + i for i in range(20)] for base in (0, 100, 200))
    jobs = [turn(0, a, answer=pack([1])), turn(1, b), turn(2, [*a, 1, 2]), turn(3, c), turn(4, [*b, 3])]
    assert cached(Slots(2), jobs) == [0, 0, 21, 0, 0]


def test_a_slot_computes_at_least_the_last_token() -> None:
    prompt = list(range(10))
    assert cached(Slots(1), [turn(0, prompt), turn(1, prompt)]) == [0, 9]


def test_reuse_adds_up() -> None:
    known = list(range(1024))
    found = reuse([turn(0, known), turn(1, known)], Steps())
    assert found == (2048, 1024)
    assert found.hit_rate == 0.5
    assert reuse([], Steps()).hit_rate is None


class Instant:
    def took(self, plan: Plan) -> Took:
        return Took(1e-3 * len(plan.work), Copied())


@pytest.mark.parametrize(("manager", "expected"), [(MemoryManager, [0, 15, 9]), (WholeBlocks, [0, 12, 8])])
def test_whole_blocks_stop_at_a_block_and_before_the_last_token(
    manager: type[MemoryManager], expected: list[int]
) -> None:
    """Blocks of 4: a repeat of 16 tokens reuses 12, not 16 and not 15; a prompt that parts after 9 reuses 8."""
    prompt = list(range(16))
    jobs = [turn(0, prompt), turn(1, prompt, 10.0), turn(2, [*prompt[:9], 99, 98], 20.0)]
    scheduler = Scheduler(SchedulerConfig(4, 64, 100), manager(50, 4))
    assert [one.cached for one in simulate(jobs, scheduler, Instant()).served] == expected


def test_a_whole_block_manager_keeps_no_part_of_one() -> None:
    memory = WholeBlocks(50, 4)
    simulate([turn(0, list(range(18)))], Scheduler(SchedulerConfig(4, 64, 100), memory), Instant())
    memory.check()
    assert memory.usage().kept == 4


def numbers(routed: list[list[Job]]) -> list[list[int]]:
    return [[int(one.request.request_id) for one in part] for part in routed]


def test_round_robin_goes_in_turn() -> None:
    jobs = [turn(number, [number]) for number in range(5)]
    assert numbers(route(jobs, 2, Routing.ROUND_ROBIN)) == [[0, 2, 4], [1, 3]]


def test_a_session_stays_where_it_began() -> None:
    jobs = [turn(n, [n])._replace(session=name) for n, name in enumerate(["a", "b", "a", "", "b", "a"])]
    assert numbers(route(jobs, 2, Routing.SESSION)) == [[0, 2, 3, 5], [1, 4]]


def test_a_prompt_goes_where_half_of_it_went_before() -> None:
    """The third shares 128 of 192 tokens with the first; the fourth only 64 of 192 and goes where least was sent."""
    a, b = list(range(192)), list(range(1000, 1064))
    jobs = [turn(0, a), turn(1, b), turn(2, [*a[:128], *range(5000, 5064)]), turn(3, [*a[:64], *range(6000, 6128)])]
    assert numbers(route(jobs, 2, Routing.PREFIX)) == [[0, 2], [1, 3]]
