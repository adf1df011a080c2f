"""What the dashboard's figures are made of: the floor plan, the largest branches, and series over time."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import HistogramMetricFamily

from pageinn.engine.messages import EngineDeadError, TakenView
from pageinn.engine.stats import Stats
from pageinn.memory.manager import MemoryManager
from pageinn.memory.scopes import DEFAULT, PUBLIC, Scope
from pageinn.memory.sequence import Sequence
from pageinn.memory.shares import Share
from pageinn.memory.tokens import pack
from pageinn.server.dashboard import snapshots as snapshots_module
from pageinn.server.dashboard.branches import branches
from pageinn.server.dashboard.floor import MOST_TENANTS, STATES, TENANT_SHIFT, floor_plan
from pageinn.server.dashboard.history import History, percentile, sample_of
from pageinn.server.dashboard.snapshots import Snapshots
from pageinn.watch.sample import Sample
from pageinn.watch.windows import Window

KEY = bytes(32)


def run(manager: MemoryManager, tokens: list[int], scope: Scope = DEFAULT) -> Sequence:
    """A sequence whose whole prompt is computed."""
    sequence = manager.admit(scope, pack(tokens))
    manager.settle_moves(manager.drain_moves())
    manager.mark_stored(sequence, len(tokens))
    return sequence


def test_each_state_is_painted_where_it_is() -> None:
    """By hand: 12 tokens shared by two sequences, 4 each on their own, 8 kept, 4 pinned, in blocks of 4."""
    manager = MemoryManager(20, 4)
    kept = run(manager, [9] * 8)
    manager.release(kept)
    pinned = run(manager, [8] * 4)
    assert manager.pin("operator", pinned, 4) is not None
    manager.release(pinned)
    one, two = run(manager, [*range(12), 50, 51, 52, 53]), run(manager, [*range(12), 60, 61, 62, 63])
    floor = floor_plan(manager.view())
    assert floor.counts == {"free": 12, "kept": 2, "pinned": 1, "in_use": 2, "shared": 3}
    states = [STATES[cell & 7] for cell in floor.cells]
    assert [states[block] for block in one.table] == ["shared"] * 3 + ["in_use"]
    assert [states[block] for block in two.table] == ["shared"] * 3 + ["in_use"]
    assert floor.tenants == ["default"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([DEFAULT, PUBLIC, Scope("alice"), Scope("alice", "salt"), Scope("bob")]),
            st.lists(st.integers(1, 2), min_size=1, max_size=20),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_the_floor_agrees_with_the_accounts(runs: list[tuple[Scope, list[int], bool]]) -> None:
    manager = MemoryManager(200, 2)
    manager.configure_shares({"alice": Share(), "bob": Share()})
    for scope, tokens, ends in runs:
        sequence = run(manager, tokens, scope)
        if ends:
            manager.release(sequence)
    usage, floor = manager.usage(), floor_plan(manager.view())
    assert floor.counts["free"] == usage.free
    assert floor.counts["kept"] + floor.counts["pinned"] == usage.kept
    assert floor.counts["in_use"] + floor.counts["shared"] == usage.in_use
    assert {block for block, cell in enumerate(floor.cells) if not cell & 7} == manager.pool.free_blocks()
    for holding in manager.shares.all():
        label = manager.shares.label(holding.tenant)
        mine = [cell for cell in floor.cells if cell & 7 and floor.tenants[cell >> TENANT_SHIFT] == label]
        assert len(mine) == holding.usage
    # All branches are shown; what is drawn below them is all there is.
    tree = branches(manager.view(), KEY, 8)
    assert sum(node["blocks"] for node in tree["nodes"]) == tree["blocks"]
    assert len(tree["nodes"]) == tree["total"]


def test_more_tenants_than_colours_are_drawn_as_one() -> None:
    manager = MemoryManager(100, 1)
    names = [f"tenant{number:02}" for number in range(40)]
    manager.configure_shares({name: Share() for name in names})
    for number, name in enumerate(names):
        run(manager, [1] * (2 if number < 20 else 1), Scope(name))
    floor = floor_plan(manager.view())
    assert floor.tenants == [*names[: MOST_TENANTS - 1], "(others)"]
    assert sum(cell >> TENANT_SHIFT == MOST_TENANTS - 1 for cell in floor.cells) == 40 - (MOST_TENANTS - 1)


def test_the_largest_branches_are_shown_and_the_rest_is_counted() -> None:
    """By hand: a prefix of 3 blocks that three prompts go on from, by 3, 2 and 1 blocks, and one block apart."""
    manager = MemoryManager(50, 2)
    shared = [1, 1, 2, 2, 3, 3]
    for tokens in ([*shared, *range(10, 16)], [*shared, *range(20, 24)], [*shared, 30, 31], [7, 7]):
        manager.release(run(manager, tokens))
    tree = branches(manager.view(), KEY, 8, most=3)
    assert (tree["total"], tree["blocks"]) == (5, 10)
    top, first, second = tree["nodes"]
    assert (top["start"], top["tokens"], top["blocks"], top["branch"], top["hidden"]) == (0, 6, 3, 9, 1)
    assert top["hits"] == 2
    assert (first["parent"], first["start"], first["blocks"], first["branch"], first["hidden"]) == (0, 6, 3, 3, 0)
    assert (second["parent"], second["branch"]) == (0, 2)
    assert len({node["id"] for node in tree["nodes"]}) == 3
    other = branches(manager.view(), bytes([1] * 32), 8, most=3)
    assert other["nodes"][0]["id"] != top["id"], "a fingerprint depends on the process's key"


# --- over time ---


def stats(requests: int, hits: int, latencies: list[float]) -> Stats:
    found = Stats(
        prefix_cache_queries=100 * requests, prefix_cache_hits=hits, blocks_total=10, blocks_in_use=4, blocks_kept=3
    )
    for latency in latencies:
        found.time_to_first_token.observe(latency)
    return found


def test_a_series_is_made_of_differences() -> None:
    """By hand: 5 s apart; 90 of 100 tokens found, then 10 of 200, then no request."""
    samples = [
        sample_of(stats(0, 0, []), 1000.0, {}),
        sample_of(stats(1, 90, [0.2]), 1005.0, {}),
        sample_of(stats(3, 100, [0.2, 0.4, 0.6]), 1010.0, {}),
        sample_of(stats(3, 100, [0.2, 0.4, 0.6]), 1015.0, {}),
    ]
    history = History()
    assert history.series(samples[0])["recent"] == {}
    for sample in samples[:-1]:
        history.add(sample)
    found = history.series(samples[-1])["recent"]
    assert found["time"] == [1005.0, 1010.0, 1015.0]
    assert found["hit_rate"] == [0.9, 0.05, None]
    assert found["first_token"] == pytest.approx([0.2, 0.5, None])


def test_a_percentile_lies_in_the_bucket_that_holds_it() -> None:
    """Of ten, nine in (0.1, 0.25] and one in (1, 2.5]: the 95th percentile is half way up the last, 1.75."""
    before = sample_of(stats(0, 0, []), 0.0, {})
    after = sample_of(stats(10, 0, [0.2] * 9 + [2.0]), 5.0, {})
    assert percentile(Window([before, after]), 0.95) == pytest.approx(1.75)
    assert percentile(Window([before, after]), 0.45) == pytest.approx(0.175)
    assert percentile(Window([after, after]), 0.95) is None
    slow = sample_of(stats(10, 0, [100.0]), 5.0, {})
    assert percentile(Window([before, slow]), 0.95) == 60.0


def test_a_sample_just_before_now_gives_way() -> None:
    """Two seconds are no time to take a rate over; the last seven are."""
    history = History()
    for requests, time in ((0, 0.0), (1, 5.0), (2, 10.0)):
        history.add(sample_of(stats(requests, 50 * requests, []), time, {}))
    latest = stats(4, 100, [])
    assert history.series(sample_of(latest, 14.0, {}))["recent"]["time"] == [5.0, 10.0, 14.0]
    found = history.series(sample_of(latest, 12.0, {}))["recent"]
    assert found["time"] == [5.0, 12.0]
    assert found["hit_rate"] == [0.5, round(50 / 300, 4)]


def traffic(history: History, seconds: float, rate: float, began: float = 0.0) -> None:
    """Two requests a second of 100 tokens, looked at every five seconds."""
    before = history.samples[-1] if history.samples else Sample("pageinn", began, 0.0, 0.0, requests=0.0)
    for step in range(1, int(seconds / 5) + 1):
        queries, requests = (before.queries or 0) + 1000 * step, (before.requests or 0) + 10 * step
        hits = (before.hits or 0) + 1000 * rate * step
        history.add(Sample("pageinn", before.time + 5 * step, queries, hits, requests=requests))


def test_a_fall_is_an_event_with_a_beginning_and_an_end() -> None:
    """The rules are the watcher's; here they are asked every 15 s, and the answers are remembered."""
    history = History()
    traffic(history, 600, 0.9)
    assert history.events == []
    traffic(history, 60, 0.1)
    (event,) = history.events
    assert (event.alarm.key, event.until) == ("hit_rate", None)
    assert 600 < event.since <= 660
    traffic(history, 120, 0.9)
    (over,) = history.events
    assert over.since == event.since
    assert over.until is not None
    assert over.until > event.since


