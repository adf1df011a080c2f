"""Who starts, who waits, who is put out, and that nobody starves."""

from __future__ import annotations

import pytest
from simulated_engine import SimulatedEngine, request

from pageinn.memory.manager import MemoryManager
from pageinn.memory.questions import PrefixCache
from pageinn.scheduling.config import AdmissionMode, ConfigError, SchedulerConfig
from pageinn.scheduling.plan import Abort, Arrive, Ending


def engine(num_blocks: int, block_size: int = 4, **limits: int) -> SimulatedEngine:
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 1000, **limits}
    config = SchedulerConfig(**settings, admission=AdmissionMode.OPTIMISTIC)
    return SimulatedEngine(MemoryManager(num_blocks, block_size), config)


def test_what_can_never_fit_is_refused_at_once() -> None:
    """Field case D1: a request larger than the pool is refused with a clear reason, a small one after it is served."""
    sim = engine(10)
    reason = sim.scheduler.refusal(request("big", [1] * 41))
    assert reason is not None
    assert "41 token slots" in reason
    assert "the cache has 40" in reason
    with pytest.raises(ValueError, match="41 token slots"):
        sim.step([Arrive(request("big", [1] * 41))])
    sim.arrive(request("small", [1] * 8))
    sim.run()
    assert sim.endings["small", 0] is Ending.LENGTH


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "ignore_eos", "reason"),
    [
        (0, 1, False, "empty"),
        (1000, 1, False, "no room to answer"),
        (900, 101, False, "max_tokens 101"),
        (30, 12, True, "41 token slots"),
        (30, 11, True, None),
        (30, 500, False, None),
        (40, 1, False, None),
    ],
)
def test_reasons_to_refuse(prompt: int, max_tokens: int, ignore_eos: bool, reason: str | None) -> None:
    answer = engine(10).scheduler.refusal(request("r", [1] * prompt, max_tokens, ignore_eos=ignore_eos))
    assert answer is reason is None or (answer is not None and reason is not None and reason in answer)


def test_the_largest_that_fits_is_served() -> None:
    sim = engine(10)
    sim.arrive(request("r", [1] * 30, 11, ignore_eos=True))
    sim.run()
    assert sim.endings["r", 0] is Ending.LENGTH


def test_the_last_running_request_outgrows_the_pool() -> None:
    """Field case D2: it ends, alone, with an ending of its own; the next one is served."""
    sim = engine(10)
    sim.arrive(request("r", [1] * 30, 500))
    sim.run()
    assert sim.endings["r", 0] is Ending.POOL
    assert len(sim.answers["r", 0]) == 11
    sim.arrive(request("next", [2] * 30, 5))
    sim.run()
    assert sim.endings["next", 0] is Ending.LENGTH


@pytest.mark.parametrize("admission", list(AdmissionMode))
@pytest.mark.parametrize("mode", list(PrefixCache))
def test_demand_far_above_the_pool(mode: PrefixCache, admission: AdmissionMode) -> None:
    """Field case D3: 60 requests in a pool for two or three; no more steps than one token after another would take."""
    memory = MemoryManager(24, 4, mode)
    sim = SimulatedEngine(memory, SchedulerConfig(8, 64, 1000, admission=admission))
    sim.arrive(*(request(f"r{number}", [number + 1] * 20, 20, ignore_eos=True) for number in range(60)))
    steps = sim.run(limit=60 * 40)
    assert all(len(sim.answers[f"r{number}", 0]) == 20 for number in range(60))
    assert steps <= 60 * 20 / 2 + 120, "at least two at a time, on the average, and a step each to start"
    # Each choice is put out a few times at most: what is recomputed stays within what was asked for.
    assert sim.counters["recomputed_tokens"] <= 60 * 40
    assert sim.counters["preemptions"] <= (2 * 60 if admission is AdmissionMode.OPTIMISTIC else 0)


def test_the_cheaper_of_two_is_preempted_and_goes_back_to_its_place() -> None:
    """Two that grow until one block is missing: the later one yields, is not admitted back in vain, and ends right."""
    sim = engine(10)
    sim.arrive(request("old", [1] * 14, 12, ignore_eos=True))
    sim.arrive(request("new", [2] * 14, 12, ignore_eos=True))
    sim.arrive(request("newest", [3] * 5, 2))
    sim.run()
    assert sim.counters["preemptions"] == 1
    old_end = next(
        at for at, step in enumerate(sim.steps) if any(o.request_id == "old" and o.ending for o in step.outcomes)
    )
    new_end = next(
        at for at, step in enumerate(sim.steps) if any(o.request_id == "new" and o.ending for o in step.outcomes)
    )
    assert old_end < new_end
    assert sum(("new", 0) in step.seated for step in sim.steps) == 2


