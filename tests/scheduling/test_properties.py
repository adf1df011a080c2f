"""Random traffic over small pools: each step is proven on the simulated store, everything ends, nothing is left."""

from __future__ import annotations

from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import given, settings
from simulated_engine import EOS, Key, SimulatedEngine, request

from pageinn.memory.manager import MemoryManager
from pageinn.memory.questions import PrefixCache
from pageinn.memory.scopes import DEFAULT, PUBLIC, Scope
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.scheduling.config import AdmissionMode, Preemption, SchedulerConfig
from pageinn.scheduling.plan import Abort, Arrive, Ending, Event, Request, Stop

MODES = st.sampled_from([PrefixCache.KEEP, PrefixCache.KEEP, PrefixCache.LIVE, PrefixCache.OFF])


class Traffic(NamedTuple):
    """One request: the steps to its arrival and to its abort, and after how many tokens it is stopped."""

    request: Request
    after: int
    abort_after: int | None
    stop_after: int | None


@st.composite
def traffic(draw: st.DrawFn) -> list[Traffic]:
    seen: list[list[int]] = [[1]]
    found = []
    for number in range(draw(st.integers(1, 14))):
        old = draw(st.sampled_from(seen))
        prompt = old[: draw(st.just(len(old)) | st.integers(0, len(old)))]
        prompt = prompt + draw(st.lists(st.integers(1, 2), min_size=not prompt, max_size=24))
        seen.append(prompt)
        one = request(
            f"r{number}",
            prompt,
            draw(st.integers(1, 20)),
            n=draw(st.sampled_from([1, 1, 2, 4])),
            scope=draw(st.sampled_from([DEFAULT, DEFAULT, DEFAULT, Scope("other"), PUBLIC])),
            ignore_eos=draw(st.booleans()),
        )
        rarely = st.none() | st.none() | st.integers(0, 12)
        found.append(Traffic(one, draw(st.integers(0, 3)), draw(rarely), draw(rarely)))
    return found


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    seats = draw(st.sampled_from([1, 2, 4, 8]))
    tokens = seats + draw(st.sampled_from([0, 1, 6, 60]))
    return SchedulerConfig(
        seats,
        tokens,
        max_model_len=200,
        max_overtakes=draw(st.sampled_from([0, 2, 16])),
        admission=draw(st.sampled_from(AdmissionMode)),
        preempt_by=draw(st.sampled_from(Preemption)),
    )


def some_token(history: list[int], key: Key) -> int:
    """Choices of one request often agree, and sometimes end."""
    mixed = sum(position * token for position, token in enumerate(history, 1)) + 5 * key[1] * (len(history) % 4 == 0)
    return EOS if mixed % 11 == 0 else 1 + mixed % 2


def drive(engine: SimulatedEngine, items: list[Traffic]) -> list[Request]:
    """Send everything at its time and run to the end; the requests that were taken in."""
    taken, events, aborts, at = [], {}, {}, 0
    for item in items:
        at += item.after
        if engine.scheduler.refusal(item.request) is None:
            taken.append(item.request)
            events.setdefault(at, []).append(Arrive(item.request))
            if item.abort_after is not None:
                aborts.setdefault(at + item.abort_after, []).append(Abort(item.request.request_id))
    stops = {item.request.request_id: item.stop_after for item in items}
    last = max([*events, *aborts], default=0)
    # One token a step would be this many; whatever is preempted, more than that is a request put off for ever.
    bound = sum(one.n * (len(one.prompt) // TOKEN_BYTES + one.max_tokens) for one in taken) + last + 2
    due: list[Event] = []
    while len(engine.steps) <= last or not engine.scheduler.idle:
        now = len(engine.steps)
        assert now <= bound, "evicted and requeued without end"
        step = engine.step([*due, *events.get(now, []), *aborts.get(now, [])])
        due = [
            Stop(outcome.request_id, outcome.choice)
            for outcome in step.outcomes
            if outcome.ending is None
            and len(engine.answers[outcome.request_id, outcome.choice]) == stops[outcome.request_id]
        ]
    return taken


@settings(max_examples=150, deadline=None)
@given(traffic(), configs(), st.sampled_from([4, 7, 20, 100]), st.sampled_from([2, 1, 4, 16]), MODES)
def test_everything_ends_and_nothing_is_left(
    items: list[Traffic], config: SchedulerConfig, num_blocks: int, block_size: int, mode: PrefixCache
) -> None:
    """Field cases A3, A8, D1, D2 and D3: each step is proven, all that were taken in end, and no block stays in use."""
    memory = MemoryManager(num_blocks, block_size, mode)
    engine = SimulatedEngine(memory, config, some_token)
    taken = drive(engine, items)
    engine.step()
    usage = memory.usage()
    assert usage.in_use == 0
    assert mode is PrefixCache.KEEP or usage.kept == 0
    _check_endings(engine, items, taken)
    _check_counters(engine, taken, mode)
    if config.admission is AdmissionMode.GUARANTEED:
        assert engine.scheduler.counters.preemptions == 0
    memory.reset()
    memory.check()
    assert memory.usage().free == num_blocks


def _check_endings(engine: SimulatedEngine, items: list[Traffic], taken: list[Request]) -> None:
    cut_short = {
        item.request.request_id for item in items if item.abort_after is not None or item.stop_after is not None
    }
    for one in taken:
        for index in range(one.n):
            key = (one.request_id, index)
            ending, answer = engine.endings.get(key), engine.answers.get(key, [])
            assert ending is not None or one.request_id in cut_short, "a choice never ended"
            assert len(answer) <= one.max_tokens
            if ending is Ending.LENGTH:
                assert len(answer) == one.max_tokens
            if ending is Ending.STOP:
                assert answer[-1] == EOS
            if ending is Ending.POOL:
                slots = engine.memory.pool.num_blocks * engine.memory.block_size
                assert len(one.prompt) // TOKEN_BYTES + len(answer) > slots, "it would have fitted, alone"


def _check_counters(engine: SimulatedEngine, taken: list[Request], mode: PrefixCache) -> None:
    """Field cases F1 and F2: each request counts once, and what is computed again is no hit."""
    counters = engine.scheduler.counters
    started = [one for one in taken if any(key[0] == one.request_id for key in engine.computed)]
    assert counters.queries == sum(len(one.prompt) // TOKEN_BYTES for one in started)
    assert counters.hits <= counters.queries
    assert mode is not PrefixCache.OFF or counters.hits == 0
    generated = sum(max(len(answer) - 1, 0) for answer in engine.answers.values())
    assert sum(engine.computed.values()) >= counters.computed_prompt_tokens + counters.recomputed_tokens
    assert sum(
        engine.computed.values()
    ) <= counters.computed_prompt_tokens + counters.recomputed_tokens + generated + sum(one.n for one in taken)


@settings(max_examples=40, deadline=None)
@given(traffic(), configs(), st.sampled_from([7, 20]), st.sampled_from([PrefixCache.KEEP, PrefixCache.LIVE]))
def test_answers_do_not_depend_on_the_cache(
    items: list[Traffic], config: SchedulerConfig, num_blocks: int, mode: PrefixCache
) -> None:
    """The same traffic in a pool that is large and shares nothing gives the same answers wherever both were let end."""
    tight = SimulatedEngine(MemoryManager(num_blocks, 4, mode), config, some_token)
    roomy = SimulatedEngine(MemoryManager(600, 4, PrefixCache.OFF), config, some_token)
    for engine in (tight, roomy):
        drive(engine, items)
    for key, ending in tight.endings.items():
        if ending is not Ending.POOL and key in roomy.endings:
            assert tight.answers[key] == roomy.answers[key]
