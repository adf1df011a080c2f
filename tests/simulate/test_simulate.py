"""The simulation against figures worked out by hand: the clock, the roofline, what is shared."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pageinn.memory.manager import MemoryManager
from pageinn.memory.tokens import pack, unpack
from pageinn.scheduling.config import SchedulerConfig
from pageinn.scheduling.plan import Ending, Plan, Work
from pageinn.scheduling.scheduler import Scheduler
from pageinn.simulate.jobs import TokenRangeError, generated, job, prompt_of_blocks
from pageinn.simulate.machine import Load, Machine, load_of
from pageinn.simulate.run import Step, simulate

#: One second a token of arithmetic, nothing else costs anything.
PLAIN = Machine(
    flops=1.0,
    bandwidth=1.0,
    link=1.0,
    overhead=0.0,
    linear_flops=1.0,
    pair_flops=0.0,
    weight_bytes=0.0,
    token_bytes=0.0,
)


def scheduler(num_blocks: int = 100, tokens: int = 8) -> Scheduler:
    return Scheduler(SchedulerConfig(4, tokens, 1000), MemoryManager(num_blocks, 4))


def test_one_request_takes_its_tokens_one_after_the_other() -> None:
    """20 prompt tokens in chunks of 8, 8 and 4: the first answer after 20 s, two more after a second each."""
    result = simulate([job(0, 5.0, pack(range(20)), output=3, max_tokens=10)], scheduler(), PLAIN)
    (served,) = result.served
    assert (served.arrival, served.first, served.end, served.output) == (5.0, 25.0, 27.0, 3)
    assert served.ending is Ending.STOP
    assert served.seconds_per_token == 1.0
    assert result.steps == 5
    # 5 blocks of 100 for 20 s, then 6 for 2 s: the clock starts at 0, so 27 s in all.
    assert result.active_share == pytest.approx((5 * 20 + 6 * 2) / 100 / 27)


def test_an_answer_ends_at_its_limit_or_by_itself() -> None:
    jobs = [job(0, 0.0, pack([1, 2]), output=9, max_tokens=4), job(1, 0.0, pack([3, 4]), output=2, max_tokens=4)]
    endings = {served.output: served.ending for served in simulate(jobs, scheduler(), PLAIN).served}
    assert endings == {4: Ending.LENGTH, 2: Ending.STOP}


def test_a_kept_prompt_is_not_computed_again() -> None:
    """The second of two equal prompts of 16 tokens computes its last one only."""
    prompt = prompt_of_blocks([0, 1], 8, 16)
    result = simulate([job(0, 0.0, prompt, 1, 5), job(1, 100.0, prompt, 1, 5)], scheduler(), PLAIN)
    assert [served.cached for served in result.served] == [0, 15]
    assert [served.end - served.arrival for served in result.served if served.end] == [16.0, 1.0]


def test_a_request_that_can_never_fit_is_refused() -> None:
    result = simulate([job(0, 0.0, pack(range(500)), 1, 5)], scheduler(num_blocks=3), PLAIN)
    assert (result.refused, result.served) == (1, [])


def test_a_load_is_what_the_work_attends_to() -> None:
    """Two rows at 4 and 5 see 5 + 6 keys; one row at 9 sees 10."""
    work = [Work(0, 4, pack([7, 7]), 4, True), Work(1, 9, pack([7]), 9, True)]
    plan = Plan([], [], [], [], work, [])
    assert load_of(plan) == Load(tokens=3, pairs=21, keys=16)


def test_a_step_takes_the_longer_of_arithmetic_and_reads() -> None:
    machine = Machine(
        flops=100.0,
        bandwidth=10.0,
        link=4.0,
        overhead=0.5,
        linear_flops=50.0,
        pair_flops=2.0,
        weight_bytes=20.0,
        token_bytes=1.0,
    )
    # (8 * 50 + 100 * 2) / 100 = 6 s against (20 + 10) / 10 = 3 s.
    assert machine.seconds(Load(8, 100, 10)) == 6.5
    # 0.52 s against (20 + 80) / 10 = 10 s; three blocks of 2 tokens over the link take 1.5 s more.
    assert machine.seconds(Load(1, 1, 80), moved_blocks=3, block_size=2) == 12.0


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6), st.integers(1, 5))
def test_prompts_share_tokens_exactly_where_they_share_blocks(a: list[int], b: list[int], size: int) -> None:
    first, second = (unpack(prompt_of_blocks(ids, size, len(ids) * size)) for ids in (a, b))
    same = [x == y for x, y in zip(a, b, strict=False)]
    assert [x == y for x, y in zip(first, second, strict=False)] == [one for one in same for _ in range(size)]


def test_prompts_and_answers_never_share_a_token() -> None:
    largest = max(unpack(prompt_of_blocks([(7 << 29) // 512 - 1], 512, 512)))
    assert largest < min(generated(number, position) for number in range(100) for position in range(100))
    with pytest.raises(TokenRangeError, match="beyond 32-bit"):
        prompt_of_blocks([(7 << 29) // 512], 512, 512)


def test_steps_are_seen_as_they_are() -> None:
    seen: list[Step] = []
    simulate([job(0, 0.0, pack(range(20)), 2, 5)], scheduler(), PLAIN, seen.append)
    assert [step.began for step in seen] == [0.0, 8.0, 16.0, 20.0]
    assert [(step.in_use, step.running) for step in seen] == [(5, 1), (5, 1), (5, 1), (6, 1)]
