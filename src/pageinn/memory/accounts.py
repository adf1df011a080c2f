"""Who owns how many blocks. The sums over all accounts, with the free blocks, close to the pool at any moment."""

from __future__ import annotations

from typing import NamedTuple

from pageinn.memory.scopes import Scope
from pageinn.memory.shares import Holding, Shares


class Usage(NamedTuple):
    """Blocks by state: `in_use` by running sequences, privately or pinned; `kept` for reuse, evictable."""

    free: int
    kept: int
    in_use: int

    @property
    def total(self) -> int:
        """All blocks of the pool."""
        return self.free + self.kept + self.in_use


class HostUsage(NamedTuple):
    """Host slots by state: `held` for parked sequences or given out to be filled; `kept` for reuse, and droppable."""

    free: int
    kept: int
    held: int

    @property
    def total(self) -> int:
        """All slots of the host pool."""
        return self.free + self.kept + self.held


class Account:
    """The blocks of one scope, kept current by whoever moves a block. `number` is never given to another scope.

    hosted: its slots in the host pool; the other counts are of blocks on the device, and what is added to them is added
    to the tenant's `holding` too. An account that will never own anything needs none.
    """

    __slots__ = ("_kept", "_pinned", "_private", "holding", "hosted", "number", "scope", "sequences")

    def __init__(self, scope: Scope, number: int, holding: Holding | None = None) -> None:
        self.scope = scope
        self.number = number
        self.holding = holding or Holding(scope.tenant)
        self._private = 0
        self._pinned = 0
        self._kept = 0
        self.hosted = 0
        self.sequences = 0

    @property
    def private(self) -> int:
        """Blocks of one running sequence each."""
        return self._private

    @private.setter
    def private(self, blocks: int) -> None:
        self.holding.active += blocks - self._private
        self._private = blocks

    @property
    def pinned(self) -> int:
        """Blocks of the tree that running sequences use."""
        return self._pinned

    @pinned.setter
    def pinned(self, blocks: int) -> None:
        self.holding.active += blocks - self._pinned
        self._pinned = blocks

    @property
    def kept(self) -> int:
        """Blocks of the tree that nobody uses."""
        return self._kept

    @kept.setter
    def kept(self, blocks: int) -> None:
        self.holding.kept += blocks - self._kept
        self._kept = blocks

    @property
    def idle(self) -> bool:
        """Whether nothing belongs to the account, so that it can be forgotten."""
        return not (self.private or self.pinned or self.kept or self.hosted or self.sequences)


class Ledger:
    """All accounts, by scope. Salts make scopes unbounded in number, so idle ones are closed."""

    def __init__(self, public: Scope, shares: Shares) -> None:
        self._shares = shares
        self._accounts: dict[Scope, Account] = {}
        self._next_number = 0
        self.public = self.open(public)

    def open(self, scope: Scope) -> Account:
        """The account of a scope, opened if need be."""
        account = self._accounts.get(scope)
        if account is None:
            account = self._accounts[scope] = Account(scope, self._next_number, self._shares.open(scope.tenant))
            self._next_number += 1
        return account

    def find(self, scope: Scope) -> Account | None:
        """The account of a scope that owns something, or None."""
        return self._accounts.get(scope)

    def close_if_idle(self, account: Account) -> None:
        """Forget an account that owns nothing. The public one stays."""
        known = self._accounts.get(account.scope) is account
        if account.idle and known and account is not self.public:
            del self._accounts[account.scope]
            self._shares.close(account.holding)

    def all(self) -> list[Account]:
        """The open accounts."""
        return list(self._accounts.values())
