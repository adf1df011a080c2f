"""Blocks from disk for requests that arrive: loaded beside the step loop while the request waits, if that pays."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pageinn.engine.disk_index import DiskIndex, Run
from pageinn.engine.disk_worker import DiskWorker, Load
from pageinn.memory.manager import MemoryManager
from pageinn.memory.matching import Match
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.scheduling.backlog import Queued
from pageinn.scheduling.cost import Rates
from pageinn.scheduling.plan import Request
from pageinn.store.kv_store import Bytes

#: How much longer than expected a load may take.
_LATE_SECONDS, _LATE_FACTOR = 2.0, 4.0


class _Found(NamedTuple):
    """What of a prompt is in memory, up to the block `start`, and what the disk has of the rest."""

    match: Match
    start: int
    runs: list[Run]


class _Waiter(NamedTuple):
    """A request that waits. start: the first block that it lacked when it began to."""

    request: Request
    start: int


class _Loading:
    """A load, what it is of, who waits for it, and until when (seconds)."""

    def __init__(self, load: Load, runs: list[Run], slots: list[int], packed: bytes, deadline: float) -> None:
        self.load = load
        self.runs = runs
        self.slots = slots
        self.packed = packed
        self.deadline = deadline
        self.waiting: list[_Waiter] = []


class PrefetchCounts(NamedTuple):
    """In tokens: looked up on disk, loaded from there, found there but cheaper to compute. late: loads given up."""

    queries: int
    hits: int
    declined: int
    late: int


class Prefetch:
    """Belongs to the step loop. host: the host pool's bytes, uint8 [slots, block bytes]."""

    def __init__(
        self,
        index: DiskIndex,
        worker: DiskWorker,
        memory: MemoryManager,
        host: Bytes,
        rates: Rates,
        clock: Callable[[], float],
    ) -> None:
        self._index = index
        self._worker = worker
        self._memory = memory
        self._host = host
        self._rates = rates
        self._clock = clock
        self._loadings: list[_Loading] = []
        self._by_key: dict[bytes, _Loading] = {}
        #: Given up, but perhaps still in the thread's hands.
        self._late: list[Load] = []
        self.counts = PrefetchCounts(0, 0, 0, 0)
        #: Tokens that came from disk while a request waited, until it starts.
        self.loaded: dict[str, int] = {}

    @property
    def waiting(self) -> Queued:
        """The requests that wait for the disk."""
        prompts = [len(waiter.request.prompt) for loading in self._loadings for waiter in loading.waiting]
        return Queued(len(prompts), sum(prompts) // TOKEN_BYTES)

    def arrive(self, request: Request) -> bool:
        """Look a request up on disk; True if it is to wait until `poll` returns it."""
        if not request.read_cache:
            return False
        found = self._find(request)
        whole = len(request.prompt) // self._memory.tree.block_bytes
        self._count(queries=(whole - found.start) * self._memory.block_size)
        return self._wait(request, found)

    def forget(self, request_id: str) -> None:
        """A request has gone; what only it waited for is given up."""
        self.loaded.pop(request_id, None)
        for loading in self._loadings[:]:
            loading.waiting = [waiter for waiter in loading.waiting if waiter.request.request_id != request_id]
            if not loading.waiting:
                self._finish(loading)

    def poll(self) -> list[Request]:
        """The requests that need not wait any more: all has arrived, or is too late. Call it between steps."""
        self._late = [load for load in self._late if not load.returned]
        ready: list[Request] = []
        now = self._clock()
        for loading in self._loadings[:]:
            returned = loading.load.returned
            if not returned and now < loading.deadline:
                continue
            self._count(late=0 if returned else 1)
            self._finish(loading)
            for request, lacked in loading.waiting:
                found = self._find(request)
                # There may be more of a prompt on disk than of the one whose load it waited for. But a load that has
                # brought it no further (it found no place, or lost it again) is not tried once more.
                if not (returned and found.start > lacked and self._wait(request, found)):
                    ready.append(request)
        return ready

    def clear(self) -> list[Request]:
        """Give up all loads; the requests that waited for them."""
        waiting = [waiter.request for loading in self._loadings for waiter in loading.waiting]
        for loading in self._loadings[:]:
            loading.load.end()
            loading.load.done = 0
            self._finish(loading)
        return waiting

    # --- inside ---

    def _find(self, request: Request) -> _Found:
        match = self._memory.match(request.scope, request.prompt)
        start = match.place.offset // self._memory.tree.block_bytes
        if self._memory.leader(match, request.scope, request.prompt) is not None:
            return _Found(match, start, [])
        below_public = match.place.node.account is self._memory.ledger.public
        return _Found(match, start, self._index.runs(request.scope, request.prompt, start, below_public))

    def _wait(self, request: Request, found: _Found) -> bool:
        """Join or begin a load, if there is something to load and that pays."""
        if not found.runs:
            return False
        loading = self._by_key.get(found.runs[0].addresses[0].key) or self._begin(request, found)
        if loading is not None:
            loading.waiting.append(_Waiter(request, found.start))
        return loading is not None

    def _begin(self, request: Request, found: _Found) -> _Loading | None:
        match, start, runs = found
        # What is on the host already is not given up for what follows it: without its beginning nobody could use it.
        runs = _shortened(runs, self._memory.host_room(match))
        blocks = sum(len(run.addresses) for run in runs)
        size = self._memory.block_size
        recompute, expected = self._rates.recompute(start * size, (start + blocks) * size), self._seconds(blocks)
        if not blocks or self._late or expected >= recompute:
            self._count(declined=blocks * size)
            return None
        slots = self._memory.take_host(blocks, match)
        if slots is None:
            return None
        addresses = [address for run in runs for address in run.addresses]
        load = Load(addresses, [self._host[slot] for slot in slots])
        # Waiting as long as computing takes loses at most as much again; a disk that is so late as that hangs.
        patience = min(recompute, _LATE_SECONDS + _LATE_FACTOR * expected)
        loading = _Loading(load, runs, slots, request.prompt, self._clock() + patience)
        self._loadings.append(loading)
        self._by_key.update((address.key, loading) for address in addresses)
        self._worker.load(load)
        return loading

    def _seconds(self, blocks: int) -> float:
        """Until so many blocks are on the device, behind those that are being loaded already."""
        before = sum(len(loading.slots) - loading.load.done for loading in self._loadings)
        reading: float = (before + blocks) * self._host.shape[1] / self._worker.read_rate
        return reading + blocks * self._rates.in_block

    def _finish(self, loading: _Loading) -> None:
        """Enter what has arrived in the tree, and give back the other slots."""
        load = loading.load
        load.end()
        if not load.returned:
            self._late.append(load)
        self._loadings.remove(loading)
        for address in load.addresses:
            if self._by_key.get(address.key) is loading:
                del self._by_key[address.key]
        slots, block_bytes = loading.slots, self._memory.tree.block_bytes
        entered = 0
        for run in _shortened(loading.runs, load.done):
            count = len(run.addresses)
            packed = loading.packed[: (run.start + count) * block_bytes]
            entered += self._memory.insert_host(run.scope, packed, run.start, slots[:count])
            slots = slots[count:]
        self._memory.give_host(slots)
        tokens = entered * self._memory.block_size
        self._count(hits=tokens)
        for waiter in loading.waiting:
            name = waiter.request.request_id
            self.loaded[name] = self.loaded.get(name, 0) + tokens

    def _count(self, queries: int = 0, hits: int = 0, declined: int = 0, late: int = 0) -> None:
        added = PrefetchCounts(queries, hits, declined, late)
        self.counts = PrefetchCounts(*(old + new for old, new in zip(self.counts, added, strict=True)))


def _shortened(runs: list[Run], most: int) -> list[Run]:
    """The first `most` blocks of the runs."""
    kept = []
    for run in runs:
        if most > 0:
            kept.append(run._replace(addresses=run.addresses[:most]))
            most -= len(run.addresses)
    return kept
