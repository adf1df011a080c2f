"""Choices that wait, in the order in which they are looked at.

Nothing costs more for a longer queue than finding a place in a sorted list.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Collection, Generator

from pageinn.scheduling.choice import Choice
from pageinn.scheduling.shares import Shares


class WaitingQueue:
    """Those that were preempted first, then the tenants by turns, each one's choices in order of arrival.

    A choice that waits for another one's tokens is held by that one and not in here.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._preempted: list[Choice] = []
        self._tenants: dict[str, list[Choice]] = {}
        # One entry a tenant, with its counter as it was: counters only grow, so that is a lower bound.
        self._turns: list[tuple[float, str]] = []
        self._entered: set[str] = set()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, choice: Choice) -> None:
        """Put a choice in its place."""
        self._length += 1
        if choice.started:
            insort(self._preempted, choice, key=_arrival)
            return
        tenant = choice.request.scope.tenant
        insort(self._tenants.setdefault(tenant, []), choice, key=_arrival)
        self._enter(tenant)

    def remove(self, choice: Choice) -> None:
        """Take a choice out."""
        self._length -= 1
        tenant = choice.request.scope.tenant
        waiting = self._preempted if choice.started else self._tenants[tenant]
        place = bisect_left(waiting, choice.arrival, key=_arrival)
        assert waiting[place] is choice
        del waiting[place]
        if not waiting and not choice.started:
            del self._tenants[tenant]

    def candidates(self, passed_over: Collection[str] = ()) -> Generator[Choice, None, None]:
        """Each waiting choice once; the one that came last may have been removed meanwhile. Close it when done.

        passed_over: tenants whose choices are left out; may grow meanwhile.

        A tenant whose choice was looked at moves back by that choice's prompt, whether it could start or not: one
        tenant's choices that wait for memory do not keep another's from being looked at.
        """
        for choice in self._preempted[:]:
            if choice.request.scope.tenant not in passed_over:
                yield choice
        looked_at: list[str] = []
        near: list[tuple[float, str, int]] = []
        try:
            while True:
                while self._turns and (not near or self._turns[0][0] <= near[0][0]):
                    _, tenant = heapq.heappop(self._turns)
                    looked_at.append(tenant)
                    if tenant in self._tenants:
                        heapq.heappush(near, (self._shares.served(tenant), tenant, 0))
                if not near:
                    return
                counter, tenant, place = heapq.heappop(near)
                waiting = self._tenants.get(tenant, [])
                if place < len(waiting) and tenant not in passed_over:
                    choice = waiting[place]
                    yield choice
                    stays = place < len(waiting) and waiting[place] is choice
                    cost = self._shares.cost(tenant, choice.prompt_tokens)
                    heapq.heappush(near, (counter + cost, tenant, place + stays))
        finally:
            for tenant in looked_at:
                self._entered.remove(tenant)
                if tenant in self._tenants:
                    self._enter(tenant)

    def _enter(self, tenant: str) -> None:
        if tenant not in self._entered:
            self._entered.add(tenant)
            heapq.heappush(self._turns, (self._shares.served(tenant), tenant))


def _arrival(choice: Choice) -> tuple[int, int]:
    return choice.arrival
