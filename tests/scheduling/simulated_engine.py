"""An engine without a model: it carries out plans on a store whose slots hold token histories, and proves each step.

A slot that holds the keys and values of position p of a sequence is right exactly when it was written for the tokens
0..p; so each slot remembers those, as the number of that history, and who wrote it. Before a step reads, all slots that
it reads are compared. Blocks and host slots that nobody owns are wiped at each step; a failed store leaves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pageinn.memory.manager import MemoryManager
from pageinn.memory.moves import MoveKind
from pageinn.memory.scopes import DEFAULT, PUBLIC, Scope
from pageinn.memory.tokens import TOKEN_BYTES, pack, unpack
from pageinn.scheduling.config import SchedulerConfig
from pageinn.scheduling.plan import Arrive, Ending, Event, Outcome, Plan, Request, Work
from pageinn.scheduling.scheduler import Scheduler

#: A request's id and the index of one of its choices.
Key = tuple[str, int]
NextToken = Callable[[list[int], Key], int]
#: Who wrote a slot, and the number of the history that it was written for.
Content = tuple[Scope, int]
Block = list[Content | None]

EOS = 3


def request(
    request_id: str,
    prompt: list[int],
    max_tokens: int = 4,
    *,
    n: int = 1,
    scope: Scope = DEFAULT,
    ignore_eos: bool = False,
) -> Request:
    return Request(request_id, pack(prompt), scope, max_tokens, n, frozenset([EOS]), ignore_eos)


def never_stop(history: list[int], key: Key) -> int:
    """Depends on all tokens so far, and is never the end of the text."""
    return 100 + sum(position * token for position, token in enumerate(history, 1)) % 7


class Step(NamedTuple):
    """What a step was and brought. `computed` counts each choice's tokens."""

    plan: Plan
    outcomes: list[Outcome]
    seated: dict[Key, list[int]]
    computed: dict[Key, int]


