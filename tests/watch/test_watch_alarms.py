"""Alarms over made-up samples whose right answer is plain, and none over calm traffic of the real scheduler."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pageinn.memory.manager import MemoryManager
from pageinn.scheduling.config import SchedulerConfig
from pageinn.scheduling.measuring import Copied
from pageinn.scheduling.plan import Plan
from pageinn.scheduling.scheduler import Scheduler
from pageinn.simulate.jobs import BlockTokens, Job, job
from pageinn.simulate.machine import Took
from pageinn.simulate.run import Step, simulate
from pageinn.watch.alarms import alarms
from pageinn.watch.sample import Sample
from pageinn.watch.view import screen
from pageinn.watch.watcher import Watcher
from pageinn.watch.windows import Window, cut, last

TRACE = Path(__file__).parents[1] / "data" / "mooncake" / "conversation_200.jsonl"


def keys(samples: list[Sample]) -> set[str]:
    return {alarm.key for alarm in alarms(samples)}


def stream(seconds: float, each: Callable[[float], dict[str, float]], step: float = 5.0) -> list[Sample]:
    """Samples every step; each gives what the counters grow by in a second, and gauges as they are."""
    totals: dict[str, float] = {}
    gauges = {"usage", "kept", "running", "waiting", "thrashing", "hit_rate"}
    found = []
    for at in range(int(seconds / step) + 1):
        values = each(at * step)
        for name, value in values.items():
            totals[name] = value if name in gauges else totals.get(name, 0.0) + value * step
        found.append(Sample("vllm", at * step, **totals))  # type: ignore[arg-type]
    return found


def traffic(rate: float, **more: float) -> dict[str, float]:
    return {"queries": 4000.0, "hits": 4000.0 * rate, "requests": 4.0, "prompt_tokens": 4000.0, **more}


def test_a_drop_from_85_to_12_percent_is_raised_within_a_minute_and_once() -> None:
    """And stays until it is over. Field case F3: the rate is of a window, so that it moves when traffic does."""
    samples = stream(1800, lambda at: traffic(0.12 if 900 <= at < 1500 else 0.85))
    watcher = Watcher()
    raised, ended = [], []
    for sample in samples:
        change = watcher.add(sample)
        raised += [(sample.time, alarm) for alarm in change.raised]
        ended += [(sample.time, key) for key in change.ended]
    assert [(key, 900 < at <= 960) for at, (key, _) in raised] == [("hit_rate", True)]
    assert [(key, 1500 < at <= 1560) for at, key in ended] == [("hit_rate", True)]
    line = raised[0][1].line
    assert "85 % before" in line
    assert "pageinn explain" in line


def test_a_drop_of_the_engines_own_gauge_is_raised() -> None:
    """SGLang without counters of cached tokens."""

    def each(at: float) -> dict[str, float]:
        return {"hit_rate": 0.85 if at < 600 else 0.12, "prompt_tokens": 4000.0, "requests": 4.0}

    samples = [replace(sample, engine="sglang") for sample in stream(660, each)]
    assert keys(samples[:120]) == set()
    assert keys(samples) == {"hit_rate"}


def test_a_new_normal_is_accepted_after_an_hour() -> None:
    samples = stream(2 * 3600, lambda at: traffic(0.85 if at < 900 else 0.3), step=10)
    assert keys([sample for sample in samples if sample.time <= 3600]) == {"hit_rate"}
    assert keys(samples) == set()


def test_no_queries_are_no_rate_and_no_alarm() -> None:
    """Field case F7: an idle server has no hit rate, not one of 0."""
    samples = stream(900, lambda at: traffic(0.85) if at < 600 else {})
    assert last(samples, 60).hit_rate is None
    assert keys(samples) == set()
    assert "no queries" in screen(samples, {}, "u")


def test_a_restart_resets_counters_and_raises_nothing() -> None:
    before = stream(600, lambda at: traffic(0.85))
    after = [replace(sample, time=sample.time + 605) for sample in stream(600, lambda at: traffic(0.84))]
    assert keys(before + after) == set()
    window = Window([replace(before[0], queries=queries) for queries in (10.0, 3.0, 5.0)])
    assert window.change("queries") == 5


@pytest.mark.parametrize("seed", range(6))
def test_traffic_whose_rate_swings_by_itself_raises_nothing(seed: int) -> None:
    rng = random.Random(seed)
    swinging = [traffic(rng.choice([0.1, 0.5, 0.9])) for _ in range(1000)]
    samples = stream(3600, lambda at: swinging[int(at) // 10])
    watcher = Watcher()
    assert not [alarm for sample in samples for alarm in watcher.add(sample).raised]


@pytest.mark.parametrize(("per_minute", "raised"), [(0.0, set()), (0.2, set()), (6.0, {"preemptions"})])
def test_preemptions(per_minute: float, raised: set[str]) -> None:
    samples = stream(600, lambda at: traffic(0.5, preemptions=per_minute / 60, usage=0.7))
    assert keys(samples) == raised


def test_a_full_cache_that_preempts_half_of_what_it_answers_thrashes() -> None:
    assert "thrash" in keys(stream(600, lambda at: traffic(0.5, preemptions=3.0, usage=0.99)))
    assert "thrash" not in keys(stream(600, lambda at: traffic(0.5, preemptions=3.0, usage=0.5)))


def test_prefill_done_again_is_thrash_and_is_not_taken_for_a_hit() -> None:
    """Field case F1."""
    samples = stream(600, lambda at: traffic(0.0, computed=2000.0, recomputed=2000.0, usage=1.0))
    assert "thrash" in keys(samples)
    assert last(samples, 60).hit_rate == 0


def test_what_the_server_calls_thrashing() -> None:
    assert keys(stream(60, lambda at: traffic(0.5, thrashing=1.0))) == {"thrash"}


def test_short_prompts_are_below_granularity_and_not_a_broken_cache() -> None:
    """Field case F4, where the engine counts them and where only prompts' lengths are known."""
    counted = stream(300, lambda at: {**traffic(0.0), "below_granularity": 3.0})
    assert keys(counted) == {"below_granularity"}
    facts = {"block_size": "16"}
    lengths = stream(300, lambda at: {"prompt_tokens": 40.0, "requests": 4.0, "queries": 40.0, "hits": 0.0})
    assert keys([replace(sample, facts=facts) for sample in lengths]) == {"below_granularity"}
    long = stream(300, lambda at: {"prompt_tokens": 4000.0, "requests": 4.0})
    assert keys([replace(sample, facts=facts) for sample in long]) == set()


