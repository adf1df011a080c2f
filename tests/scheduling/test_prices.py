"""What preemption costs, who is chosen for it, and what an operator is told of it."""

from __future__ import annotations

import random

import pytest
from simulated_engine import SimulatedEngine, request

from pageinn.memory.manager import MemoryManager
from pageinn.memory.scopes import DEFAULT
from pageinn.memory.tokens import pack
from pageinn.scheduling.choice import Choice
from pageinn.scheduling.config import AdmissionMode, Preemption, SchedulerConfig
from pageinn.scheduling.cost import Measured, Rates
from pageinn.scheduling.plan import Preempted
from pageinn.scheduling.thrash import Thrash
from pageinn.scheduling.victim import cheapest
from pageinn.scheduling.watermark import Watermark

CONFIG = SchedulerConfig(8, 64, 1000, admission=AdmissionMode.OPTIMISTIC)


def test_rates_are_found_from_steps() -> None:
    """Steps that take 1 ms a token and 1 µs a pair, with a tenth of noise; then the machine is twice as fast."""
    chance = random.Random(1)
    rates = Rates()
    for speed in (1, 2):
        for _ in range(400):
            tokens, start = chance.randrange(32, 512), chance.randrange(0, 4000)
            pairs = tokens * start + tokens * (tokens + 1) // 2
            seconds = (1e-3 * tokens + 1e-6 * pairs) / speed * chance.uniform(0.9, 1.1)
            rates.learn(Measured(tokens, pairs, seconds))
        exact = (1e-3 * 1000 + 1e-6 * sum(range(2001, 3001))) / speed
        assert rates.recompute(2000, 3000) == pytest.approx(exact, rel=0.05)


