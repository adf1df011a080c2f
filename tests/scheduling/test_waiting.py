"""Who waits: bounds, deadlines, turns of tenants, and what a long queue costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_engine import SimulatedEngine, request

from pageinn.memory.manager import MemoryManager
from pageinn.memory.retention import Retain
from pageinn.memory.scopes import DEFAULT, Scope
from pageinn.memory.shares import Share
from pageinn.scheduling.backlog import Backlog, Queued
from pageinn.scheduling.config import ConfigError, SchedulerConfig
from pageinn.scheduling.lengths import ENOUGH
from pageinn.scheduling.plan import Abort, Arrive, Ending, Outcome, Request, Weigh
from pageinn.scheduling.shares import Shares


def engine(num_blocks: int = 1000, **settings: object) -> SimulatedEngine:
    config = {"max_num_seqs": 1, "max_num_batched_tokens": 64, "max_model_len": 1000, **settings}
    return SimulatedEngine(MemoryManager(num_blocks, 4), SchedulerConfig(**config))


def endings(outcomes: list[Outcome]) -> list[tuple[str, int, Ending | None]]:
    return [(one.request_id, one.choice, one.ending) for one in outcomes if one.ending is not None]


def test_one_more_than_may_wait_is_refused() -> None:
    """Two may wait beside the one that runs; the fourth is told when to come back, and leaves nothing behind."""
    sim = engine(max_queued_requests=2)
    sim.arrive(request("a", [1] * 8, 20))
    sim.arrive(request("b", [2] * 8, 2), request("c", [3] * 8, 2, n=3))
    step = sim.arrive(request("d", [4] * 8, 2, n=2))
    assert endings(step.outcomes) == [("d", index, Ending.QUEUED_REQUESTS) for index in (0, 1)]
    # 16 tokens wait, and 8 have started in the last two seconds: another 8 in as many leave room for one.
    assert [one.retry_after for one in step.outcomes if one.ending] == [2, 2]
    assert sim.counters["refused_by_requests"] == 1
    sim.run()
    assert {key[0] for key, ending in sim.endings.items() if ending is Ending.LENGTH} == {"a", "b", "c"}
    sim.endings.clear()
    sim.cached.clear()
    sim.arrive(request("d", [4] * 8, 2))
    sim.run()
    assert sim.endings["d", 0] is Ending.LENGTH


def test_the_tokens_that_wait_are_bounded_but_an_empty_queue_takes_any() -> None:
    sim = engine(max_queued_tokens=100)
    sim.arrive(request("a", [1] * 8, 20))
    sim.arrive(request("large", [2] * 300, 2))
    step = sim.arrive(request("b", [3] * 8, 2))
    assert endings(step.outcomes) == [("b", 0, Ending.QUEUED_TOKENS)]
    assert sim.counters["refused_by_tokens"] == 1
    sim.run()
    assert sim.endings["large", 0] is Ending.LENGTH


def test_a_request_that_has_not_started_in_time_is_given_up() -> None:
    """The server's limit is 5 s, a request's own 2 or 50 s; a step is a second. What has started is never given up."""
    sim = engine(queue_timeout=5.0)
    sim.arrive(request("runs", [1] * 8, 30))
    own = [
        Request(name, request(name, [2] * 8).prompt, Scope("t"), 2, n=2, queue_timeout=seconds)
        for name, seconds in (("short", 2.0), ("server", None), ("long", 50.0))
    ]
    sim.arrive(*own)
    ended = {}
    for now in range(2, 10):
        for one in sim.step().outcomes:
            if one.ending is not None:
                ended[one.request_id, one.choice] = (now, one.ending)
    assert ended == {
        **{("short", index): (3, Ending.QUEUE_TIMEOUT) for index in (0, 1)},
        **{("server", index): (6, Ending.QUEUE_TIMEOUT) for index in (0, 1)},
    }
    assert sim.counters["expired"] == 2
    sim.run()
    assert sim.endings["long", 1] is Ending.LENGTH


def test_those_that_are_given_up_together_are_not_in_each_others_way() -> None:
    """Ten wait 20 seconds behind one that runs; nobody is left, so that all may come back at once."""
    sim = engine(queue_timeout=20.0)
    sim.arrive(request("runs", [1] * 8, 40))
    sim.arrive(*(request(str(number), [2] * 80, 2) for number in range(10)))
    told = []
    for _ in range(22):
        told += [one.retry_after for one in sim.step().outcomes if one.ending is Ending.QUEUE_TIMEOUT]
    assert told == [1] * 10


def test_a_preempted_choice_has_no_deadline() -> None:
    sim = SimulatedEngine(MemoryManager(10, 4), SchedulerConfig(8, 64, 1000, queue_timeout=3.0, admission="optimistic"))
    sim.arrive(request("old", [1] * 14, 12, ignore_eos=True), request("new", [2] * 14, 12, ignore_eos=True))
    sim.run()
    assert sim.counters["preemptions"] == 1
    assert set(sim.endings.values()) == {Ending.LENGTH}


def test_an_id_may_come_again_before_its_old_deadline() -> None:
    sim = engine(queue_timeout=5.0)
    sim.arrive(request("a", [1] * 8, 100))
    sim.arrive(request("b", [2] * 8))
    sim.step([Abort("b")])
    sim.step([Arrive(request("b", [2] * 8))])
    for _ in range(3):
        assert not endings(sim.step().outcomes)


def test_tenants_take_turns_whatever_each_has_queued() -> None:
    """One tenant has 50 requests before the other's 5 come: from then on they start in turns."""
    sim = engine()
    flood = Scope("flood")
    sim.arrive(*(request(f"f{number}", [number + 1] * 8, 2, scope=flood) for number in range(50)))
    sim.step()
    sim.arrive(*(request(f"q{number}", [900 + number] * 8, 2, scope=Scope("quiet")) for number in range(5)))
    sim.run()
    starts = [key[0] for step in sim.steps for key in step.seated]
    after = starts[1:]
    assert [name[0] for name in after[:10]].count("q") == 5
    assert [name for name in starts if name[0] == "f"] == [f"f{number}" for number in range(50)]


