"""The loop: what `engine.core` does with kernels and the clock, done with a cost model and a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pageinn.memory.moves import MoveKind
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.scheduling.measuring import measured
from pageinn.scheduling.plan import Arrive, Counters, Ending, Event, Outcome, Plan
from pageinn.scheduling.scheduler import Scheduler
from pageinn.simulate.jobs import END, Job, generated
from pageinn.simulate.machine import Machine

#: Times between tokens are counted to this many seconds.
GAP = 1e-4
#: How far the clock goes when no work is possible and nothing is known to happen before.
_PAUSE = 0.01


class Step(NamedTuple):
    """A step as it was: began and seconds of the virtual clock; in_use, kept and total blocks while it ran."""

    began: float
    seconds: float
    plan: Plan
    in_use: int
    kept: int
    total: int
    running: int
    waiting: int


class Served(NamedTuple):
    """One request's fate, in seconds of the virtual clock. first is None if it outgrew the pool without a token."""

    arrival: float
    first: float | None
    end: float
    prompt: int
    output: int
    cached: int
    ending: Ending | None

    @property
    def seconds_per_token(self) -> float | None:
        """Mean time between two tokens; None where there are fewer than two."""
        if self.first is None or self.output < 2:
            return None
        return (self.end - self.first) / (self.output - 1)


@dataclass
class Result:
    """What a simulation brought. Shares are means over time, weighted by how long each step took.

    gaps: how many tokens came how long after the one before them, in units of GAP seconds. moved: blocks that
    went to the host or came from it.
    """

    served: list[Served] = field(default_factory=list)
    refused: int = 0
    seconds: float = 0.0
    steps: int = 0
    active_share: float = 0.0
    kept_share: float = 0.0
    running: float = 0.0
    gaps: Counter[int] = field(default_factory=Counter)
    moved: int = 0
    counters: Counters = field(default_factory=Counters)


class _Open:
    """A request on its way."""

    def __init__(self, number: int, job: Job) -> None:
        self.number = number
        self.job = job
        self.first: float | None = None
        self.last = 0.0
        self.tokens = 0


def simulate(
    jobs: Iterable[Job],
    scheduler: Scheduler,
    machine: Machine,
    observe: Callable[[Step], None] | None = None,
) -> Result:
    """Drive a scheduler through jobs that come in order of time, until all have ended."""
    return _Simulation(scheduler, machine, observe).run(jobs)


class _Simulation:
    def __init__(self, scheduler: Scheduler, machine: Machine, observe: Callable[[Step], None] | None) -> None:
        self._scheduler = scheduler
        self._machine = machine
        self._observe = observe
        self._now = 0.0
        self._open: dict[str, _Open] = {}
        self._seats: dict[int, str] = {}
        self._result = Result(counters=scheduler.counters)
        self._arrived = 0
        self._due: list[Event] = []

    def run(self, jobs: Iterable[Job]) -> Result:
        coming = iter(jobs)
        following = next(coming, None)
        while following is not None or not self._scheduler.idle:
            if self._scheduler.idle and following is not None:
                self._now = max(self._now, following.time)
            events, self._due = self._due, []
            while following is not None and following.time <= self._now:
                self._arrive(following, events)
                following = next(coming, None)
            self._step(events, following.time if following else None)
        result = self._result
        result.seconds = self._now
        if self._now:
            result.active_share /= self._now
            result.kept_share /= self._now
            result.running /= self._now
        return result

    def _arrive(self, job: Job, events: list[Event]) -> None:
        if self._scheduler.refusal(job.request) is not None:
            self._result.refused += 1
            return
        self._open[job.request.request_id] = _Open(self._arrived, job)
        self._arrived += 1
        events.append(Arrive(job.request))

    def _step(self, events: list[Event], following: float | None) -> None:
        plan = self._scheduler.schedule(self._now, events)
        for seat in plan.seated:
            self._seats[seat.seat] = seat.request_id
        seconds = self._seconds(plan, following)
        self._account(plan, seconds)
        self._now += seconds
        sampled = {work.seat: self._token(self._seats[work.seat]) for work in plan.work if work.sample}
        for outcome in [*plan.ended, *self._scheduler.commit(plan, sampled)]:
            self._take(outcome)

    def _seconds(self, plan: Plan, following: float | None) -> float:
        if plan.work or plan.moves:
            took = self._machine.took(plan)
            rates = measured(plan, took.total, took.copied)
            if rates is not None:
                self._due.append(rates)
            return took.total
        return _PAUSE if following is None else min(max(following - self._now, 0.0), _PAUSE)

    def _account(self, plan: Plan, seconds: float) -> None:
        usage, result = self._scheduler.memory.usage(), self._result
        result.steps += 1
        result.moved += sum(move.kind is not MoveKind.COPY for move in plan.moves)
        result.active_share += usage.in_use / usage.total * seconds
        result.kept_share += usage.kept / usage.total * seconds
        result.running += self._scheduler.num_running * seconds
        if self._observe is not None:
            running, waiting = self._scheduler.num_running, self._scheduler.num_waiting
            self._observe(Step(self._now, seconds, plan, usage.in_use, usage.kept, usage.total, running, waiting))

    def _token(self, request_id: str) -> int:
        request = self._open[request_id]
        last = request.tokens + 1 >= request.job.output
        return END if last else generated(request.number, request.job, request.tokens)

    def _take(self, outcome: Outcome) -> None:
        request = self._open[outcome.request_id]
        if outcome.token is not None:
            if request.first is None:
                request.first = self._now
            else:
                self._result.gaps[round((self._now - request.last) / GAP)] += 1
            request.last = self._now
            request.tokens += 1
        if outcome.ending is not None:
            del self._open[outcome.request_id]
            job = request.job
            if outcome.retry_after is not None:
                self._result.refused += 1
                return
            self._result.served.append(
                Served(
                    job.time,
                    request.first,
                    self._now,
                    len(job.request.prompt) // TOKEN_BYTES,
                    request.tokens,
                    outcome.cached_tokens,
                    outcome.ending,
                )
            )
