"""The scheduler: continuous batching with chunked prefill over the memory manager.

`schedule` turns events into a plan for one step, `commit` takes in what the step computed. Decodes come first in every
step (Sarathi-Serve, Agrawal et al., 2024, arXiv:2403.02310), then prefills in order of arrival.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterable, Mapping

from pageinn.memory.manager import MemoryManager, Sequence
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.scheduling.choice import Choice
from pageinn.scheduling.config import Preemption, SchedulerConfig
from pageinn.scheduling.plan import (
    Abort,
    Arrive,
    Counters,
    Ending,
    Event,
    Outcome,
    Plan,
    Request,
    Seated,
    SeatEdit,
    Stop,
    TenantCounters,
    Work,
)

#: Waiting choices that are looked at in vain in one step before the rest of the queue is left alone.
_LOOKAHEAD = 16


class Scheduler:
    """Decides which tokens each step computes. One plan is out at a time: schedule, commit, schedule, …"""

    def __init__(self, config: SchedulerConfig, memory: MemoryManager) -> None:
        self.config = config
        self.memory = memory
        self.counters = Counters()
        self._waiting: list[Choice] = []
        self._running: list[Choice] = []
        self._by_sequence: dict[Sequence, Choice] = {}
        self._by_request: dict[str, list[Choice]] = {}
        self._cached: dict[str, int] = {}
        self._retained: dict[str, int] = {}
        self._free_seats = list(range(config.max_num_seqs - 1, -1, -1))
        self._vacated: list[int] = []
        self._edits: list[SeatEdit] = []
        self._arrivals = 0
        self._now = 0.0

    # --- questions ---

    @property
    def num_running(self) -> int:
        """Choices that hold a seat."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Choices that do not hold a seat yet, or not any more."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether no request is left."""
        return not self._by_request

    def refusal(self, request: Request) -> str | None:
        """Why the request can never be served, or None."""
        prompt = len(request.prompt) // TOKEN_BYTES
        if prompt == 0:
            return "the prompt is empty; give at least one token"
        limit = self.config.max_model_len
        if prompt >= limit:
            return f"the prompt has {prompt} tokens and leaves no room to answer within the maximum length of {limit}"
        if prompt + request.max_tokens > limit:
            return (
                f"the prompt's {prompt} tokens and max_tokens {request.max_tokens} exceed the maximum length of {limit}"
            )
        # A request that may end early is let in; one that must reach max_tokens is not.
        least = prompt + (request.max_tokens if request.ignore_eos and not request.stop_ids else 1)
        blocks = self.memory.shares.most_blocks(request.scope.tenant)
        slots = blocks * self.memory.block_size
        if least - 1 > slots:
            if blocks < self.memory.pool.num_blocks:
                return f"the request needs {least - 1} token slots and its tenant may use {slots}; shorten it"
            return (
                f"the request needs {least - 1} token slots and the cache has {slots}; shorten it, "
                "or start the server with more --kv-cache-memory-bytes"
            )
        return None

    # --- one step ---

    def schedule(self, now: float, events: Iterable[Event]) -> Plan:
        """Take in events and plan a step. now: seconds of whatever clock the driver goes by, never going back.

        Raises ValueError for an Arrive that `refusal` objects to.
        """
        self._now = now
        self.memory.expire(now)
        for event in events:
            self._take_in(event)
        ended: list[Outcome] = []
        self._grow(ended)
        work = self._decodes()
        budget = self.config.max_num_batched_tokens - len(work)
        budget = self._prefills(work, budget)
        seated = self._admit(work, budget)
        vacated, edits = self._vacated, self._edits
        self._vacated, self._edits = [], []
        return Plan(vacated, seated, edits, self.memory.drain_moves(), work, ended)

    def commit(self, plan: Plan, sampled: Mapping[int, int], failed_moves: Collection[int] = ()) -> list[Outcome]:
        """Take in what a step computed. sampled: the token of each seat whose work asked for one.

        failed_moves: the stores that could not be performed, by their place in plan.moves. What they were to keep on
        the host is computed again when it is wanted.
        """
        self.memory.settle_moves(plan.moves, failed_moves)
        outcomes = []
        by_seat = {choice.seat: choice for choice in self._running}
        for work in plan.work:
            choice = by_seat[work.seat]
            self._store(choice, work)
            if work.sample:
                outcomes.append(self._append(choice, sampled[work.seat]))
        return outcomes

    # --- events ---

    def _take_in(self, event: Event) -> None:
        match event:
            case Arrive(request):
                if (reason := self.refusal(request)) is not None:
                    raise ValueError(reason)
                self._arrive(request)
            case Abort(request_id):
                for choice in self._by_request.get(request_id, [])[:]:
                    self._end(choice)
            case Stop(request_id, index):
                for choice in self._by_request.get(request_id, [])[:]:
                    if choice.index == index:
                        self._end(choice)

    def _arrive(self, request: Request) -> None:
        if request.request_id in self._by_request:
            raise ValueError(f"request id {request.request_id} is in use")
        choices = [Choice(request, index, self._arrivals) for index in range(request.n)]
        self._arrivals += 1
        for sibling in choices[1:]:
            sibling.forks = choices[0]
        self._by_request[request.request_id] = choices
        self._waiting.extend(choices)

    # --- memory for running choices ---

    def _grow(self, ended: list[Outcome]) -> None:
        """Reserve a block for each running choice that needs one, preempting the newest when there is none."""
        for choice in self._running[:]:
            while choice.sequence is not None and not self.memory.can_reserve(choice.sequence):
                outgrown = self.memory.blocks_for(choice.sequence.num_tokens) > self.memory.pool.num_blocks
                if outgrown or len(self._running) == 1:
                    ended.append(self._outcome(choice, None, Ending.POOL))
                    self._end(choice)
                else:
                    self._preempt(self._running[-1])
            if choice.sequence is not None:
                edit = self.memory.reserve(choice.sequence)
                if edit is not None:
                    self._edits.append(SeatEdit(choice.seat, edit))

    def _preempt(self, choice: Choice) -> None:
        """Put a choice back in the queue, its blocks on the host or, for want of room there, to be computed again.

        To recompute is an unpin: what was computed stays in the tree until it is evicted.
        """
        sequence = choice.sequence
        assert sequence is not None
        self.counters.preemptions += 1
        self._tenant(choice).preemptions += 1
        choice.known = bytes(sequence.packed)
        if self.config.preempt_by is Preemption.SWAP and choice.reads_cache:
            choice.parked = self.memory.park(sequence)
        if choice.parked is None:
            self.memory.release(sequence)
        else:
            self.counters.swaps += 1
            self.counters.swapped_out_blocks += choice.parked.stored
        self._leave_seat(choice)
        insort(self._waiting, choice, key=lambda waiting: waiting.arrival)

    # --- work ---

    def _decodes(self) -> list[Work]:
        return [self._work(choice, 1) for choice in self._running if self._remaining(choice) == 1]

    def _prefills(self, work: list[Work], budget: int) -> int:
        for choice in self._running:
            remaining = self._remaining(choice)
            if remaining > 1 and budget > 0:
                count = min(remaining, budget)
                work.append(self._work(choice, count))
                budget -= count
        return budget

    def _remaining(self, choice: Choice) -> int:
        """Tokens to compute before the next one can be sampled: at least the last, also when it is in the store."""
        assert choice.sequence is not None
        return max(choice.sequence.num_tokens - choice.sequence.stored, 1)

    def _work(self, choice: Choice, count: int) -> Work:
        sequence = choice.sequence
        assert sequence is not None
        start = min(sequence.stored, sequence.num_tokens - 1)
        end = start + count
        tokens = bytes(sequence.packed[start * TOKEN_BYTES : end * TOKEN_BYTES])
        return Work(choice.seat, start, tokens, sequence.stored, end == sequence.num_tokens)

    # --- admission ---

    def _admit(self, work: list[Work], budget: int) -> list[Seated]:
        """Start waiting choices in order of arrival; one that waits for memory may be overtaken so many times."""
        seated: list[Seated] = []
        blocked: list[Choice] = []
        for choice in self._waiting[:]:
            if budget <= 0 or not self._free_seats or len(blocked) >= _LOOKAHEAD:
                break
            if choice.held_back:
                continue
            if any(waiting.overtaken >= self.config.max_overtakes for waiting in blocked):
                break
            started = self._start(choice)
            if started is None:
                if not choice.held_back:
                    blocked.append(choice)
                continue
            for waiting in blocked:
                waiting.overtaken += 1
            seated.append(started)
            count = min(self._remaining(choice), budget)
            work.append(self._work(choice, count))
            budget -= count
        return seated

    def _start(self, choice: Choice) -> Seated | None:
        """Give a choice memory and a seat; None if it has to wait, for memory or for a leader."""
        reserve = len(self._running)  # a block for each to grow into, or the newcomer would be preempted at once
        parent = self._parent(choice)
        if parent and self.memory.can_fork(parent) and self.memory.available > reserve:
            sequence = self.memory.fork(parent)
        else:
            reads = choice.reads_cache
            match = self.memory.match(choice.request.scope, choice.known) if reads else self.memory.unmatched()
            leader = self.memory.leader(match, choice.request.scope, choice.known) if reads else None
            if leader is not None:
                choice.follows = self._by_sequence[leader]
                choice.until = self.memory.shared_with(leader, choice.known)
                return None
            if reads and self.memory.in_flight(match, choice.request.scope, choice.known):
                return None
            if not self.memory.can_admit(choice.request.scope, match, len(choice.known) // TOKEN_BYTES, reserve):
                return None
            sequence = self.memory.admit(
                choice.request.scope, choice.known, match, resumed=choice.started, unshared=not choice.request.store
            )
        choice.sequence, choice.follows, choice.forks = sequence, None, None
        if choice.parked is not None:
            self.memory.unpark(choice.parked)
            self.counters.swapped_in_blocks += sequence.loaded
            choice.parked = None
        self._count_query(choice)
        self._waiting.remove(choice)
        insort(self._running, choice, key=lambda running: running.arrival)
        self._by_sequence[sequence] = choice
        choice.seat = self._free_seats.pop()
        return Seated(choice.seat, choice.request.request_id, choice.index, list(sequence.table))

    def _parent(self, choice: Choice) -> Sequence | None:
        """The sequence of the choice's first sibling, if it has stored the whole prompt and nothing more."""
        sibling = choice.forks
        if sibling is None or sibling.sequence is None:
            return None
        return sibling.sequence if sibling.sequence.stored == choice.prompt_tokens else None

    def _count_query(self, choice: Choice) -> None:
        """Count a request once, when its first choice starts; resuming after a preemption is no hit."""
        assert choice.sequence is not None
        if choice.started:
            return
        choice.started = True
        # The last token is computed even if it is in the store.
        choice.reached = min(choice.sequence.stored, choice.prompt_tokens - 1)
        if choice.request.request_id not in self._cached:
            self._cached[choice.request.request_id] = choice.reached
            self.counters.queries += choice.prompt_tokens
            self.counters.hits += choice.reached
            self._tenant(choice).queries += choice.prompt_tokens
            self._tenant(choice).hits += choice.reached
            self.counters.bypassed += 0 if choice.request.read_cache else choice.prompt_tokens
            self.counters.below_granularity += choice.prompt_tokens < self.memory.block_size

    # --- results ---

    def _store(self, choice: Choice, work: Work) -> None:
        sequence = choice.sequence
        assert sequence is not None
        end = work.start + len(work.tokens) // TOKEN_BYTES
        self.counters.recomputed_tokens += max(min(choice.reached, end) - work.start, 0)
        fresh = min(end, choice.prompt_tokens) - max(work.start, choice.reached)
        self.counters.computed_prompt_tokens += max(fresh, 0)
        choice.reached = max(choice.reached, end)
        if end > sequence.stored:
            edit = self.memory.mark_stored(sequence, end)
            if edit is not None:
                self._edits.append(SeatEdit(choice.seat, edit))

        self._retain(choice)

    def _retain(self, choice: Choice) -> None:
        """Keep those prefixes of the prompt that are stored now and are to be kept: once, for the first choice."""
        request, sequence = choice.request, choice.sequence
        assert sequence is not None
        if choice.index > 0:
            return
        while choice.breakpoints < len(request.retain):
            tokens, seconds = request.retain[choice.breakpoints]
            if tokens > sequence.stored:
                return
            choice.breakpoints += 1
            self._note_retained(request, self.memory.retain(sequence, tokens, self._now + seconds))
        ready = sequence.stored >= choice.prompt_tokens and choice.breakpoints == len(request.retain)
        if request.pin is not None and ready:
            choice.breakpoints += 1
            pin = self.memory.pin(request.pin, sequence, choice.prompt_tokens)
            self._note_retained(request, 0 if pin is None else pin.tokens)

    def _note_retained(self, request: Request, tokens: int) -> None:
        self._retained[request.request_id] = max(self._retained.get(request.request_id, 0), tokens)

    def _tenant(self, choice: Choice) -> TenantCounters:
        return self.counters.of(self.memory.shares.label(choice.request.scope.tenant))

    def _append(self, choice: Choice, token: int) -> Outcome:
        request, sequence = choice.request, choice.sequence
        assert sequence is not None
        choice.generated += 1
        self.memory.record(sequence, token)
        ending: Ending | None = None
        if token in choice.end_ids:
            ending = Ending.STOP
        elif choice.generated >= request.max_tokens:
            ending = Ending.LENGTH
        outcome = self._outcome(choice, token, ending)
        if ending is not None:
            self._end(choice)
        return outcome

    def _outcome(self, choice: Choice, token: int | None, ending: Ending | None) -> Outcome:
        request_id = choice.request.request_id
        return Outcome(
            request_id, choice.index, token, ending, self._cached[request_id], self._retained.get(request_id, 0)
        )

    # --- leaving ---

    def _end(self, choice: Choice) -> None:
        if choice.sequence is None:
            self._waiting.remove(choice)
            if choice.parked is not None:
                self.memory.discard(choice.parked)
        else:
            self.memory.release(choice.sequence)
            self._leave_seat(choice)
        choices = self._by_request[choice.request.request_id]
        choices.remove(choice)
        if not choice.generated:
            for sibling in choices:
                sibling.forks = None
        if not choices:
            del self._by_request[choice.request.request_id]
            self._cached.pop(choice.request.request_id, None)
            self._retained.pop(choice.request.request_id, None)

    def _leave_seat(self, choice: Choice) -> None:
        assert choice.sequence is not None
        del self._by_sequence[choice.sequence]
        choice.sequence = None
        self._running.remove(choice)
        self._edits = [edit for edit in self._edits if edit.seat != choice.seat]
        self._vacated.append(choice.seat)
        self._free_seats.append(choice.seat)
        choice.seat = -1
