"""Whose turn it is: what each tenant was served so far, by weight.

A virtual token counter per tenant (Sheng et al., "Fairness in Serving Large Language Models", 2024, arXiv:2401.00588):
of the tenants that wait, the one that was served least comes next, and who was away does not save up a claim.
"""

from __future__ import annotations

from collections.abc import Mapping

#: What a generated token counts, a computed prompt token being 1. The paper's value.
GENERATED = 2.0
#: Counters kept; beyond that, those of absent tenants that would start no lower are forgotten.
_MAX_COUNTERS = 4096


class Shares:
    """Virtual counters, which only grow. Weights are 1 where nothing else is said."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._present: dict[str, int] = {}
        self._weights: dict[str, float] = {}
        self._floor = 0.0

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Set the weights: a tenant of weight 2 gets twice what one of weight 1 gets. ValueError for 0 or less."""
        if any(not weight > 0 for weight in weights.values()):
            raise ValueError("a tenant's weight must be above 0")
        self._weights = dict(weights)

    def enter(self, tenant: str) -> None:
        """One more request of a tenant. One that had none starts no lower than who came last into its turn."""
        present = self._present.get(tenant, 0)
        self._present[tenant] = present + 1
        if not present:
            if len(self._served) >= _MAX_COUNTERS:
                self._forget()
            self._served[tenant] = max(self._served.get(tenant, 0.0), self._floor)

    def leave(self, tenant: str) -> None:
        """One request of a tenant less."""
        self._present[tenant] -= 1
        if not self._present[tenant]:
            del self._present[tenant]

    def charge(self, tenant: str, tokens: float) -> None:
        """Count what a tenant gets, in prompt tokens."""
        self._served[tenant] += self.cost(tenant, tokens)

    def cost(self, tenant: str, tokens: float) -> float:
        """By how much so many tokens move a tenant's counter."""
        return tokens / self._weights.get(tenant, 1.0)

    def served(self, tenant: str) -> float:
        """The counter of a tenant that is here."""
        return self._served[tenant]

    def turn(self, tenant: str) -> None:
        """A tenant's turn came."""
        self._floor = max(self._floor, self._served[tenant])

    def _forget(self) -> None:
        kept = {name: value for name, value in self._served.items() if value > self._floor or name in self._present}
        self._served = kept
