"""Blocks on disk: an SQLite file that may be lost, cut or flipped at any moment and never yields a wrong block.

A block is found by its key (`block_keys`), and believed only if its tokens, its parent's key and a SHA-256 over all of
it agree. SQLite's rollback journal makes a transaction that a killed process left half-done invisible. Nothing waits
for the disk (no fsync): after a power failure the file may be damaged, which is a miss, or a fresh file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from pageinn.store.block_keys import KEY_BYTES

log = logging.getLogger("pageinn")

#: Changes whenever what is written here would be read otherwise.
FORMAT = 1
PAGE_BYTES = 1 << 16
#: Pages beside a batch's payload that the trees of a write may grow by.
_SLACK_PAGES = 8
#: The least that holds anything: a batch, the trees and some room to turn around.
MIN_BYTES = 4 * _SLACK_PAGES * PAGE_BYTES
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PRIMARY_CODE = 0xFF
_TABLES = """
CREATE TABLE origin (fingerprint TEXT NOT NULL);
CREATE TABLE entry (
    id INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, parent BLOB NOT NULL, tokens BLOB NOT NULL,
    checksum BLOB NOT NULL, used INTEGER NOT NULL
);
CREATE INDEX entry_used ON entry (used);
CREATE TABLE payload (id INTEGER PRIMARY KEY, bytes BLOB NOT NULL);
"""

_T = TypeVar("_T")


class DiskCacheError(ValueError):
    """The disk cache cannot be used as asked for; one line that names the flag and the way out."""


class DiskError(Exception):
    """A read or a write failed and changed nothing. damaged: the file itself is broken; `rebuild` starts afresh.

    A single block may be damaged where the file is not: `drop` it.
    """

    def __init__(self, message: str, damaged: bool) -> None:
        super().__init__(message)
        self.damaged = damaged


class Address(NamedTuple):
    """What a block is found by and what it must say of itself: its own and its parent's key, its packed tokens."""

    key: bytes
    parent: bytes
    tokens: bytes


class Entry(NamedTuple):
    """A block to write: where it is found, and its keys and values as `KVStore.read_blocks` gives them."""

    address: Address
    payload: bytes | memoryview