def test_shares_follow_the_weights() -> None:
    """A tenant of weight 3 gets three starts for each of the other's."""
    sim = engine()
    for tenant in ("heavy", "light"):
        scope = Scope(tenant)
        sim.arrive(*(request(f"{tenant}{number}", [number + 1] * 8, 2, scope=scope) for number in range(40)))
    sim.step([Weigh({"heavy": 3.0})])
    sim.run()
    starts = [key[0][0] for step in sim.steps for key in step.seated]
    assert 28 <= starts[2:42].count("h") <= 32


def test_who_was_away_saves_nothing_up() -> None:
    """The paper's lift: a newcomer starts from the counter of who is being served, not from zero."""
    shares = Shares()
    shares.enter("old")
    shares.charge("old", 1000)
    shares.turn("old")
    shares.enter("new")
    assert shares.served("new") == shares.served("old") == 1000
    shares.charge("new", 500)
    shares.leave("new")
    shares.enter("new")
    assert shares.served("new") == 1500, "nor does it lose what it owes by leaving"
    with pytest.raises(ValueError, match="above 0"):
        shares.weigh({"old": 0.0})


def test_counters_of_absent_tenants_are_bounded() -> None:
    shares = Shares()
    for number in range(20_000):
        name = f"t{number}"
        shares.enter(name)
        shares.charge(name, 1)
        shares.turn(name)
        shares.leave(name)
    assert len(shares._served) <= 4097


def test_one_tenants_blocked_requests_do_not_hide_anothers() -> None:
    """Twenty that are too large for now are at the front of one tenant's queue; the other tenant's small one starts."""
    sim = engine(num_blocks=40, max_num_seqs=8)
    sim.arrive(request("runs", [1] * 60, 60, scope=Scope("a"), ignore_eos=True))
    sim.arrive(*(request(f"large{number}", [2 + number] * 120, 4, scope=Scope("a")) for number in range(20)))
    step = sim.arrive(request("small", [99] * 4, 2, scope=Scope("b")))
    assert list(step.seated) == [("small", 0)]


def test_a_tenant_at_its_maximum_holds_up_nobody_else() -> None:
    """It runs what its tenth of the pool admits, and 20 more of its requests wait; others start all the while."""
    sim = engine(num_blocks=400, max_num_seqs=4)
    sim.memory.configure_shares({"a": Share(maximum=0.1)})
    sim.arrive(request("runs", [1] * 60, 90, scope=Scope("a"), ignore_eos=True))
    sim.arrive(*(request(f"a{number}", [2 + number] * 120, 4, scope=Scope("a")) for number in range(20)))
    sim.arrive(*(request(f"b{number}", [50 + number] * 8, 2, scope=Scope("b")) for number in range(40)))
    for _ in range(70):
        sim.step()
    assert ("runs", 0) not in sim.endings
    assert {name for name, _ in sim.endings} == {f"b{number}" for number in range(40)}
    sim.run()
    starts = [name for step in sim.steps for name, _ in step.seated if name[0] == "a"]
    assert starts == [f"a{number}" for number in range(20)]


def test_an_abort_beside_its_refusal_leaves_nothing_to_say() -> None:
    """A client that went away before the step in which its request would have been turned away."""
    sim = engine(max_queued_requests=1)
    sim.arrive(request("a", [1] * 8, 20))
    sim.arrive(request("b", [2] * 8, 2))
    step = sim.step([Arrive(request("c", [3] * 8)), Abort("c"), Arrive(request("d", [4] * 8))])
    assert endings(step.outcomes) == [("d", 0, Ending.QUEUED_REQUESTS)]


def test_what_waits_to_be_forgotten_is_bounded() -> None:
    """The rate of starts is that of the last minute, whether anybody asks for it or not."""
    backlog = Backlog(SchedulerConfig(queue_timeout=1e6))
    for second in range(10_000):
        backlog.add(request(str(second), [1] * 8), float(second))
        backlog.start(str(second), float(second))
    assert len(backlog._starts) <= 60
    assert len(backlog._deadlines) <= 100
    assert backlog.retry_after(request("late", [1] * 8), Ending.QUEUE_TIMEOUT, 10_000.0) == 1


