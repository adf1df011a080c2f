"""Who owns how many blocks. The sums over all accounts, with the free blocks, close to the pool at any moment."""

from __future__ import annotations

from typing import NamedTuple

from pageinn.memory.scopes import Scope


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

    hosted: its slots in the host pool; the other counts are of blocks on the device.
    """

    __slots__ = ("hosted", "kept", "number", "pinned", "private", "scope", "sequences")

    def __init__(self, scope: Scope, number: int) -> None:
        self.scope = scope
        self.number = number
        self.private = 0
        self.pinned = 0
        self.kept = 0
        self.hosted = 0
        self.sequences = 0

    @property
    def idle(self) -> bool:
        """Whether nothing belongs to the account, so that it can be forgotten."""
        return not (self.private or self.pinned or self.kept or self.hosted or self.sequences)


class Ledger:
    """All accounts, by scope. Salts make scopes unbounded in number, so idle ones are closed."""

    def __init__(self, public: Scope) -> None:
        self._accounts: dict[Scope, Account] = {}
        self._next_number = 0
        self.public = self.open(public)

    def open(self, scope: Scope) -> Account:
        """The account of a scope, opened if need be."""
        account = self._accounts.get(scope)
        if account is None:
            account = self._accounts[scope] = Account(scope, self._next_number)
            self._next_number += 1
        return account

    def find(self, scope: Scope) -> Account | None:
        """The account of a scope that owns something, or None."""
        return self._accounts.get(scope)

    def close_if_idle(self, account: Account) -> None:
        """Forget an account that owns nothing. The public one stays."""
        if account.idle and account is not self.public:
            self._accounts.pop(account.scope, None)

    def all(self) -> list[Account]:
        """The open accounts."""
        return list(self._accounts.values())
