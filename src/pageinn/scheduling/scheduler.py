"""The scheduler: continuous batching with chunked prefill over the memory manager.

`schedule` turns events into a plan for one step, `commit` takes in what the step computed. Decodes come first in every
step (Sarathi-Serve, Agrawal et al., 2024, arXiv:2403.02310), then prefills in order of arrival.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from math import inf
from operator import attrgetter
from typing import NamedTuple

from pageinn.memory.manager import MemoryManager
from pageinn.memory.pool import NoSpaceError
from pageinn.memory.sequence import Sequence
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.scheduling.admission import Admission
from pageinn.scheduling.backlog import Backlog
from pageinn.scheduling.books import Books
from pageinn.scheduling.choice import Choice, choices_of
from pageinn.scheduling.config import SchedulerConfig
from pageinn.scheduling.cost import Measured, Rates
from pageinn.scheduling.plan import (
    Abort,
    Arrive,
    Counters,
    Ending,
    Event,
    Found,
    Outcome,
    Plan,
    Preempted,
    Request,
    Seated,
    Stop,
    Weigh,
    Work,
)
from pageinn.scheduling.prefill import MAX_UNDER_WAY, share, top_up
from pageinn.scheduling.queue import WaitingQueue
from pageinn.scheduling.refusal import refusal
from pageinn.scheduling.rows import chunk, decodes, fast, remaining
from pageinn.scheduling.seats import Seats
from pageinn.scheduling.shares import GENERATED, Shares
from pageinn.scheduling.starting import Follow, Wait, start
from pageinn.scheduling.thrash import Thrash
from pageinn.scheduling.victim import cheapest, put_out
from pageinn.scheduling.watermark import Watermark

_arrival = attrgetter("arrival")
#: Waiting choices that are looked at in vain in one step before the rest of the queue is left alone.
_LOOKAHEAD = 16


class _Start(NamedTuple):
    """A newcomer and how much of it the step computes."""

    choice: Choice
    tokens: int


class Scheduler:
    """Decides which tokens each step computes. One plan is out at a time: schedule, commit, schedule, …"""

    def __init__(self, config: SchedulerConfig, memory: MemoryManager, rates: Rates | None = None) -> None:
        self.config = config
        self.memory = memory
        self.rates = rates or Rates()
        self.shares = Shares()
        self.backlog = Backlog(config)
        self.thrash = Thrash()
        self._books = Books(memory)
        self._watermark = Watermark()
        self._queue = WaitingQueue(self.shares)
        self._held = 0
        self._running: list[Choice] = []
        self._admission = Admission(config.admission, memory, config.max_model_len, self._running)
        self._by_sequence: dict[Sequence, Choice] = {}
        self._by_request: dict[str, list[Choice]] = {}
        self._seats = Seats(config.max_num_seqs)
        #: Choices whose last token has no slot yet.
        self._short: list[Choice] = []
        self._arrivals = 0
        self._now = 0.0

    # --- questions ---

    @property
    def counters(self) -> Counters:
        """What has happened so far."""
        return self._books.counters

    @property
    def num_running(self) -> int:
        """Choices that hold a seat."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Choices that do not hold a seat yet, or not any more."""
        return len(self._queue) + self._held

    @property
    def idle(self) -> bool:
        """Whether no request is left."""
        return not self._by_request

    @property
    def watermark(self) -> int | None:
        """The number of running choices below which preemption does not start; None while too little was seen."""
        return self._watermark.of(self.memory.pool.num_blocks)

    def refusal(self, request: Request) -> str | None:
        """Why the request can never be served, or None."""
        return refusal(self.config, self.memory, request)

    # --- one step ---

    def schedule(self, now: float, events: Iterable[Event]) -> Plan:
        """Take in events and plan a step. now: seconds of whatever clock the driver goes by, never going back.

        Raises ValueError for an Arrive that `refusal` objects to.
        """
        self._now = now
        self.memory.expire(now)
        ended: list[Outcome] = []
        preempted: list[Preempted] = []
        for event in events:
            self._take_in(event, ended)
        self._expire(ended)
        self._make_room(ended, preempted)
        work, prefills = decodes(self._running)
        needed = [remaining(choice) for choice in prefills]
        budget = self.config.max_num_batched_tokens - len(work)
        grants = share(budget, needed, len(self._queue) > 0 and self._seats.any_free)
        budget -= sum(grants)
        under_way = sum(grant < rest for grant, rest in zip(grants, needed, strict=True))
        # Who was just put out is not let in again at once, nor anybody else in its place.
        seated, starts = ([], []) if preempted else self._admit(budget, under_way)
        top_up(grants, needed, budget - sum(start.tokens for start in starts))
        work += [chunk(choice, count) for choice, count in zip(prefills, grants, strict=True) if count]
        work += [chunk(choice, count) for choice, count in starts]
        self._look_for_thrash()
        vacated, edits = self._seats.drain()
        return Plan(vacated, seated, edits, self.memory.drain_moves(), work, ended, preempted)

    def rest(self, now: float) -> None:
        """Let time pass while there is nothing to plan."""
        self.memory.expire(now)
        self._now = now
        self._look_for_thrash()

    def _look_for_thrash(self) -> None:
        usage = self.memory.usage()
        self.thrash.look(self._now, usage.in_use / usage.total, self.num_waiting, self.counters.preemptions)

    def commit(self, plan: Plan, sampled: Mapping[int, int], failed_moves: Collection[int] = ()) -> list[Outcome]:
        """Take in what a step computed. sampled: the token of each seat whose work asked for one.

        failed_moves: the stores that could not be performed, by their place in plan.moves. What they were to keep on
        the host is computed again when it is wanted.
        """
        self.memory.settle_moves(plan.moves, failed_moves)
        outcomes: list[Outcome] = []
        choices, advance, retained = self._seats.taken, self.memory.advance, self._books.retained
        for work in plan.work:
            seat = work.seat
            choice = choices[seat]
            assert choice is not None
            sequence = choice.sequence
            assert sequence is not None
            if not work.sample:
                self._store(choice, work)
                continue
            token = sampled[seat]
            packed = token.to_bytes(TOKEN_BYTES, "little")
            # Nearly all tokens follow one that was decoded, and do not fill a block: nothing else changes then.
            if work is not choice.row or not advance(sequence, packed):
                self._store(choice, work)
                self._record(choice, token)
            stored = sequence.stored
            choice.row = fast(Work, (seat, stored, packed, stored, True))
            choice.generated = generated = choice.generated + 1
            request_id = choice.request_id
            kept = retained.get(request_id, 0) if retained else 0
            ending: Ending | None = None
            if token in choice.end_ids:
                ending = Ending.STOP
            elif generated >= choice.limit:
                ending = Ending.LENGTH
            outcomes.append(fast(Outcome, (request_id, choice.index, token, ending, choice.cached_tokens, kept, None)))
            if ending is not None:
                self._end(choice, cut=ending is Ending.LENGTH)
        return outcomes

    # --- events ---

    def _take_in(self, event: Event, ended: list[Outcome]) -> None:
        match event:
            case Arrive(request):
                if (reason := self.refusal(request)) is not None:
                    raise ValueError(reason)
                self._arrive(request, ended)
            case Abort(request_id):
                ended[:] = [outcome for outcome in ended if outcome.request_id != request_id]
                for choice in self._by_request.get(request_id, [])[:]:
                    self._end(choice, cut=True)
            case Stop(request_id, index):
                for choice in self._by_request.get(request_id, [])[:]:
                    if choice.index == index:
                        self._end(choice)
            case Weigh(weights):
                self.shares.weigh(weights)
            case Measured():
                self.rates.learn(event)

    def _arrive(self, request: Request, ended: list[Outcome]) -> None:
        if request.request_id in self._by_request:
            raise ValueError(f"request id {request.request_id} is in use")
        objection = self.backlog.objection(request)
        if objection is not None:
            self._books.refuse(objection)
            ended.extend(self._turned_away(request, objection))
            return
        self.shares.enter(request.scope.tenant)
        self.backlog.add(request, self._now)
        choices = self._by_request[request.request_id] = choices_of(request, self._arrivals)
        self._arrivals += 1
        self._queue.add(choices[0])
        self._held += request.n - 1

    def _turned_away(self, request: Request, ending: Ending) -> list[Outcome]:
        retry = self.backlog.retry_after(request, ending, self._now)
        return [Outcome(request.request_id, index, None, ending, 0, 0, retry) for index in range(request.n)]

    def _expire(self, ended: list[Outcome]) -> None:
        late = self.backlog.expired(self._now)
        # All of them are out of the way by the time that any comes back.
        for request_id in late:
            self.backlog.forget(request_id)
        for request_id in late:
            choices = self._by_request[request_id]
            self.counters.expired += 1
            ended.extend(self._turned_away(choices[0].request, Ending.QUEUE_TIMEOUT))
            for choice in choices[:]:
                self._end(choice)

    # --- memory for running choices ---

    def _make_room(self, ended: list[Outcome], preempted: list[Preempted]) -> None:
        """Reserve a block for each running choice that needs one, preempting others when there is none."""
        short = sorted((choice for choice in self._short if choice.sequence), key=_arrival)
        self._short = []
        for choice in short:
            while choice.sequence is not None:
                try:
                    self._seats.edit(choice, self.memory.reserve(choice.sequence))
                except NoSpaceError:
                    outgrown = self.memory.blocks_for(choice.sequence.num_tokens) > self.memory.pool.num_blocks
                    if outgrown or len(self._running) == 1:
                        ended.append(self._outgrown(choice))
                        self._end(choice, cut=True)
                    else:
                        # Never the oldest, so that somebody gets on.
                        preempted.append(self._preempt(self._running[1:]))
                    continue
                self._admission.grow(choice)
                self.shares.charge(choice.request.scope.tenant, GENERATED * self.memory.block_size)
                break

    def _outgrown(self, choice: Choice) -> Outcome:
        retained = self._books.retained.get(choice.request_id, 0)
        return Outcome(choice.request_id, choice.index, None, Ending.POOL, choice.cached_tokens, retained)

    def _preempt(self, choices: list[Choice]) -> Preempted:
        """Put one of these back in the queue, its blocks on the host or given up.

        It is the one whose loss costs least for the blocks that it frees.
        """
        self._watermark.preempted(len(self._running))
        victim = cheapest(self.memory, self.rates, choices, self.config.preempt_by)
        choice, preempted = victim.choice, put_out(self.memory, victim)
        self._books.preempt(choice)
        self._leave_seat(choice)
        self._queue.add(choice)
        return preempted

    # --- admission ---

    def _admit(self, budget: int, under_way: int) -> tuple[list[Seated], list[_Start]]:
        """Start waiting choices in turn; one that has to wait may be overtaken so many times."""
        seated: list[Seated] = []
        starts: list[_Start] = []
        blocked: list[Choice] = []
        #: How many may still overtake the least patient of those.
        patience: float = inf
        at_maximum: set[str] = set()
        with closing(self._queue.candidates(at_maximum)) as candidates:
            for choice in candidates:
                if budget <= 0 or not self._seats.any_free or len(blocked) >= _LOOKAHEAD:
                    break
                if patience <= 0:
                    break
                most = budget if under_way >= MAX_UNDER_WAY else None
                got = start(self.memory, self._admission, choice, most)
                if isinstance(got, Follow):
                    self._hold(choice, self._by_sequence[got.leader], got.until)
                    continue
                if got is Wait.SHARE:
                    # Nobody else's blocks would help it, so nobody else waits behind it.
                    at_maximum.add(choice.request.scope.tenant)
                    continue
                if got is Wait.TURN:
                    blocked.append(choice)
                    patience = min(patience, self.config.max_overtakes - choice.overtaken)
                    continue
                for waiting in blocked:
                    waiting.overtaken += 1
                patience -= 1
                seated.append(self._seat(choice, got))
                needed = remaining(choice)
                starts.append(_Start(choice, min(needed, budget)))
                under_way += needed > budget
                budget -= min(needed, budget)
        return seated, starts

    def _seat(self, choice: Choice, sequence: Sequence) -> Seated:
        self._queue.remove(choice)
        choice.sequence, choice.forks = sequence, None
        if choice.parked is not None:
            self.memory.unpark(choice.parked)
            self.counters.swapped_in_blocks += sequence.loaded
            choice.parked = None
        found = None if choice.started else self._first_start(choice)
        insort(self._running, choice, key=_arrival)
        self._by_sequence[sequence] = choice
        self._seats.sit(choice)
        self._admission.start(choice)
        return Seated(choice.seat, choice.request_id, choice.index, list(sequence.table), found)

    def _hold(self, choice: Choice, leader: Choice, until: int) -> None:
        self._queue.remove(choice)
        leader.hold_follower(choice, until)
        self._held += 1

    def _let_go(self, choices: list[Choice]) -> None:
        self._held -= len(choices)
        for choice in choices:
            self._queue.add(choice)

    def _first_start(self, choice: Choice) -> Found | None:
        found = self._books.start(choice)
        tenant = choice.request.scope.tenant
        self.shares.turn(tenant)
        self.shares.charge(tenant, choice.prompt_tokens - choice.reached)
        self.backlog.start(choice.request_id, self._now)
        return found

    # --- results ---

    def _store(self, choice: Choice, work: Work) -> None:
        sequence = choice.sequence
        assert sequence is not None
        end = work.start + len(work.tokens) // TOKEN_BYTES
        if work.start < choice.prompt_tokens or work.start < choice.reached:
            self._books.compute(choice, work)
        if end > sequence.stored:
            self._seats.edit(choice, self.memory.mark_stored(sequence, end))
            if choice.leads:
                self._let_go(choice.let_go(end))
        if choice.request.retain or choice.request.pin is not None:
            self._books.retain(choice, self._now)

    def _record(self, choice: Choice, token: int) -> None:
        assert choice.sequence is not None
        self.memory.record(choice.sequence, token)
        if not self.memory.has_room(choice.sequence):
            self._short.append(choice)
        if choice.siblings:
            self._let_go(choice.let_go_forks())

    # --- leaving ---

    def _end(self, choice: Choice, cut: bool = False) -> None:
        """Forget a choice, whatever its state. cut: not the model ended it, so that its answer would have gone on."""
        self._admission.ended(choice, cut)
        if choice.sequence is not None:
            self._watermark.ended(self.memory.exclusive(choice.sequence))
            self.memory.release(choice.sequence)
            self._leave_seat(choice)
        elif choice.held:
            choice.held = False
            self._held -= 1
        else:
            self._queue.remove(choice)
        if choice.parked is not None:
            self.memory.discard(choice.parked)
            choice.parked = None
        request_id = choice.request_id
        choices = self._by_request[request_id]
        choices.remove(choice)
        if not choice.generated:
            for sibling in choices:
                sibling.forks = None
        self._let_go(choice.let_go_forks())
        if not choices:
            del self._by_request[request_id]
            self._books.forget(request_id)
            self.backlog.forget(request_id)
            self.shares.leave(choice.request.scope.tenant)

    def _leave_seat(self, choice: Choice) -> None:
        assert choice.sequence is not None
        self._admission.leave(choice)
        del self._by_sequence[choice.sequence]
        choice.reached = max(choice.reached, choice.sequence.stored)
        choice.sequence = choice.row = None
        del self._running[bisect_left(self._running, choice.arrival, key=_arrival)]
        self._let_go(choice.let_go())
        self._seats.leave(choice)
