"""Requests that have not started: how many there may be, until when they wait, and how fast they get their turn."""

from __future__ import annotations

import heapq
from collections import deque
from math import ceil
from typing import NamedTuple

from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.scheduling.config import SchedulerConfig
from pageinn.scheduling.plan import Ending, Request

#: The rate is that of the last so many seconds.
_RATE_SECONDS = 60.0
#: Nobody is told to come back later than that, in seconds: rates change.
_LONGEST_RETRY = 600
#: Outdated deadlines that are left lying.
_SLACK = 64


class Queued(NamedTuple):
    """Requests that have not started, and the tokens of their prompts."""

    requests: int
    tokens: int


class _Waiting(NamedTuple):
    tenant: str
    tokens: int
    deadline: float | None


class Backlog:
    """Counts requests from their arrival to the start of their first choice."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._waiting: dict[str, _Waiting] = {}
        self.tokens = 0
        #: Those that are still to arrive and wait elsewhere, as the driver says: the bounds count them too.
        self.elsewhere = Queued(0, 0)
        #: By tenant, those alone that have any.
        self.tenants: dict[str, Queued] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._starts: deque[tuple[float, int]] = deque()
        self._started_tokens = 0
        #: Until when the room that comes free is spoken for by those who were told when to come back.
        self._promised = 0.0

    @property
    def requests(self) -> int:
        """Requests that have not started."""
        return len(self._waiting)

    @property
    def all(self) -> Queued:
        """What waits here and elsewhere."""
        return Queued(self.requests + self.elsewhere.requests, self.tokens + self.elsewhere.tokens)

    def objection(self, request: Request) -> Ending | None:
        """Which bound one more request would pass. Where nobody waits there is always room."""
        config = self._config
        requests, queued = self.all
        if config.max_queued_requests is not None and requests >= config.max_queued_requests:
            return Ending.QUEUED_REQUESTS
        if config.max_queued_tokens is not None and requests and queued + _tokens(request) > config.max_queued_tokens:
            return Ending.QUEUED_TOKENS
        return None

    def add(self, request: Request, now: float) -> None:
        """Take a request in, with its deadline."""
        timeout = self._config.queue_timeout if request.queue_timeout is None else request.queue_timeout
        deadline = None if timeout is None else now + timeout
        waiting = _Waiting(request.scope.tenant, _tokens(request), deadline)
        self._waiting[request.request_id] = waiting
        self._count(waiting, 1)
        if deadline is not None:
            heapq.heappush(self._deadlines, (deadline, request.request_id))
            if len(self._deadlines) > 2 * len(self._waiting) + _SLACK:
                self._deadlines = [entry for entry in self._deadlines if self._current(entry)]
                heapq.heapify(self._deadlines)

    def start(self, request_id: str, now: float) -> None:
        """A request's first choice starts; no more than once."""
        tokens = self._take(request_id)
        if tokens is not None:
            self._starts.append((now, tokens))
            self._started_tokens += tokens
            self._forget_starts(now)

    def forget(self, request_id: str) -> None:
        """A request is gone, started or not."""
        self._take(request_id)

    def expired(self, now: float) -> list[str]:
        """Requests whose time is over before they started."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now:
            entry = heapq.heappop(self._deadlines)
            if self._current(entry):
                late.append(entry[1])
        return late

    def _current(self, entry: tuple[float, str]) -> bool:
        """Whether it is that of a request that waits, and not of an earlier one of the same id."""
        deadline, request_id = entry
        return request_id in self._waiting and self._waiting[request_id].deadline == deadline

    def retry_after(self, request: Request, ending: Ending, now: float) -> int:
        """Seconds, at least 1, after which a request that is turned away may be sent again, at the rate of late.

        By then the queue has room for it, or, for one that waited too long, is so short that its turn comes in time.
        Of several, each is told its own place in what comes free, so that they do not come back at once for the first;
        none is told more than the whole queue takes. Where nothing has started of late there is no rate: a minute.
        """
        self._forget_starts(now)
        if not self._started_tokens:
            return int(_RATE_SECONDS) if self.all.tokens else 1
        pace = max(now - self._starts[0][0], 1.0) / self._started_tokens
        whole = now + self.all.tokens * pace
        room = max(now + self._in_the_way(request, ending, pace) * pace, self._promised)
        self._promised = min(room + _tokens(request) * pace, whole)
        return min(max(ceil(min(room, whole) - now), 1), _LONGEST_RETRY)

    def _in_the_way(self, request: Request, ending: Ending, pace: float) -> float:
        """Tokens that have to start before a request is taken in, or, for one that waited too long, started in time."""
        config = self._config
        requests, tokens = self.all
        match ending:
            case Ending.QUEUED_REQUESTS if config.max_queued_requests is not None:
                return tokens * (requests + 1 - config.max_queued_requests) / requests
            case Ending.QUEUED_TOKENS if config.max_queued_tokens is not None:
                return tokens + _tokens(request) - config.max_queued_tokens
            case _:
                timeout = config.queue_timeout if request.queue_timeout is None else request.queue_timeout
                return tokens if timeout is None else tokens - timeout / pace

    def _forget_starts(self, now: float) -> None:
        while self._starts and self._starts[0][0] <= now - _RATE_SECONDS:
            self._started_tokens -= self._starts.popleft()[1]

    def _take(self, request_id: str) -> int | None:
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return None
        self._count(waiting, -1)
        return waiting.tokens

    def _count(self, waiting: _Waiting, sign: int) -> None:
        self.tokens += sign * waiting.tokens
        requests, tokens = self.tenants.pop(waiting.tenant, (0, 0))
        if requests + sign:
            self.tenants[waiting.tenant] = Queued(requests + sign, tokens + sign * waiting.tokens)


def _tokens(request: Request) -> int:
    return len(request.prompt) // TOKEN_BYTES