def test_refusals_are_named_by_reason() -> None:
    calm_ones = stream(300, traffic_of)
    samples = [replace(one, refused={"abort": at, "queue_full": 2 * at}) for at, one in enumerate(calm_ones)]
    (alarm,) = alarms(samples)
    assert alarm.key == "refusals"
    assert "(60 abort, 120 queue_full)" in alarm.line
    few = [replace(one, refused={"abort": 4.0 * (at > 3)}) for at, one in enumerate(stream(300, traffic_of))]
    assert keys(few) == set()


def traffic_of(_: float) -> dict[str, float]:
    return traffic(0.5)


def test_five_failed_tries_of_one_request_are_one_query() -> None:
    """Field case F2: what the engine counts once is once; a reset of nothing is no growth."""
    samples = [Sample("pageinn", at, queries=100.0, hits=0.0, requests=1.0) for at in range(5)]
    assert Window(samples).change("queries") == 0
    assert Window(samples).hit_rate is None


@given(st.lists(st.tuples(st.floats(0.5, 200), st.floats(0, 50)), min_size=1, max_size=60))
def test_windows_touch_and_are_long_enough(steps: list[tuple[float, float]]) -> None:
    time = requests = 0.0
    samples = [Sample("vllm", 0.0, requests=0.0)]
    for wait, more in steps:
        time, requests = time + wait, requests + more
        samples.append(Sample("vllm", time, requests=requests))
    windows = cut(samples)
    for window in windows:
        assert window.seconds >= 20
        assert window.seconds >= 600 or (window.change("requests") or 0) >= 20 - 1e-6
    for before, after in pairwise(windows):
        assert before.samples[-1] is after.samples[0]
    if windows:
        assert windows[-1].samples[-1] is samples[-1]


class Cheap:
    """A step of some seconds whatever it does, so that ten hours are few steps."""

    def took(self, plan: Plan) -> Took:
        return Took(0.05 + 1e-5 * sum(len(work.tokens) // 4 for work in plan.work), Copied())


def calm(hours: float, per_second: float, seed: int) -> Iterator[Job]:
    """Requests of the real trace, drawn again and again at random times, each with an end of its own."""
    rows = [json.loads(line) for line in TRACE.read_text().splitlines()]
    rng, tokens = random.Random(seed), BlockTokens()
    drawn = [rng.choice(rows) for _ in range(20)]
    now, number = 0.0, 0
    while now < 3600 * hours:
        now += rng.expovariate(per_second)
        drawn[rng.randrange(len(drawn))] = rng.choice(rows)
        row = rng.choice(drawn)
        ids, own = row["hash_ids"], rng.randrange(4)
        # What follows the last blocks that requests share is nobody else's.
        prompt = tokens.prompt(ids[: max(1, len(ids) - own)], 512, 10**9) + tokens.fresh(512 * own + 100)
        yield job(number, now, prompt, 1, 2)
        number += 1


def scraped(jobs: Iterable[Job], blocks: int, every: float) -> Iterator[Sample]:
    """The real scheduler under a virtual clock, looked at now and then."""
    memory = MemoryManager(blocks, 512)
    scheduler = Scheduler(SchedulerConfig(16, 65536, 200_000), memory)
    found: list[Sample] = []
    answered = [0]

    def observe(step: Step) -> None:
        if not found or step.began - found[-1].time >= every:
            counters = scheduler.counters
            found.append(
                Sample(
                    "pageinn",
                    step.began,
                    queries=float(counters.queries),
                    hits=float(counters.hits),
                    prompt_tokens=float(counters.queries),
                    computed=float(counters.computed_prompt_tokens),
                    recomputed=float(counters.recomputed_tokens),
                    preemptions=float(counters.preemptions),
                    below_granularity=float(counters.below_granularity),
                    requests=float(answered[0]),
                    usage=step.in_use / step.total,
                )
            )

    def counted() -> Iterator[Job]:
        for one in jobs:
            answered[0] += 1
            yield one

    simulate(counted(), scheduler, Cheap(), observe)
    yield from found


def test_ten_hours_of_calm_traffic_raise_nothing() -> None:
    samples = list(scraped(calm(10, 0.2, seed=1), blocks=400, every=15))
    assert samples[-1].time > 9.9 * 3600
    watcher, raised = Watcher(), []
    for sample in samples:
        raised += watcher.add(sample).raised
    rates = [window.hit_rate for window in cut(watcher.samples)]
    assert raised == []
    assert 0.3 < sum(rate or 0 for rate in rates) / len(rates) < 0.95
