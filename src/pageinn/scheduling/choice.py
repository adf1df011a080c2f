"""One of a request's choices on its way through the scheduler."""

from __future__ import annotations

import heapq

from pageinn.memory.host import Parked
from pageinn.memory.sequence import Sequence
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.scheduling.forecast import Asked
from pageinn.scheduling.plan import Request, Work


class Choice:
    """Waiting when it has no sequence, running when it has one.

    known: the packed tokens to start from, the generated ones included after a preemption. forks: the first of a
    request's choices, which the others fork from. held: whether another choice holds it back, as one of its followers
    or of its siblings. reached: the most tokens this choice had stored when it last left its seat, or has computed of
    them again. told: what had been generated when the forecast was last told. asked: what it would contribute to the
    forecast, while it waits. parked: what is held for it on the host, after a preemption by swap. breakpoints: how many
    of the request's prefixes to retain are dealt with. row: what the next step computes of it, once it decodes.
    """

    __slots__ = (
        "_followers",
        "arrival",
        "asked",
        "breakpoints",
        "cached_tokens",
        "end_ids",
        "forks",
        "generated",
        "held",
        "index",
        "known",
        "limit",
        "overtaken",
        "parked",
        "prompt_tokens",
        "reached",
        "request",
        "request_id",
        "row",
        "seat",
        "sequence",
        "siblings",
        "started",
        "told",
    )

    def __init__(self, request: Request, index: int, arrival: int) -> None:
        self.request = request
        self.request_id = request.request_id
        self.index = index
        self.end_ids = request.end_ids
        self.limit = request.max_tokens
        self.cached_tokens = 0
        self.arrival = (arrival, index)
        self.known = request.prompt
        self.prompt_tokens = len(request.prompt) // TOKEN_BYTES
        self.generated = 0
        self.breakpoints = 0
        self.reached = 0
        self.started = False
        self.sequence: Sequence | None = None
        self.parked: Parked | None = None
        self.seat = -1
        self.row: Work | None = None
        self.forks: Choice | None = None
        self.siblings: list[Choice] = []
        self.told = 0
        self.asked: Asked | None = None
        self.held = False
        self.overtaken = 0
        self._followers: list[tuple[int, tuple[int, int], Choice]] = []

    @property
    def longest(self) -> int:
        """The most tokens that it can ever have stored: the last one generated never is."""
        return self.prompt_tokens + self.request.max_tokens - 1

    @property
    def reads_cache(self) -> bool:
        """Whether it may start from what is known: once the first choice has got through its prompt,
        always, unless nothing of the request is stored.
        """
        again = self.request.store and (self.index > 0 or self.generated > 0)
        return self.request.read_cache or again

    @property
    def leads(self) -> bool:
        """Whether others wait for what it computes."""
        return bool(self._followers)

    def hold_fork(self, sibling: Choice) -> None:
        """Hold a sibling back until this choice has got through their prompt."""
        sibling.forks, sibling.held = self, True
        self.siblings.append(sibling)

    def hold_follower(self, follower: Choice, until: int) -> None:
        """Hold a choice back until this one has stored so many tokens."""
        follower.held = True
        heapq.heappush(self._followers, (until, follower.arrival, follower))

    def let_go(self, stored: int | None = None) -> list[Choice]:
        """The followers that wait for no more than `stored` tokens, or all; they are held no longer."""
        free = []
        while self._followers and (stored is None or self._followers[0][0] <= stored):
            follower = heapq.heappop(self._followers)[2]
            if follower.held:
                follower.held = False
                free.append(follower)
        return free

    def let_go_forks(self) -> list[Choice]:
        """The siblings, which are held no longer."""
        free = [sibling for sibling in self.siblings if sibling.held]
        self.siblings = []
        for sibling in free:
            sibling.held = False
        return free


def choices_of(request: Request, arrival: int) -> list[Choice]:
    """A request's choices; the first holds the others back."""
    first, *others = (Choice(request, index, arrival) for index in range(request.n))
    for sibling in others:
        first.hold_fork(sibling)
    return [first, *others]
