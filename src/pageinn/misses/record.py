"""What is kept of a request: its tokens for a while, what it found, and why it found no more."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pageinn.explain.culprit import WORTH, Parting
from pageinn.memory.scopes import Scope
from pageinn.memory.tokens import TOKEN_BYTES


class End(StrEnum):
    """Why a match ended where it did."""

    #: All of the prompt was there; its last token is computed all the same.
    WHOLE = "whole prompt"
    #: All that an earlier request left was there, and the prompt goes on.
    GOES_ON = "goes on"
    #: It differs from the nearest earlier prompt; `Fault` says whether that is to be blamed.
    PARTED = "parted"
    #: It begins like no earlier prompt.
    NEW = "new"
    #: An earlier request had computed more, which is gone: evicted, dropped by a reset, or never kept.
    EVICTED = "evicted"
    RESET = "reset"
    NOT_KEPT = "not kept"
    #: Another scope has more of it, which this one may not read; told to operators alone.
    SCOPE = "other scope"
    BELOW = "below granularity"
    #: It does not read the cache.
    NOT_READ = "not read"
    #: What it found was left by a request that is not on record any more.
    UNKNOWN = "off the record"


#: Ends at which nothing more of the prompt was to be found in its own scope.
_OWN = frozenset({End.PARTED, End.NEW, End.GOES_ON, End.UNKNOWN})


class Asked(NamedTuple):
    """A request as it comes. packed: its prompt (pageinn.memory.tokens). why_not: why it does not read the cache, or
    "". stores: whether what it computes may be read by others.
    """

    id: str
    scope: Scope
    packed: bytes
    why_not: str
    stores: bool


class Origin(NamedTuple):
    """Where the tokens that were found stood, and how many of them are public."""

    device: int
    host: int
    disk: int
    public: int


class Near(NamedTuple):
    """The number of an earlier request, and how many leading tokens it has in common."""

    number: int
    shared: int


class Fault(NamedTuple):
    """Where the prompt parts from that of request `earlier`: behind `position` tokens, at a line (from 1) and column of
    its part. lost: about how many tokens an earlier prompt held and were computed again because of it. parting: with
    its texts cut short.
    """

    earlier: int
    position: int
    line: int
    column: int
    lost: int
    parting: Parting


class Record:
    """A request that has got its first token. tokens: those of its prompt. packed: prompt and answer, b"" once there
    is no room for them. shared: leading tokens in common with the request `nearest`, -1 if there is none. elsewhere:
    those in common with a request of another scope. fault: None until it was looked at, and where none was found.
    """

    __slots__ = (
        "cached",
        "elsewhere",
        "end",
        "fault",
        "id",
        "looked",
        "nearest",
        "number",
        "origin",
        "packed",
        "scope",
        "shared",
        "sketch",
        "stores",
        "tokens",
        "when",
        "why",
    )

    def __init__(self, number: int, asked: Asked, when: float, cached: int, origin: Origin | None = None) -> None:
        self.number = number
        self.id = asked.id
        self.scope = asked.scope
        self.when = when
        self.packed = asked.packed
        self.stores = asked.stores
        self.tokens = len(asked.packed) // TOKEN_BYTES
        self.cached = cached
        self.origin = origin
        self.shared = 0
        self.nearest = -1
        self.elsewhere = 0
        self.end = End.NEW
        self.why = asked.why_not
        self.looked = False
        self.fault: Fault | None = None
        self.sketch: NDArray[np.uint64] | None = None

    @property
    def told(self) -> End:
        """Why the match ended, to somebody who may know of other scopes."""
        least = WORTH if self.fault is None else self.fault.lost
        more = self.elsewhere - max(self.shared, self.cached) >= least
        return End.SCOPE if more and self.end in _OWN else self.end

    @property
    def blame(self) -> Fault | None:
        """The fault, where another scope does not have more."""
        return None if self.told is End.SCOPE else self.fault

    @property
    def pending(self) -> bool:
        """Whether only the texts can tell more, and nobody has looked at them yet."""
        return self.end is End.PARTED and not self.looked

    @property
    def computed(self) -> int:
        """Prompt tokens that were computed."""
        return self.tokens - self.cached

    @property
    def prompt(self) -> bytes:
        """The prompt alone, packed; b"" once there is no room for it."""
        return self.packed[: self.tokens * TOKEN_BYTES]
