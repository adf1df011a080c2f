"""One of a request's choices on its way through the scheduler."""

from __future__ import annotations

from pageinn.memory.host import Parked
from pageinn.memory.manager import Sequence
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.scheduling.plan import Request


class Choice:
    """Waiting when it has no sequence, running when it has one.

    known: the packed tokens to start from, the generated ones included after a preemption. follows: the choice that
    computes what this one waits for, until that has stored `until` tokens. forks: the first of a request's choices,
    which the others fork from. reached: the most tokens this choice ever had stored. parked: what is held for it on the
    host, after a preemption by swap. breakpoints: how many of the request's prefixes to retain are dealt with.
    """

    __slots__ = (
        "arrival",
        "breakpoints",
        "end_ids",
        "follows",
        "forks",
        "generated",
        "index",
        "known",
        "overtaken",
        "parked",
        "reached",
        "request",
        "seat",
        "sequence",
        "started",
        "until",
    )

    def __init__(self, request: Request, index: int, arrival: int) -> None:
        self.request = request
        self.index = index
        self.end_ids = request.end_ids
        self.arrival = (arrival, index)
        self.known = request.prompt
        self.generated = 0
        self.breakpoints = 0
        self.reached = 0
        self.started = False
        self.sequence: Sequence | None = None
        self.parked: Parked | None = None
        self.seat = -1
        self.forks: Choice | None = None
        self.follows: Choice | None = None
        self.until = 0
        self.overtaken = 0

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt) // TOKEN_BYTES

    @property
    def reads_cache(self) -> bool:
        """Whether it may start from what is known: once the first choice has got through its prompt,
        always, unless nothing of the request is stored.
        """
        again = self.request.store and (self.index > 0 or self.generated > 0)
        return self.request.read_cache or again

    @property
    def held_back(self) -> bool:
        """Whether another choice is still to compute what this one will reuse."""
        if self.forks is not None and not self.forks.generated:
            return True
        if self.follows is None or self.follows.sequence is None:
            return False
        return self.follows.sequence.stored < self.until