def test_two_hours_are_remembered() -> None:
    history = History()
    traffic(history, 3 * 3600, 0.5)
    assert history.samples[-1].time - history.samples[0].time == 2 * 3600
    found = history.series(history.samples[-1])["long"]
    assert len(found["time"]) == 120
    assert set(found["hit_rate"]) == {0.5}
    assert history.samples[-1].time - found["time"][-1] < 60
    assert {round(after - before) for before, after in pairwise(found["time"])} == {60}


def test_buckets_are_those_of_the_metrics() -> None:
    """The sample's cumulative buckets are what prometheus_client writes of the same histogram."""
    sample = sample_of(stats(3, 0, [0.2, 0.4, 0.6]), 0.0, {})
    registry = CollectorRegistry()
    family = HistogramMetricFamily("t", "t")
    family.add_metric([], [(str(bound), count) for bound, count in sample.buckets], sample.first_token)

    class One:
        def collect(self) -> list[HistogramMetricFamily]:
            return [family]

    registry.register(One())
    assert 't_bucket{le="0.5"} 2.0' in generate_latest(registry).decode()


# --- snapshots ---


def test_snapshots_are_shared_and_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many look at once, one view is taken; a view that took 10 ms is good for two seconds."""
    now = 1000.0
    monkeypatch.setattr(snapshots_module, "time", SimpleNamespace(monotonic=lambda: now))
    taken = 0

    async def take() -> TakenView:
        nonlocal taken
        taken += 1
        await asyncio.sleep(0)
        return TakenView(MemoryManager(1).view(), 0.01)

    async def looked() -> None:
        nonlocal now
        snapshots = Snapshots(take)
        assert taken == 0, "nothing is taken before somebody looks"
        found = await asyncio.gather(*(snapshots.newest() for _ in range(20)))
        assert len({id(one) for one in found}) == 1
        now += 1.9
        assert await snapshots.newest() is found[0]
        assert taken == 1
        now += 0.2
        await snapshots.newest()
        assert taken == 2

    asyncio.run(looked())


def test_a_long_step_does_not_hold_the_page_up() -> None:
    async def never() -> TakenView:
        await asyncio.sleep(60)
        raise AssertionError

    async def dead() -> TakenView:
        raise EngineDeadError("gone")

    async def looked() -> None:
        assert await asyncio.wait_for(Snapshots(never).newest(), 30) is None
        assert await Snapshots(dead).newest() is None

    asyncio.run(looked())
