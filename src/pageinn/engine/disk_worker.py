"""The thread that reads and writes blocks on disk beside the step loop. Nothing here waits for it but `close`."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from pageinn.store.disk import Address, DiskError, Entry
from pageinn.store.kv_store import Bytes

log = logging.getLogger("pageinn")

#: Blocks written in one transaction: enough to spread its cost, few enough for a load not to wait long behind it.
BATCH = 8
#: Payload that may wait to be written.
QUEUED_BYTES = 64 << 20
#: Bytes a second until something was read.
_FIRST_RATE = 300e6
_KEEP = 0.8
#: How often an error is said aloud, in seconds; all are counted.
_LOG_SECONDS = 60.0


class BlockStore(Protocol):
    """What the thread needs of a store: `DiskStore`, or one that fails on purpose."""

    @property
    def nbytes(self) -> int:
        """Bytes in use."""
        ...

    def keys(self) -> list[bytes]:
        """The keys of all blocks, least recently used first."""
        ...

    def read(self, address: Address) -> bytes | None:
        """A block's payload, or None. Raises DiskError."""
        ...

    def write(self, entries: Sequence[Entry]) -> list[bytes]:
        """Write blocks; the keys of those that had to go. Raises DiskError."""
        ...

    def touch(self, keys: Sequence[bytes]) -> None:
        """Make blocks the most recently used. Raises DiskError."""
        ...

    def drop(self, key: bytes) -> None:
        """Forget a block. Raises DiskError."""
        ...

    def rebuild(self) -> None:
        """Start empty. Raises DiskError."""
        ...

    def close(self) -> None:
        """Let go. Raises DiskError."""
        ...


class Load:
    """Blocks to read, in order, each into a row (uint8 [block bytes]) that is the load's until it is over.

    done: how many of the first rows are filled and verified. over: the thread writes to no row any more.
    """

    def __init__(self, addresses: list[Address], rows: list[Bytes]) -> None:
        self.addresses = addresses
        self.rows = rows
        self.done = 0
        self.over = False
        self.returned = False
        self._lock = threading.Lock()

    def fill(self, payload: bytes) -> bool:
        """Fill the next row; False, and no row is touched, once the load is over."""
        with self._lock:
            if not self.over:
                self.rows[self.done][:] = np.frombuffer(payload, np.uint8)
                self.done += 1
            return not self.over

    def end(self) -> None:
        """No row changes from here on, whatever the thread is doing."""
        with self._lock:
            self.over = True


class Written(NamedTuple):
    """What became of blocks to write: they are on disk, or not, and others had to go for them."""

    keys: list[bytes]
    stored: bool
    dropped: list[bytes]


class Lost(NamedTuple):
    """A block that turned out not to be on disk."""

    key: bytes


class Emptied(NamedTuple):
    """The file was broken; nothing is on disk."""


_Result = Written | Lost | Emptied


class _Write(NamedTuple):
    entries: list[Entry]
    touched: list[bytes]


class _Clear(NamedTuple):
    """Drop everything."""


