"""What goes into the scheduler and what comes out: events, plans and outcomes, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from pageinn.memory.moves import Move
from pageinn.memory.retention import Retain
from pageinn.memory.scopes import Scope
from pageinn.memory.sequence import TableEdit
from pageinn.scheduling.config import Preemption
from pageinn.scheduling.cost import Measured


@dataclass(frozen=True)
class Request:
    """A request as the scheduler sees it. prompt: packed token ids (pageinn.memory.tokens). n: choices to generate.

    stop_ids end a choice like eos_ids, and also when ignore_eos is set. read_cache False: the first choice computes
    the whole prompt, whatever is known of it; what it computes is kept like any other. store False: nothing that it
    computes is shared or kept; neither of them, and it has no part in reuse at all. retain: prefixes of the prompt to
    keep for a time. pin: the name under which the whole prompt is to be pinned. queue_timeout: seconds after which it
    is dropped if it has not started, None for the scheduler's own.
    """

    request_id: str
    prompt: bytes
    scope: Scope
    max_tokens: int
    n: int = 1
    eos_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    stop_ids: frozenset[int] = frozenset()
    read_cache: bool = True
    store: bool = True
    retain: tuple[Retain, ...] = ()
    pin: str | None = None
    queue_timeout: float | None = None

    @property
    def end_ids(self) -> frozenset[int]:
        """The ids that end a choice."""
        return self.stop_ids if self.ignore_eos else self.eos_ids | self.stop_ids


class Arrive(NamedTuple):
    """A request that `Scheduler.refusal` has no objection to."""

    request: Request


class Abort(NamedTuple):
    """End all choices of a request and free what they hold, whatever their state; nothing more is said of it.

    Unknown ids are ignored.
    """

    request_id: str


class Stop(NamedTuple):
    """End one choice whose text reached a stop string."""

    request_id: str
    choice: int


class Weigh(NamedTuple):
    """The tenants' shares from now on: a tenant of weight 2 is served twice what one of weight 1 is, the default."""

    weights: Mapping[str, float]


Event = Arrive | Abort | Stop | Weigh | Measured


class Ending(StrEnum):
    """Why a choice ended by itself."""

    STOP = "stop"
    LENGTH = "length"
    #: The last running choice outgrew the pool.
    POOL = "pool"
    #: It never started: so many requests, or so many tokens of prompts, wait already.
    QUEUED_REQUESTS = "queued_requests"
    QUEUED_TOKENS = "queued_tokens"
    #: It never started: its time in the queue was over.
    QUEUE_TIMEOUT = "queue_timeout"


class Found(NamedTuple):
    """Prompt tokens that a request did not compute: all, those that came from the host, and those that are public."""

    cached: int
    host: int
    public: int


class Seated(NamedTuple):
    """A choice takes a seat of the persistent batch, with this block table.

    found: for the first choice of a request to start, when it does.
    """

    seat: int
    request_id: str
    choice: int
    table: list[int]
    found: Found | None = None


class SeatEdit(NamedTuple):
    """A change of the block table in a seat."""

    seat: int
    edit: TableEdit


class Work(NamedTuple):
    """Compute the packed `tokens` at positions start, start+1, … of a seat.

    Keys and values are written from position `write_from` on: what stands before is in the store already. `sample`
    asks for the token that follows the last one; its position is start + number of tokens.
    """

    seat: int
    start: int
    tokens: bytes
    write_from: int
    sample: bool


class Preempted(NamedTuple):
    """A choice that was put back, by RECOMPUTE or SWAP, and what either would have cost.

    blocks: those that it freed.
    """

    request_id: str
    choice: int
    way: Preemption
    blocks: int
    recompute_seconds: float
    swap_seconds: float


class Plan(NamedTuple):
    """One step, as a delta over the persistent batch: vacate, seat, edit tables, move blocks in order, then compute.

    ended: choices that ended without a token (they outgrew the pool, or never started).
    """

    vacated: list[int]
    seated: list[Seated]
    edits: list[SeatEdit]
    moves: list[Move]
    work: list[Work]
    ended: list[Outcome]
    preempted: list[Preempted]


class Outcome(NamedTuple):
    """What a step brought one choice: a token, an ending, or both.

    retained_tokens: how many tokens of its prompt are kept for a time, or pinned, at the request's wish.
    retry_after: for one that never started, the seconds after which to try again.
    """

    request_id: str
    choice: int
    token: int | None
    ending: Ending | None
    cached_tokens: int
    retained_tokens: int = 0
    retry_after: int | None = None


@dataclass
class TenantCounters:
    """One tenant's part of the counters of the same name."""

    queries: int = 0
    hits: int = 0
    computed_prompt_tokens: int = 0
    preemptions: int = 0
    swaps: int = 0


@dataclass
class Counters:
    """What has happened so far; all only grow, and are in tokens where nothing else is said.

    Queries and hits count a request's prompt once. computed_prompt_tokens counts what every choice computed of it (a
    fork: the last token), recomputed_tokens what a preemption made a choice compute again. bypassed is the part of the
    queries whose requests do not read the cache. swaps: the preemptions whose blocks went to the host; the blocks that
    went out with them, and those that came back in when they started again. refused and expired count requests.
    """

    queries: int = 0
    hits: int = 0
    bypassed: int = 0
    below_granularity: int = 0
    computed_prompt_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    swaps: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    refused_by_requests: int = 0
    refused_by_tokens: int = 0
    expired: int = 0
    #: By the labels of `Shares.label`, of which there are few.
    tenants: dict[str, TenantCounters] = field(default_factory=dict)

    def of(self, tenant: str) -> TenantCounters:
        """A tenant's part, by its label."""
        return self.tenants.setdefault(tenant, TenantCounters())
