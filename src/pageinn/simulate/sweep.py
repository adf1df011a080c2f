"""Many settings over one workload, several at a time, each in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import NamedTuple

from pageinn.catalogue.compute import Roofline
from pageinn.memory.eviction import EvictionPolicy
from pageinn.memory.manager import MemoryManager
from pageinn.memory.questions import PrefixCache
from pageinn.scheduling.config import SchedulerConfig
from pageinn.scheduling.scheduler import Scheduler
from pageinn.simulate.granularity import WholeBlocks
from pageinn.simulate.jobs import Job
from pageinn.simulate.machine import RooflineMachine
from pageinn.simulate.routing import Routing, route
from pageinn.simulate.run import GAP, Result, Served, simulate


@dataclass(frozen=True)
class Setting:
    """One configuration of the engine. num_blocks and host_blocks: of each replica. whole_blocks: reuse by vLLM's rule.

    overhead: seconds of a step beside the roofline's.
    """

    num_blocks: int
    block_size: int
    limits: SchedulerConfig
    prefix_cache: PrefixCache = PrefixCache.KEEP
    eviction: EvictionPolicy = EvictionPolicy.REUSE
    host_blocks: int = 0
    whole_blocks: bool = False
    replicas: int = 1
    routing: Routing = Routing.ROUND_ROBIN
    overhead: float = 0.002


@dataclass(frozen=True)
class Goal:
    """When an answer counts: seconds to its first token, and mean seconds for each token after it."""

    first: float = 5.0
    token: float = 0.25

    def met_by(self, served: Served) -> bool:
        """Whether a request was answered in time."""
        if served.first is None or served.first - served.arrival > self.first:
            return False
        return served.seconds_per_token is None or served.seconds_per_token <= self.token


class Quantiles(NamedTuple):
    """Seconds; nearest rank."""

    p50: float
    p95: float
    p99: float


class Figures(NamedTuple):
    """What a setting brought, all replicas together; None where there was nothing to say it of.

    goodput: tokens a second of the requests that met the goal. active and kept: mean shares of the pool. seconds: until
    the last replica was done.
    """

    setting: Setting
    served: int
    refused: int
    hit_rate: float | None
    first: Quantiles | None
    between: Quantiles | None
    preemptions: int
    moved_bytes: float
    goodput: float
    throughput: float
    active: float
    kept: float
    seconds: float


def run(setting: Setting, jobs: Sequence[Job], line: Roofline, goal: Goal) -> Figures:
    """Simulate one setting."""
    machine = RooflineMachine(line, setting.block_size, setting.overhead)
    results = [simulate(part, _scheduler(setting), machine) for part in route(jobs, setting.replicas, setting.routing)]
    return _figures(setting, results, machine.block_bytes, goal)


def _scheduler(setting: Setting) -> Scheduler:
    manager = WholeBlocks if setting.whole_blocks else MemoryManager
    return Scheduler(
        setting.limits,
        manager(setting.num_blocks, setting.block_size, setting.prefix_cache, setting.eviction, setting.host_blocks),
    )


def _figures(setting: Setting, results: list[Result], block_bytes: float, goal: Goal) -> Figures:
    served = [one for result in results for one in result.served]
    gaps: Counter[int] = Counter()
    for result in results:
        gaps.update(result.gaps)
    queries = sum(result.counters.queries for result in results)
    hits = sum(result.counters.hits for result in results)
    seconds = max(result.seconds for result in results)
    firsts = sorted(one.first - one.arrival for one in served if one.first is not None)
    return Figures(
        setting=setting,
        served=len(served),
        refused=sum(result.refused for result in results),
        hit_rate=hits / queries if queries else None,
        first=Quantiles(*(nearest(firsts, share) for share in (0.5, 0.95, 0.99))) if firsts else None,
        between=_gap_quantiles(gaps),
        preemptions=sum(result.counters.preemptions for result in results),
        moved_bytes=sum(result.moved for result in results) * block_bytes,
        goodput=sum(one.output for one in served if goal.met_by(one)) / seconds if seconds else 0.0,
        throughput=sum(one.output for one in served) / seconds if seconds else 0.0,
        active=sum(result.active_share for result in results) / len(results),
        kept=sum(result.kept_share for result in results) / len(results),
        seconds=seconds,
    )


def nearest(ordered: Sequence[float], share: float) -> float:
    """The value of nearest rank: the smallest that at least this share is not above."""
    return ordered[max(-int(-share * len(ordered) // 1) - 1, 0)]


def _gap_quantiles(gaps: Counter[int]) -> Quantiles | None:
    total, ordered = gaps.total(), sorted(gaps.items())
    if not total:
        return None
    found = []
    for share in (0.5, 0.95, 0.99):
        passed = 0
        for gap, count in ordered:
            passed += count
            if passed >= share * total:
                found.append(gap * GAP)
                break
    return Quantiles(*found)


class _Task(NamedTuple):
    """What the processes of a sweep share: they are forked, so that the jobs are not copied to each."""

    jobs: Sequence[Job]
    line: Roofline
    goal: Goal


_task: _Task | None = None


def sweep(
    settings: Sequence[Setting],
    jobs: Sequence[Job],
    line: Roofline,
    goal: Goal,
    processes: int,
    done: Callable[[], None] = lambda: None,
) -> list[Figures]:
    """Simulate all settings, in their order. `done` is called after each."""
    global _task  # noqa: PLW0603  the one way to hand forked processes what they need not copy
    if processes == 1 or len(settings) == 1:
        found = []
        for setting in settings:
            found.append(run(setting, jobs, line, goal))
            done()
        return found
    _task = _Task(jobs, line, goal)
    try:
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork")) as pool:
            futures = [pool.submit(_run, setting) for setting in settings]
            for _ in as_completed(futures):
                done()
            return [future.result() for future in futures]
    finally:
        _task = None


def _run(setting: Setting) -> Figures:
    assert _task is not None
    return run(setting, *_task)
