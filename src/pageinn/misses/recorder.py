"""Takes in requests as they get their first token, and looks at their texts when somebody asks, in bounded time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from time import thread_time
from typing import NamedTuple

from pageinn.memory.tokens import pack
from pageinn.misses.alike import alike
from pageinn.misses.deploys import Deploys
from pageinn.misses.history import History
from pageinn.misses.look import Decode, Tokens, look
from pageinn.misses.record import Asked, End, Near, Origin, Record
from pageinn.misses.thrift import Thrift

log = logging.getLogger(__name__)

#: Seconds that one answer waits for others' texts to be looked at; all of them may take a second.
_PATIENCE = 0.05


class Opened(NamedTuple):
    """A request on its way. near: what was known when it came that begins most like its prompt."""

    asked: Asked
    near: Near | None


class Cache(NamedTuple):
    """How the cache is set up. keeps: whether blocks are kept after their requests (--prefix-cache keep)."""

    block_size: int
    keeps: bool


class Recorder:
    """The latest requests and why each found no more of its prompt in the cache.

    `open`, `begin`, `finish` and `reset` take microseconds and are called as requests go on; `look_at_all` and
    `look_at` read texts and are called where nothing waits for them. Any thread may call any of them.
    """

    def __init__(
        self,
        cache: Cache,
        decode: Decode,
        clock: Callable[[], float],
        history: History | None = None,
        deploys: Deploys | None = None,
    ) -> None:
        self.history = history or History()
        self.deploys = deploys or Deploys(decode, clock)
        self._cache = cache
        self._decode = decode
        self._clock = clock
        self._thrift = Thrift(clock)
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._reset = float("-inf")

    # --- as requests go on ---

    def open(self, asked: Asked) -> Opened:
        """A request comes."""
        with self._lock:
            return Opened(asked, self.history.nearest(asked.scope, asked.packed))

    def begin(self, opened: Opened, cached: int, origin: Origin | None = None) -> Record:
        """A request has its first token. cached: prompt tokens that it found. origin: where, if that is known."""
        with self._lock:
            record = Record(self.history.count, opened.asked, self._clock(), cached, origin)
            near, came_before = opened.near, True
            if near is None or cached > near.shared:
                # What it waited for was computed after it came.
                now = self.history.nearest(record.scope, record.packed)
                if now is not None and (near is None or now.shared > near.shared):
                    near, came_before = now, False
            if near is not None:
                record.nearest, record.shared = near
            elsewhere = self.history.elsewhere(record.packed)
            record.elsewhere = elsewhere.shared if elsewhere is not None else 0
            record.end = self._end(record, came_before)
            self.history.add(record)
        self.deploys.see(record)
        return record

    def finish(self, record: Record, answer: Sequence[int]) -> None:
        """A request has ended. answer: the tokens of its first choice, which its next turn may begin with."""
        if answer:
            packed = pack(answer)
            with self._lock:
                self.history.extend(record, packed)

    def reset(self) -> None:
        """All kept blocks were dropped."""
        self._reset = self._clock()

    def _end(self, record: Record, came_before: bool) -> End:
        nearest = self.history.find(record.nearest)
        if record.why:
            end = End.NOT_READ
        elif record.tokens < self._cache.block_size:
            end = End.BELOW
        elif record.cached >= record.tokens - 1:
            end = End.WHOLE
        elif nearest is not None and came_before and record.shared - record.cached >= self._cache.block_size:
            end = self._gone(nearest)
        elif nearest is not None and nearest.packed and record.packed.startswith(nearest.packed):
            end = End.GOES_ON
        else:
            end = End.PARTED
        return end

    def _gone(self, nearest: Record) -> End:
        """Why what a request had computed is not there any more."""
        if not self._cache.keeps:
            return End.NOT_KEPT
        return End.RESET if nearest.when < self._reset else End.EVICTED

    def close(self) -> None:
        """No request follows."""
        self.deploys.close()

    # --- when somebody asks ---

    def look_at_all(self) -> int:
        """Look at what was not looked at yet, the newest first, for a bounded time; says how many are left."""
        with self._looking:
            return self._look([record for record in self.snapshot() if record.pending])

    def look_at(self, request_id: str) -> Record | None:
        """The record of a request, looked at if that is affordable now; None if there is none, or none any more."""
        record = next((record for record in self.snapshot() if record.id == request_id), None)
        if record is not None and record.pending and self._looking.acquire(timeout=_PATIENCE):
            try:
                self._look([record])
            finally:
                self._looking.release()
        return record

    def _look(self, records: Sequence[Record]) -> int:
        """`_looking` is held."""
        allowed = self._thrift.allowance()
        began = thread_time()
        left = 0
        for record in records:
            if thread_time() - began >= allowed:
                left += 1
            elif record.pending:
                try:
                    self._read(record)
                except Exception:
                    # A prompt may hold anything; one that cannot be read is not to keep others from being told.
                    log.exception("why request %s missed cannot be read from its text", record.id)
                record.looked = True
        self._thrift.spent(thread_time() - began)
        return left

    def snapshot(self) -> list[Record]:
        """All records, the newest first."""
        with self._lock:
            return self.history.newest(len(self.history))

    def _read(self, record: Record) -> None:
        with self._lock:
            nearest = self.history.find(record.nearest)
            others = [
                other
                for other in self.history
                if other.number < record.number and other.stores and other.packed and other.scope == record.scope
            ]
        candidates = [] if nearest is None else [nearest]
        candidates += [other for other in alike(record, others) if other is not nearest]
        with self._lock:
            prompt = record.prompt
            tokens = [Tokens(other.number, other.packed) for other in candidates if other.packed]
        if prompt and tokens:
            record.fault = look(record, prompt, tokens, self._decode)
        if record.fault is None:
            if record.cached - record.shared >= self._cache.block_size:
                record.end = End.UNKNOWN
            elif record.shared < self._cache.block_size:
                record.end = End.NEW