class DiskStore:
    """The blocks of one model under one set of settings, least recently used first out.

    Not thread-safe, but any one thread at a time may use it. Every method but the constructor raises DiskError.
    """

    def __init__(self, path: Path, fingerprint: str, max_bytes: int) -> None:
        """Open or create the folder `path`, for this process alone, with at most max_bytes of blocks in it.

        What another model, setting or build wrote there is dropped, and so is a file that cannot be read. Raises
        DiskCacheError if the folder cannot be used.
        """
        if max_bytes < MIN_BYTES:
            raise DiskCacheError(f"--disk-cache-bytes is {max_bytes}; it must be at least {MIN_BYTES}")
        self.path = path
        self._file = path / "blocks.sqlite"
        self._fingerprint = f"{FORMAT} {fingerprint}"
        self._max_pages = max_bytes // PAGE_BYTES
        try:
            self._lock = _lock(path)
            self._db = self._connect()
        except OSError as error:
            raise DiskCacheError(f"--disk-cache {path}: {error.strerror or error}") from error
        except sqlite3.Error as error:
            self._unlock()
            raise DiskCacheError(f"--disk-cache {path}: {error}") from error

    # --- questions ---

    def keys(self) -> list[bytes]:
        """The keys of all blocks, least recently used first."""
        rows = self._guarded(lambda: self._db.execute("SELECT key FROM entry ORDER BY used, id").fetchall())
        return [key for (key,) in rows if isinstance(key, bytes) and len(key) == KEY_BYTES]

    @property
    def nbytes(self) -> int:
        """Bytes of the file in use."""
        return self._guarded(self._used_pages) * PAGE_BYTES

    def read(self, address: Address) -> bytes | None:
        """A block's keys and values, or None if the store lacks it.

        Raises DiskError also for a block that does not agree with itself or with what is asked for.
        """
        found = self._guarded(
            lambda: self._db.execute(
                "SELECT parent, tokens, checksum, bytes FROM entry JOIN payload USING (id) WHERE key = ?",
                (address.key,),
            ).fetchone()
        )
        if found is None:
            return None
        parent, tokens, checksum, payload = found
        right = (parent, tokens) == (address.parent, address.tokens) and isinstance(payload, bytes)
        if not right or _checksum(address, payload) != checksum:
            raise DiskError(f"{self._file}: block {address.key.hex()} is damaged", damaged=False)
        assert isinstance(payload, bytes)
        return payload

    # --- acts ---

    def write(self, entries: Sequence[Entry]) -> list[bytes]:
        """Write blocks, all or none, as the most recently used, the last one most; skips those that are there.

        Returns the keys of the blocks that had to go. Raises DiskError also where the disk is full.
        """
        return self._guarded(lambda: self._write_within(entries))

    def touch(self, keys: Sequence[bytes]) -> None:
        """Make blocks the most recently used, the last one most. Unknown keys are ignored."""
        self._guarded(lambda: self._in_transaction(lambda: self._touch(keys)))

    def drop(self, key: bytes) -> None:
        """Forget a block."""
        self._guarded(lambda: self._in_transaction(lambda: self._delete("key = ?", key)))

    def rebuild(self) -> None:
        """Drop everything and start with an empty file."""
        self._guarded(self._renew)

    def close(self) -> None:
        """Let go of the file; another process may use it then."""
        try:
            self._db.close()
        except sqlite3.Error as error:
            raise DiskError(str(error), damaged=False) from error
        finally:
            self._unlock()

    # --- inside: these raise sqlite3.Error and OSError ---

    def _guarded(self, act: Callable[[], _T]) -> _T:
        try:
            return act()
        except sqlite3.Error as error:
            raise DiskError(f"{self._file}: {error}", _code(error) in _DAMAGED) from error
        except OSError as error:
            raise DiskError(f"{self._file}: {error}", damaged=False) from error

    def _in_transaction(self, act: Callable[[], _T]) -> _T:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            result = act()
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        return result

    def _write_within(self, entries: Sequence[Entry]) -> list[bytes]:
        try:
            return self._in_transaction(lambda: self._write(entries, self._max_pages))
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_FULL:
                raise
        # The disk is smaller than the bound: make do with what the file has got of it.
        return self._in_transaction(lambda: self._write(entries, self._pragma("page_count")))

    def _write(self, entries: Sequence[Entry], max_pages: int) -> list[bytes]:
        tick = self._next_tick()
        pages = sum(-(-len(entry.payload) // PAGE_BYTES) for entry in entries) + _SLACK_PAGES
        dropped = self._make_room(pages, max_pages)
        for place, (address, payload) in enumerate(entries):
            row = self._db.execute(
                "INSERT OR IGNORE INTO entry (key, parent, tokens, checksum, used) VALUES (?, ?, ?, ?, ?)",
                (*address, _checksum(address, payload), tick + place),
            )
            if row.rowcount:
                self._db.execute("INSERT OR REPLACE INTO payload (id, bytes) VALUES (?, ?)", (row.lastrowid, payload))
        return dropped

    def _make_room(self, pages: int, max_pages: int) -> list[bytes]:
        """Drop the least recently used blocks until so many of max_pages are free."""
        dropped: list[bytes] = []
        while max_pages - self._used_pages() < pages:
            oldest = self._db.execute("SELECT id FROM entry ORDER BY used, id LIMIT 1").fetchone()
            if oldest is None:
                raise OSError(errno.ENOSPC, f"{pages} pages at once exceed --disk-cache-bytes")
            dropped += self._delete("id = ?", oldest[0])
        return dropped

    def _delete(self, condition: str, value: bytes | int) -> list[bytes]:
        gone = self._db.execute(f"DELETE FROM entry WHERE {condition} RETURNING id, key", (value,)).fetchall()
        for row, _ in gone:
            self._db.execute("DELETE FROM payload WHERE id = ?", (row,))
        return [key for _, key in gone]

    def _touch(self, keys: Sequence[bytes]) -> None:
        tick = self._next_tick()
        rows = [(tick + place, key) for place, key in enumerate(keys)]
        self._db.executemany("UPDATE entry SET used = ? WHERE key = ?", rows)

    def _next_tick(self) -> int:
        (last,) = self._db.execute("SELECT coalesce(max(used), 0) FROM entry").fetchone()
        return int(last) + 1

    def _used_pages(self) -> int:
        return self._pragma("page_count") - self._pragma("freelist_count")

    def _pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    # --- opening ---

    def _connect(self) -> sqlite3.Connection:
        """The file as it is, or a fresh one where it is damaged or another's."""
        fresh = not self._file.exists()
        try:
            self._db = _open(self._file, self._max_pages)
            if fresh:
                self._create()
            elif self._db.execute("SELECT fingerprint FROM origin").fetchall() == [(self._fingerprint,)]:
                self._shrink()
            else:
                log.warning("%s holds blocks of another model, setting or build: starting empty", self.path)
                self._renew()
        except sqlite3.DatabaseError as error:
            if fresh:
                raise
            log.warning("%s cannot be read (%s): starting empty", self.path, error)
            self._renew()
        return self._db

    def _renew(self) -> None:
        if hasattr(self, "_db"):
            self._db.close()
        for file in (self._file, self._file.with_name(self._file.name + "-journal")):
            file.unlink(missing_ok=True)
        self._db = _open(self._file, self._max_pages)
        self._create()

    def _create(self) -> None:
        self._db.executescript(f"BEGIN; {_TABLES} COMMIT;")
        self._db.execute("INSERT INTO origin VALUES (?)", (self._fingerprint,))

    def _shrink(self) -> None:
        """Fit a file that an earlier, larger bound has let grow."""
        excess = self._pragma("page_count") - self._max_pages
        if excess > 0:
            self._in_transaction(lambda: self._make_room(_SLACK_PAGES, self._max_pages))
            # As a script, because `execute` takes one step of a statement without rows, and a step here is a page.
            self._db.executescript(f"PRAGMA incremental_vacuum({excess})")
            self._db.execute(f"PRAGMA max_page_count={self._max_pages}")

    def _unlock(self) -> None:
        os.close(self._lock)


def _lock(path: Path) -> int:
    """A lock that lasts as long as the process, at most; kept apart from the database, which may be replaced."""
    # Blocks tell what was asked: nobody else's business.
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise DiskCacheError(f"--disk-cache {path} is in use by another process; give each its own") from error
    return descriptor


def _open(file: Path, max_pages: int) -> sqlite3.Connection:
    # SQLite would make it readable by all, and the folder may be older. The journal takes the file's mode.
    os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    for setting in (
        f"page_size={PAGE_BYTES}",
        "auto_vacuum=INCREMENTAL",
        "locking_mode=EXCLUSIVE",
        "journal_mode=TRUNCATE",
        "synchronous=OFF",
        f"max_page_count={max_pages}",
    ):
        db.execute(f"PRAGMA {setting}")
    return db


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary code. An error without one is of Python's making: it could not make sense of a value."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)) & _PRIMARY_CODE


def _checksum(address: Address, payload: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(b"".join(address))
    digest.update(payload)
    return digest.digest()