class SimulatedEngine:
    """Drives a scheduler step by step."""

    def __init__(
        self,
        memory: MemoryManager,
        config: SchedulerConfig | None = None,
        next_token: NextToken = never_stop,
        store_fails: Callable[[], bool] = lambda: False,
    ) -> None:
        self.memory = memory
        self.config = config or SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=512, max_model_len=100_000)
        self.scheduler = Scheduler(self.config, memory)
        self.next_token = next_token
        self.store_fails = store_fails
        self.requests: dict[str, Request] = {}
        self.answers: dict[Key, list[int]] = {}
        self.endings: dict[Key, Ending] = {}
        self.cached: dict[str, int] = {}
        self.computed: Counter[Key] = Counter()
        self.steps: list[Step] = []
        self._seats: dict[int, Key] = {}
        self._tables: dict[int, list[int]] = {}
        self._decoding: set[int] = set()
        self._blocks: dict[int, Block] = {}
        self._host: dict[int, Block] = {}
        # Each history has a number: that of the history before its last token, and that token, lead to it.
        self._numbers: dict[tuple[int, int], int] = {}
        self._histories: dict[Key, list[int]] = {}

    @property
    def counters(self) -> dict[str, int]:
        return vars(self.scheduler.counters)

    def arrive(self, *requests: Request) -> Step:
        return self.step([Arrive(one) for one in requests])

    def run(self, limit: int = 1000) -> int:
        """Step until nothing is left; how many steps it took. More than `limit` is a failure."""
        begin = len(self.steps)
        while not self.scheduler.idle:
            assert len(self.steps) - begin < limit, "the work does not end"
            self.step()
        self.step()
        assert self.memory.usage().in_use == 0
        assert self.memory.host_usage().held == 0
        return len(self.steps) - begin - 1

    def step(self, events: Iterable[Event] = ()) -> Step:
        events = list(events)
        for event in events:
            if isinstance(event, Arrive):
                self.requests[event.request.request_id] = event.request
        plan = self.scheduler.schedule(float(len(self.steps)), events)
        self.memory.check()
        self._seat(plan)
        self._check_shape(plan)
        failed = self._move_blocks(plan)
        for work in plan.work:
            self._write(work)
        sampled = {work.seat: self._sample(work) for work in plan.work if self._read(work)}
        computed = {self._seats[work.seat]: len(work.tokens) // TOKEN_BYTES for work in plan.work}
        self.computed.update(computed)
        seated = {(seated.request_id, seated.choice): list(seated.table) for seated in plan.seated}
        self._decoding = set(sampled)
        outcomes = [*plan.ended, *self.scheduler.commit(plan, sampled, failed)]
        self.memory.check()
        for outcome in outcomes:
            self._note(outcome)
        self.steps.append(Step(plan, outcomes, seated, computed))
        return self.steps[-1]

    # --- carrying out a plan ---

    def _seat(self, plan: Plan) -> None:
        for seat in plan.vacated:
            del self._seats[seat], self._tables[seat]
            self._decoding.discard(seat)
        for seated in plan.seated:
            assert seated.seat not in self._seats, "a seat is given twice"
            assert 0 <= seated.seat < self.config.max_num_seqs
            self._seats[seated.seat] = (seated.request_id, seated.choice)
            self._tables[seated.seat] = list(seated.table)
        for seat, edit in plan.edits:
            self._tables[seat][edit.start : edit.start + len(edit.blocks)] = edit.blocks

    def _check_shape(self, plan: Plan) -> None:
        seats = [work.seat for work in plan.work]
        assert len(set(seats)) == len(seats), "two pieces of work for one seat"
        total = sum(len(work.tokens) for work in plan.work) // TOKEN_BYTES
        assert total <= self.config.max_num_batched_tokens
        assert self._decoding <= set(seats), "a running decode got no work"
        assert self.scheduler.num_running == len(self._seats)
        assert plan.work or not self._seats, "a step without progress"

    def _move_blocks(self, plan: Plan) -> set[int]:
        """Perform the moves in order; which stores failed."""
        failed = set()
        for index, (kind, source, destination) in enumerate(plan.moves):
            if kind is MoveKind.COPY:
                self._blocks[destination] = list(self._block(source))
            elif kind is MoveKind.LOAD:
                self._blocks[destination] = list(self._host[source])
            elif self.store_fails():
                self._host[destination] = [None] * self.memory.block_size
                failed.add(index)
            else:
                self._host[destination] = list(self._block(source))
        for owner, blocks in ((self.memory.pool, self._blocks), (self.memory.host.pool, self._host)):
            for block in owner.free_blocks():
                blocks.pop(block, None)
        return failed

    def _block(self, block: int) -> Block:
        return self._blocks.setdefault(block, [None] * self.memory.block_size)

    def _tokens(self, key: Key) -> list[int]:
        return unpack(self.requests[key[0]].prompt) + self.answers.get(key, [])

    def _history(self, key: Key) -> list[int]:
        """The number of the history up to each position."""
        history = self._histories.setdefault(key, [])
        for token in self._tokens(key)[len(history) :]:
            before = history[-1] if history else -1
            history.append(self._numbers.setdefault((before, token), len(self._numbers)))
        return history

    def _write(self, work: Work) -> None:
        key, size = self._seats[work.seat], self.memory.block_size
        history, tokens = self._history(key), unpack(work.tokens)
        assert tokens == self._tokens(key)[work.start : work.start + len(tokens)]
        for position in range(max(work.start, work.write_from), work.start + len(tokens)):
            block = self._block(self._tables[work.seat][position // size])
            block[position % size] = (self.requests[key[0]].scope, history[position])

    def _read(self, work: Work) -> bool:
        """Whether to sample, once everything that the work attends to was found in its place."""
        key, size = self._seats[work.seat], self.memory.block_size
        history, scope = self._history(key), self.requests[key[0]].scope
        end = work.start + len(work.tokens) // TOKEN_BYTES
        found = [slot for block in self._tables[work.seat][: -(-end // size)] for slot in self._block(block)][:end]
        for slot, number in zip(found, history[:end], strict=True):
            assert slot is not None, "a slot was never written"
            assert slot[1] == number, "a slot holds another history"
            assert slot[0] in (scope, PUBLIC), "a slot was written by another scope"
        assert work.sample == (end == len(history))
        return work.sample

    def _sample(self, work: Work) -> int:
        key = self._seats[work.seat]
        return self.next_token(self._tokens(key), key)

    def _note(self, outcome: Outcome) -> None:
        key = (outcome.request_id, outcome.choice)
        assert key not in self.endings, "something came after the end"
        if outcome.token is not None:
            self.answers.setdefault(key, []).append(outcome.token)
        if outcome.ending is not None:
            self.endings[key] = outcome.ending
        assert self.cached.setdefault(outcome.request_id, outcome.cached_tokens) == outcome.cached_tokens
