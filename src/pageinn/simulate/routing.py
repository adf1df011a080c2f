"""Which replica a request goes to, decided when it arrives from what the router has sent where."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from hashlib import blake2b

from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.simulate.jobs import Job

#: Tokens that the prefix rule looks at together.
_GRAIN = 64


class Routing(StrEnum):
    """round-robin: in turn. session: a session stays where it began, a request without one goes in turn.

    prefix: where the longest part of the prompt went before, if that is at least half of it, else to the replica that
    was sent the fewest tokens (the rule of SGLang's router).
    """

    ROUND_ROBIN = "round-robin"
    SESSION = "session"
    PREFIX = "prefix"


def route(jobs: Sequence[Job], replicas: int, rule: Routing) -> list[list[Job]]:
    """Each replica's jobs, in order of time."""
    router = _Router(replicas)
    choose = {
        Routing.ROUND_ROBIN: lambda _: router.next_in_turn(),
        Routing.SESSION: router.of_session,
        Routing.PREFIX: router.of_prefix,
    }[rule]
    routed: list[list[Job]] = [[] for _ in range(replicas)]
    for job in jobs:
        routed[choose(job)].append(job)
    return routed


class _Router:
    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._turn = -1
        self._sessions: dict[str, int] = {}
        self._sent = [0] * replicas
        self._prefixes: dict[bytes, int] = {}

    def next_in_turn(self) -> int:
        self._turn = (self._turn + 1) % self._replicas
        return self._turn

    def of_session(self, job: Job) -> int:
        if not job.session:
            return self.next_in_turn()
        return self._sessions.setdefault(job.session, len(self._sessions) % self._replicas)

    def of_prefix(self, job: Job) -> int:
        prompt, step = job.request.prompt, _GRAIN * TOKEN_BYTES
        running = blake2b(repr(job.request.scope).encode(), digest_size=16)
        keys = []
        for start in range(0, len(prompt) - step + 1, step):
            running.update(prompt[start : start + step])
            keys.append(running.copy().digest())
        known = 0
        while known < len(keys) and keys[known] in self._prefixes:
            known += 1
        if known and known * step * 2 >= len(prompt):
            chosen = self._prefixes[keys[known - 1]]
        else:
            chosen = min(range(self._replicas), key=lambda replica: self._sent[replica])
        self._sent[chosen] += len(prompt) // TOKEN_BYTES
        self._prefixes.update(dict.fromkeys(keys, chosen))
        return chosen
