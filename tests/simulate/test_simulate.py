"""The simulation against figures worked out by hand: the clock, the roofline, what is shared."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pageinn.catalogue.accelerators import find_accelerator
from pageinn.catalogue.compute import Roofline
from pageinn.catalogue.models import find_model
from pageinn.memory.manager import MemoryManager
from pageinn.memory.moves import Move, MoveKind
from pageinn.memory.tokens import pack, unpack
from pageinn.scheduling.config import SchedulerConfig
from pageinn.scheduling.measuring import Copied
from pageinn.scheduling.plan import Ending, Plan, Work
from pageinn.scheduling.scheduler import Scheduler
from pageinn.simulate.jobs import BlockTokens, TokenRangeError, generated, job
from pageinn.simulate.machine import Load, RooflineMachine, Took, load_of
from pageinn.simulate.run import Step, simulate


class OneSecondAToken:
    """Nothing else costs anything."""

    def took(self, plan: Plan) -> Took:
        return Took(float(sum(len(work.tokens) // 4 for work in plan.work)), Copied())


PLAIN = OneSecondAToken()


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
    prompt = BlockTokens().prompt([0, 1], 8, 16)
    result = simulate([job(0, 0.0, prompt, 1, 5), job(1, 100.0, prompt, 1, 5)], scheduler(), PLAIN)
    assert [served.cached for served in result.served] == [0, 15]
    assert [served.end - served.arrival for served in result.served if served.end] == [16.0, 1.0]


def test_a_request_that_can_never_fit_is_refused() -> None:
    result = simulate([job(0, 0.0, pack(range(500)), 1, 5)], scheduler(num_blocks=3), PLAIN)
    assert (result.refused, result.served) == (1, [])


def test_a_load_is_a_plans_work_sorted() -> None:
    work = [Work(0, 4, pack([7, 7]), 4, True), Work(1, 9, pack([7]), 9, True)]
    kinds = [MoveKind.COPY, MoveKind.LOAD, MoveKind.STORE, MoveKind.LOAD]
    moves = [Move(kind, 1, 2) for kind in kinds]
    assert load_of(Plan([], [], [], moves, work, [], [])) == Load(prefill=[(2, 4)], decode=[10], out=1, back=2)


def test_a_step_takes_the_longer_of_arithmetic_and_reads() -> None:
    """Llama 3.1 8B in bfloat16 on an H100: one decoding token reads all weights but the embeddings at 3.35 TB/s.

    They are 32 layers of 218,103,808, a head of 525,336,576 and 266,240 of norms; the token's own keys and values are
    131,072 bytes.
    """
    line = Roofline(find_model("Llama-3.1-8B"), find_accelerator("h100"), "bfloat16", "bfloat16")
    machine = RooflineMachine(line, 16, overhead=0.001)
    plan = Plan([], [], [], [], [Work(0, 0, pack([7]), 0, True)], [], [])
    read = 2 * (32 * 218_103_808 + 525_336_576 + 266_240) + 131_072
    assert machine.took(plan).total == pytest.approx(read / 3.35e12 + 0.001, rel=1e-6)
    assert machine.block_bytes == 16 * 131_072
    moved = plan._replace(moves=[Move(MoveKind.STORE, 0, 0)] * 3 + [Move(MoveKind.LOAD, 0, 0)])
    link = 16 * 131_072 / 64e9
    assert machine.took(moved).copied == pytest.approx((3, 3 * link, 1, link))


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6), st.integers(1, 5))
def test_prompts_share_tokens_exactly_where_they_share_blocks(a: list[int], b: list[int], size: int) -> None:
    blocks = BlockTokens()
    first, second = (unpack(blocks.prompt(ids, size, len(ids) * size)) for ids in (a, b))
    same = [x == y for x, y in zip(a, b, strict=False)]
    assert [x == y for x, y in zip(first, second, strict=False)] == [one for one in same for _ in range(size)]


def test_prompts_and_answers_never_share_a_token() -> None:
    blocks = BlockTokens()
    first, second = unpack(blocks.fresh(100)), unpack(blocks.prompt([0, 1], 50, 100))
    one = job(0, 0.0, b"", 1, 1)
    answers = {generated(number, one, position) for number in range(100) for position in range(100)}
    assert len(answers) == 100 * 100
    assert not {*first} & {*second}
    assert not {*first, *second} & answers


def test_more_distinct_tokens_than_ids_are_refused() -> None:
    with pytest.raises(TokenRangeError, match="simulate a part"):
        BlockTokens().prompt([0], (7 << 29) + 1, 1)


def test_an_answer_that_is_known_is_what_is_generated() -> None:
    """The second turn repeats the first one's answer, and computes only what follows it."""
    first, answer = [1, 2, 3, 4, 5, 6], [9, 8, 7, 6]
    second = [*first, *answer[:3], 30, 31]
    jobs = [job(0, 0.0, pack(first), 4, 9, answer=pack(answer)), job(1, 100.0, pack(second), 1, 9)]
    assert [served.cached for served in simulate(jobs, scheduler(), PLAIN).served] == [0, 9]


def test_steps_are_seen_as_they_are() -> None:
    seen: list[Step] = []
    simulate([job(0, 0.0, pack(range(20)), 2, 5)], scheduler(), PLAIN, seen.append)
    assert [step.began for step in seen] == [0.0, 8.0, 16.0, 20.0]
    assert [(step.in_use, step.running) for step in seen] == [(5, 1), (5, 1), (5, 1), (6, 1)]