class DiskWorker:
    """Loads go before writes. Errors are counted, said at most once a minute, and end nothing."""

    def __init__(self, store: BlockStore, errors: int = 0) -> None:
        """errors: how many there were already."""
        self._store = store
        self._changed = threading.Condition()
        self._loads: deque[Load] = deque()
        self._writes: deque[_Write | _Clear] = deque()
        self._results: list[_Result] = []
        self._queued_bytes = 0
        self._closing = False
        self._said = -_LOG_SECONDS
        self.errors = errors
        self.bytes_read = 0
        self.bytes_written = 0
        self.nbytes = 0
        #: Bytes a second of reading, checks included.
        self.read_rate = _FIRST_RATE
        # A daemon: a disk that hangs must not hold up the end of the process.
        self._thread = threading.Thread(target=self._run, name="pageinn-disk", daemon=True)
        self._thread.start()

    # --- the step loop's side ---

    @property
    def room(self) -> int:
        """Bytes of payload that may be handed over for writing now."""
        return QUEUED_BYTES - self._queued_bytes

    def load(self, load: Load) -> None:
        """Read blocks."""
        with self._changed:
            self._loads.append(load)
            self._changed.notify_all()

    def write(self, entries: list[Entry], touched: list[bytes]) -> None:
        """Write blocks, and then make some the most recently used; ask for `room` first."""
        with self._changed:
            self._queued_bytes += _payload(entries)
            for start in range(0, len(entries), BATCH):
                self._writes.append(_Write(entries[start : start + BATCH], []))
            if touched:
                self._writes.append(_Write([], touched))
            self._changed.notify_all()

    def clear(self) -> None:
        """Drop all blocks, those that wait to be written too."""
        with self._changed:
            self._writes = deque([_Clear()])
            self._queued_bytes = 0
            self._changed.notify_all()

    def results(self) -> list[_Result]:
        """What has happened since the last call."""
        with self._changed:
            results, self._results = self._results, []
            return results

    def wait(self, seconds: float) -> None:
        """Until the thread has done something, or so long."""
        with self._changed:
            self._changed.wait(seconds)

    def close(self, seconds: float) -> bool:
        """Finish what is to be written, within so many seconds; False if that was too short."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # --- the thread's side ---

    def _run(self) -> None:
        self._attempt(self._measure)
        while True:
            with self._changed:
                while not (self._loads or self._writes or self._closing):
                    self._changed.wait()
                if self._loads:
                    job: Load | _Write | _Clear = self._loads.popleft()
                elif self._writes:
                    job = self._writes.popleft()
                else:
                    break
            self._do(job)
            with self._changed:
                self._changed.notify_all()
        self._attempt(self._store.close)

    def _do(self, job: Load | _Write | _Clear) -> None:
        match job:
            case Load():
                self._read(job)
                job.end()
                job.returned = True
            case _Write(entries, touched):
                self._save(entries, touched)
                self._attempt(self._measure)
            case _Clear():
                self._attempt(self._store.rebuild)
                self._attempt(self._measure)

    def _read(self, load: Load) -> None:
        for address in load.addresses:
            began = time.perf_counter()
            try:
                payload = self._store.read(address)
            except Exception as error:  # whatever a disk does: a miss
                self._failed(error)
                self._attempt(partial(self._store.drop, address.key))
                payload = None
            if payload is None or len(payload) != len(load.rows[0]):
                self._tell(Lost(address.key))
                return
            if not load.fill(payload):
                return
            self.bytes_read += len(payload)
            measured = len(payload) / max(time.perf_counter() - began, 1e-9)
            self.read_rate = _KEEP * self.read_rate + (1 - _KEEP) * measured

    def _save(self, entries: list[Entry], touched: list[bytes]) -> None:
        keys = [entry.address.key for entry in entries]
        stored, dropped = False, []
        try:
            if entries:
                dropped = self._store.write(entries)
            stored = True
            if touched:
                self._store.touch(touched)
        except Exception as error:
            self._failed(error)
        with self._changed:
            # Whoever sees the figures finds the result too.
            self.bytes_written += _payload(entries) if stored else 0
            self._queued_bytes = max(self._queued_bytes - _payload(entries), 0)
            self._results.append(Written(keys, stored, dropped))

    def _measure(self) -> None:
        self.nbytes = self._store.nbytes

    def _attempt(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Count it; where the file is broken, start afresh."""
        self.errors += 1
        now = time.monotonic()
        if now - self._said >= _LOG_SECONDS:
            self._said = now
            log.warning("disk cache: %s", error)
        if isinstance(error, DiskError) and error.damaged:
            self._tell(Emptied())
            try:
                self._store.rebuild()
            except Exception as again:
                log.warning("disk cache: %s", again)

    def _tell(self, result: _Result) -> None:
        with self._changed:
            self._results.append(result)


def _payload(entries: list[Entry]) -> int:
    return sum(len(entry.payload) for entry in entries)