def backlog_at_ten_a_second(**settings: object) -> Backlog:
    """At time 10: ten requests of 100 tokens wait, and 100 tokens have started in the last ten seconds."""
    backlog = Backlog(SchedulerConfig(**settings))
    backlog.add(request("first", [1] * 100), 0.0)
    backlog.start("first", 0.0)
    for number in range(10):
        backlog.add(request(str(number), [1] * 100), 10.0)
    return backlog


@pytest.mark.parametrize(
    ("settings", "length", "ending", "expected"),
    [
        ({"max_queued_requests": 10}, 1, Ending.QUEUED_REQUESTS, 10),  # one request of the ten
        ({"max_queued_tokens": 1000}, 50, Ending.QUEUED_TOKENS, 5),  # as many tokens as it has itself
        ({"max_queued_tokens": 1200}, 250, Ending.QUEUED_TOKENS, 5),
        ({"max_queued_tokens": 1000}, 5000, Ending.QUEUED_TOKENS, 100),  # until nobody waits: it is taken in then
        ({"queue_timeout": 40.0}, 50, Ending.QUEUE_TIMEOUT, 60),  # when a queue of 40 seconds is left
        ({"queue_timeout": 500.0}, 50, Ending.QUEUE_TIMEOUT, 1),
    ],
)
def test_who_is_turned_away_is_told_when_there_will_be_room(
    settings: dict[str, object], length: int, ending: Ending, expected: int
) -> None:
    backlog = backlog_at_ten_a_second(**settings)
    assert backlog.retry_after(request("late", [1] * length), ending, 10.0) == expected


def test_each_of_many_is_told_another_time_and_none_more_than_the_queue_takes() -> None:
    """Places come free every ten seconds; the queue takes a hundred. Later, those that have passed are no matter."""
    backlog = backlog_at_ten_a_second(max_queued_requests=10)
    late = request("late", [1] * 100)
    told = [backlog.retry_after(late, Ending.QUEUED_REQUESTS, 10.0) for _ in range(12)]
    assert told == [10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 100, 100]
    backlog.forget("0")
    backlog.start("1", 40.0)
    # 1,000 tokens wait, and 200 have started in 40 seconds: 200 s for all. What was promised is over in 70.
    backlog.add(request("new", [1] * 100), 40.0)
    backlog.add(request("newer", [1] * 100), 40.0)
    assert backlog.retry_after(late, Ending.QUEUED_REQUESTS, 40.0) == 70
    assert backlog.retry_after(late, Ending.QUEUED_REQUESTS, 40.0) == 90


def test_what_waits_elsewhere_counts_for_when_there_will_be_room() -> None:
    """100 tokens started in ten seconds; ten requests of as many wait for a disk, and none here."""
    backlog = Backlog(SchedulerConfig(max_queued_requests=10))
    backlog.add(request("first", [1] * 100), 0.0)
    backlog.start("first", 0.0)
    backlog.elsewhere = Queued(10, 1000)
    late = request("late", [1] * 50)
    assert backlog.objection(late) is Ending.QUEUED_REQUESTS
    assert backlog.retry_after(late, Ending.QUEUED_REQUESTS, 10.0) == 10


def test_a_tenant_that_is_forgotten_leaves_no_turn_behind() -> None:
    """Five thousand tenants come while the only seat is taken, go again, and their counters are dropped."""
    sim = engine()
    sim.arrive(request("runs", [1] * 8, 20, scope=Scope("a")))
    many = [request(f"t{number}", [2] * 8, scope=Scope(f"t{number}")) for number in range(5000)]
    sim.step([event for one in many for event in (Arrive(one), Abort(one.request_id))])
    sim.arrive(request("last", [3] * 8, 2, scope=Scope("z")))
    sim.run()
    assert sim.endings["last", 0] is Ending.LENGTH


def test_time_passes_where_nothing_is_planned() -> None:
    """An idle server lets go of what was to be kept until now, and of its alarm."""
    sim = engine()
    sim.arrive(replace(request("a", [1] * 8, 2), retain=(Retain(8, 10.0),)))
    sim.run()
    scheduler = sim.scheduler
    scheduler.thrash.now = True
    assert sim.memory.tree.num_held == 2
    for now in (100.0, 110.0):
        scheduler.rest(now)
    assert sim.memory.tree.num_held == 0
    assert not scheduler.thrash.now
    sim.memory.check()


def test_an_answer_that_its_client_left_is_not_taken_for_a_short_one() -> None:
    sim = engine()
    for number in range(ENOUGH):
        sim.arrive(request(f"r{number}", [number] * 8, 100))
        sim.step()
        sim.step([Abort(f"r{number}")])
    curve = sim.scheduler._admission._lengths.curve(DEFAULT.tenant, lambda: ())
    assert curve.beyond(2) == 1


@pytest.mark.parametrize(
    ("name", "value"), [("max_queued_requests", 0), ("max_queued_tokens", -1), ("queue_timeout", float("nan"))]
)
def test_bounds_that_mean_nothing(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} is"):
        SchedulerConfig(**{name: value})