def test_steps_all_alike_still_scale_the_rate() -> None:
    """One kind of step only: a line cannot be told from it, but how long such a step takes can."""
    rates = Rates()
    for _ in range(50):
        rates.learn(Measured(64, 64 * 65 // 2, 0.5))
    assert rates.recompute(0, 64) == pytest.approx(0.5, rel=0.01)


def test_copies_are_measured_each_way() -> None:
    rates = Rates()
    for _ in range(60):
        rates.learn(Measured(blocks_out=10, out_seconds=0.01, blocks_in=5, in_seconds=0.02))
    assert rates.swap(100) == pytest.approx(100 * (0.001 + 0.004), rel=0.01)


def test_measurements_that_say_nothing_change_nothing() -> None:
    rates, untouched = Rates(), Rates()
    for measured in (Measured(), Measured(1, 4000, 0.05), Measured(64, 2080, 0.0)):
        rates.learn(measured)
    assert vars(rates) == vars(untouched)


def running(memory: MemoryManager, name: str, tokens: list[int]) -> Choice:
    choice = Choice(request(name, tokens), 0, 0)
    choice.sequence = memory.admit(DEFAULT, pack(tokens))
    memory.mark_stored(choice.sequence, len(tokens))
    return choice


def test_of_equal_prices_the_last_is_taken_and_who_frees_nothing_never() -> None:
    """Three of 8 tokens, one of 16, and two that hold the same two blocks, so that neither frees one."""
    memory = MemoryManager(30, 4)
    alike = [running(memory, name, [n] * 8) for n, name in enumerate("abc", 1)]
    longer = running(memory, "d", [4] * 16)
    both = [running(memory, name, [5] * 8) for name in "ef"]
    rates = Rates(per_token=1e-3, per_pair=1e-4)
    price = cheapest(memory, rates, [*alike, longer, *both], Preemption.AUTO)
    assert price.choice is alike[-1]
    assert (price.blocks, price.way) == (2, Preemption.RECOMPUTE)
    assert price.recompute_seconds == pytest.approx(8e-3 + 36e-4)
    assert cheapest(memory, rates, [both[0], longer], Preemption.AUTO).choice is longer
    assert cheapest(memory, rates, both, Preemption.AUTO).choice is both[-1], "for want of anybody who frees a block"
    with pytest.raises(ValueError, match="nobody"):
        cheapest(memory, rates, [], Preemption.AUTO)


def preempted(sim: SimulatedEngine) -> Preempted:
    while True:
        step = sim.step()
        if step.plan.preempted:
            return step.plan.preempted[0]
        assert len(sim.steps) < 500


def test_the_victim_costs_least_for_each_block_and_is_not_the_oldest() -> None:
    """Three of 10, 40 and 20 tokens: attention to what is before makes the longer ones dearer for each block.

    The oldest would be cheapest; the last one is.
    """
    sim = SimulatedEngine(MemoryManager(26, 4), CONFIG)
    sim.scheduler.rates = Rates(per_token=1e-3, per_pair=1e-4)
    sim.arrive(*(request(name, [n] * n, 60, ignore_eos=True) for name, n in (("a", 10), ("b", 40), ("c", 20))))
    one = preempted(sim)
    assert one.request_id == "c"
    assert one.way is Preemption.RECOMPUTE
    tokens = one.blocks * 4
    assert one.recompute_seconds == pytest.approx(1e-3 * tokens + 1e-4 * tokens * (tokens + 1) / 2, rel=0.2)
    sim.run()
    assert all(len(sim.answers[name, 0]) == 60 for name in "abc")


def test_what_is_shared_is_not_counted_as_freed() -> None:
    """Two that share 40 tokens and one alone: preempting a sharer frees only what is its own."""
    sim = SimulatedEngine(MemoryManager(30, 4), CONFIG)
    sim.scheduler.rates = Rates(per_token=1e-3, per_pair=0.0)
    shared = list(range(500, 540))
    sim.arrive(request("old", [1] * 10, 60, ignore_eos=True))
    sim.arrive(*(request(f"s{n}", [*shared, n], 60, ignore_eos=True) for n in (1, 2)))
    one = preempted(sim)
    sequence_blocks = -(-(41 + len(sim.answers[one.request_id, 0])) // 4)
    assert one.blocks <= sequence_blocks - 10


@pytest.mark.parametrize(("out_block", "way"), [(1e-6, Preemption.SWAP), (10.0, Preemption.RECOMPUTE)])
def test_the_cheaper_way_is_taken(out_block: float, way: Preemption) -> None:
    sim = SimulatedEngine(MemoryManager(12, 4, host_blocks=12), CONFIG)
    sim.scheduler.rates = Rates(out_block=out_block, in_block=1e-6)
    sim.arrive(request("a", [1] * 20, 20), request("b", [2] * 20, 20))
    one = preempted(sim)
    assert one.way is way
    assert (one.swap_seconds < one.recompute_seconds) is (way is Preemption.SWAP)
    sim.run()
    assert sim.counters["swaps"] == (sim.counters["preemptions"] if way is Preemption.SWAP else 0)


def test_thrashing_is_memory_high_queue_growing_and_preemptions_rising() -> None:
    """All three for 15 seconds; it ends when preemptions do. Full memory and a queue alone are health."""
    healthy, sick = Thrash(), Thrash()
    preemptions = 0
    for second in range(40):
        preemptions += second
        healthy.look(float(second), 0.97, second, 0)
        sick.look(float(second), 0.97, second, preemptions)
        assert not healthy.now
        assert sick.now is (second >= 15)
    for second in range(40, 60):
        sick.look(float(second), 0.97, 40, preemptions)
    assert not sick.now


@pytest.mark.parametrize("fault", ["memory", "queue", "preemptions"])
def test_two_of_three_are_not_enough(fault: str) -> None:
    thrash = Thrash()
    for second in range(100):
        share = 0.5 if fault == "memory" and second % 5 == 0 else 0.97
        waiting = 7 if fault == "queue" else second
        thrash.look(float(second), share, waiting, second * 3 if fault == "preemptions" else second * second)
        assert not thrash.now


def test_the_watermark_by_hand() -> None:
    """Choices that end with 10 blocks, all alike: ten fit in a pool of 100; of 5 and 15, by turns, fewer."""
    watermark = Watermark()
    assert watermark.of(100) is None
    for _ in range(16):
        watermark.ended(10)
    assert watermark.of(100) == 10
    for _ in range(200):
        watermark.ended(5)
        watermark.ended(15)
    # n * 10 + 2 * 5 * sqrt(n) = 100 for n = 7.3.
    assert watermark.of(100) == 7
    watermark.preempted(6)
    assert watermark.of(100) == 5


def test_below_the_watermark_nothing_is_preempted() -> None:
    """Measured on one run, and held to in the next: with as many seats as it says, memory does not run out."""
    jobs = [request(f"r{n}", [n + 1] * 20, 5 + 7 * (n % 8), ignore_eos=True) for n in range(120)]
    loose = SimulatedEngine(MemoryManager(60, 4), SchedulerConfig(32, 128, 1000, admission=AdmissionMode.OPTIMISTIC))
    loose.arrive(*jobs)
    loose.run(5000)
    advice = loose.scheduler.watermark
    assert advice is not None
    assert loose.counters["preemptions"] > 0
    held = SimulatedEngine(MemoryManager(60, 4), SchedulerConfig(advice, 128, 1000, admission=AdmissionMode.OPTIMISTIC))
    held.arrive(*jobs)
    held.run(5000)
    assert held.counters["preemptions"] == 0