def test_a_blocked_head_is_overtaken_a_bounded_number_of_times() -> None:
    """Field case D4: small ones pass the large one that waits for memory, three times, and then nobody does."""
    sim = engine(20, max_overtakes=3)
    sim.arrive(request("running", [1] * 20, 40, ignore_eos=True))
    sim.arrive(request("large", [2] * 68, 4))
    for number in range(10):
        sim.arrive(request(f"small{number}", [10 + number] * 4, 2))
    order = [key[0] for step in sim.steps for key in step.seated]
    assert order == ["running", "small0", "small1", "small2"]
    sim.run()
    order = [key[0] for step in sim.steps for key in step.seated]
    assert order[:5] == ["running", "small0", "small1", "small2", "large"]
    assert order[5:] == [f"small{number}" for number in range(3, 10)]


def test_a_running_decode_has_work_in_every_step() -> None:
    """A prefill of 900 tokens in chunks: each step also has the seven decodes (the engine asserts it of every step)."""
    sim = engine(1000, 4, max_num_batched_tokens=16)
    sim.arrive(*(request(f"d{number}", [number + 1] * 2, 200, ignore_eos=True) for number in range(7)))
    sim.step()
    sim.arrive(request("long", [50] * 900, 4))
    while not sim.answers.get(("long", 0)):
        step = sim.step()
        assert {(f"d{number}", 0) for number in range(7)} <= set(step.computed)
        assert sum(step.computed.values()) == 16
    assert len(sim.steps) == 2 + 900 // 9


def test_a_long_prefill_leaves_a_quarter_to_those_behind_it() -> None:
    """Of 16 tokens the first gets 12 while the second has something to compute, and all when it is alone."""
    sim = engine(1000, 4, max_num_batched_tokens=16)
    sim.arrive(request("first", [1] * 64), request("second", [2] * 12, 20))
    computed = [sim.steps[0].computed, *(sim.step().computed for _ in range(4))]
    assert [step.get(("first", 0), 0) for step in computed] == [16, 12, 12, 12, 12]
    assert [step.get(("second", 0), 0) for step in computed] == [0, 4, 4, 4, 1]


def test_a_short_prompt_does_not_wait_for_two_long_ones() -> None:
    """Two long ones are under way; a third long one waits for them, a short one behind it does not."""
    sim = engine(1000, 4, max_num_batched_tokens=64)
    sim.arrive(request("a", [1] * 600), request("b", [2] * 600), request("c", [3] * 600), request("d", [4] * 7, 2))
    for _ in range(4):
        sim.step()
    assert ("d", 0) in sim.endings
    assert sim.computed["b", 0] > 0
    assert sim.computed["c", 0] == 0


def test_an_abort_frees_everything_at_the_next_step() -> None:
    """Whatever the state: prefilling, decoding, waiting, forked."""
    sim = engine(30, max_num_batched_tokens=16)
    sim.arrive(
        request("decoding", [1] * 4, 50),
        request("prefilling", [2] * 60),
        request("forked", [3] * 5, 50, n=3),
        request("waiting", [4] * 100),
    )
    for _ in range(6):
        sim.step()
    step = sim.step([Abort(name) for name in ("decoding", "prefilling", "forked", "waiting", "unknown")])
    assert not step.plan.work
    assert sim.scheduler.idle
    assert sim.memory.usage().in_use == 0


def test_a_seat_is_free_for_the_next_plan() -> None:
    sim = engine(100, max_num_seqs=1)
    sim.arrive(request("a", [1], 2), request("b", [2], 2))
    sim.run()
    assert [list(step.seated) for step in sim.steps[:3]] == [[("a", 0)], [], [("b", 0)]]
    assert sim.steps[2].plan.vacated == [0]


def test_an_id_in_use_is_refused() -> None:
    sim = engine(100)
    sim.arrive(request("a", [1], 5))
    with pytest.raises(ValueError, match="in use"):
        sim.arrive(request("a", [1], 5))


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"max_num_seqs": 0}, "--max-num-seqs is 0"),
        ({"max_num_batched_tokens": 0}, "--max-num-batched-tokens is 0"),
        ({"max_model_len": -1}, "--max-model-len is -1"),
        ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, "raise the one or lower the other"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, int], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        SchedulerConfig(**settings)
