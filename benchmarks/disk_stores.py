"""Which embedded store for blocks on disk: speed, size on disk and manners of LMDB, RocksDB and SQLite.

Values have the sizes of blocks. A store is bounded to so many values: it writes twice as many, evicting the oldest, and
then reads what is left in random order, from the page cache and after the kernel dropped the file from it. Then bytes
of its files are flipped and files are cut: a store may miss or raise, but a process that dies would be a server's end.

    python benchmarks/disk_stores.py [--path DIR] [--megabytes 256]

LMDB and RocksDB are not dependencies: pip install lmdb rocksdict.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

SIZES = (64 << 10, 184_320, 368_640)
BATCH = 8
FLIPS = 60


class Store(Protocol):
    def write(self, items: list[tuple[bytes, bytes]], drop: list[bytes]) -> None: ...
    def read(self, key: bytes) -> bytes | None: ...
    def keys(self) -> list[bytes]: ...
    def close(self) -> None: ...


class SQLite:
    def __init__(self, path: Path, bound: int, journal: str, synchronous: str) -> None:
        path.mkdir(exist_ok=True)
        self.db = sqlite3.connect(path / "db", isolation_level=None)
        self.db.execute("PRAGMA page_size=65536")
        self.db.execute(f"PRAGMA journal_mode={journal}")
        self.db.execute(f"PRAGMA synchronous={synchronous}")
        self.db.execute("CREATE TABLE IF NOT EXISTS entry (id INTEGER PRIMARY KEY, key BLOB UNIQUE, used INTEGER)")
        self.db.execute("CREATE TABLE IF NOT EXISTS payload (id INTEGER PRIMARY KEY, value BLOB)")

    def write(self, items: list[tuple[bytes, bytes]], drop: list[bytes]) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        for key in drop:
            (row,) = self.db.execute("DELETE FROM entry WHERE key=? RETURNING id", (key,)).fetchone()
            self.db.execute("DELETE FROM payload WHERE id=?", (row,))
        for key, value in items:
            row = self.db.execute("INSERT INTO entry (key, used) VALUES (?, 0)", (key,)).lastrowid
            self.db.execute("INSERT INTO payload (id, value) VALUES (?, ?)", (row, value))
        self.db.execute("COMMIT")

    def read(self, key: bytes) -> bytes | None:
        row = self.db.execute("SELECT value FROM entry JOIN payload USING (id) WHERE key=?", (key,)).fetchone()
        return None if row is None else row[0]

    def keys(self) -> list[bytes]:
        return [row[0] for row in self.db.execute("SELECT key FROM entry ORDER BY used")]

    def close(self) -> None:
        self.db.close()


class LMDB:
    def __init__(self, path: Path, bound: int) -> None:
        import lmdb

        self.env = lmdb.open(str(path), map_size=2 * bound + (64 << 20), sync=False, metasync=False)

    def write(self, items: list[tuple[bytes, bytes]], drop: list[bytes]) -> None:
        with self.env.begin(write=True) as txn:
            for key in drop:
                txn.delete(key)
            for key, value in items:
                txn.put(key, value)

    def read(self, key: bytes) -> bytes | None:
        with self.env.begin() as txn:
            return txn.get(key)

    def keys(self) -> list[bytes]:
        with self.env.begin() as txn:
            return list(txn.cursor().iternext(keys=True, values=False))

    def close(self) -> None:
        self.env.close()


class RocksDB:
    def __init__(self, path: Path, bound: int) -> None:
        from rocksdict import DBCompressionType, Options, Rdict

        options = Options(raw_mode=True)
        options.set_enable_blob_files(True)
        options.set_enable_blob_gc(True)
        options.set_compression_type(DBCompressionType.none())
        self.db = Rdict(str(path), options)

    def write(self, items: list[tuple[bytes, bytes]], drop: list[bytes]) -> None:
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        for key in drop:
            batch.delete(key)
        for key, value in items:
            batch.put(key, value)
        self.db.write(batch)

    def read(self, key: bytes) -> bytes | None:
        return self.db.get(key)

    def keys(self) -> list[bytes]:
        return list(self.db.keys())

    def close(self) -> None:
        self.db.close()


Open = Callable[[Path, int], Store]
STORES: dict[str, Open] = {
    "sqlite wal": lambda path, bound: SQLite(path, bound, "WAL", "NORMAL"),
    "sqlite rollback, sync": lambda path, bound: SQLite(path, bound, "TRUNCATE", "NORMAL"),
    "sqlite rollback": lambda path, bound: SQLite(path, bound, "TRUNCATE", "OFF"),
    "lmdb": LMDB,
    "rocksdb": RocksDB,
}


def key_of(index: int) -> bytes:
    return hashlib.blake2b(index.to_bytes(8, "little"), digest_size=32).digest()


def fill(store: Store, size: int, kept: int) -> None:
    values = [os.urandom(size) for _ in range(16)]
    for start in range(0, 2 * kept, BATCH):
        items = [(key_of(index), values[index % 16]) for index in range(start, start + BATCH)]
        store.write(items, [key_of(index - kept) for index in range(start, start + BATCH) if index >= kept])


def disk_bytes(path: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


def forget(path: Path) -> None:
    """Ask the kernel to drop the files from its page cache."""
    os.sync()
    for file in path.rglob("*"):
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read_all(store: Store, size: int, kept: int) -> float:
    order = list(range(kept, 2 * kept))
    random.Random(1).shuffle(order)
    began = time.perf_counter()
    for index in order:
        assert len(store.read(key_of(index)) or b"") == size
    return kept * size / (time.perf_counter() - began) / 1e6


def speed(name: str, path: Path, size: int, megabytes: int) -> str:
    kept = megabytes * 1_000_000 // size // BATCH * BATCH
    shutil.rmtree(path, ignore_errors=True)
    store = STORES[name](path, kept * size)
    began = time.perf_counter()
    fill(store, size, kept)
    wrote = 2 * kept * size / (time.perf_counter() - began) / 1e6
    warm = read_all(store, size, kept)
    store.close()
    occupied = disk_bytes(path) / (kept * size)
    forget(path)
    began = time.perf_counter()
    store = STORES[name](path, kept * size)
    assert len(store.keys()) == kept
    opened = (time.perf_counter() - began) * 1e3
    cold = read_all(store, size, kept)
    store.close()
    return f"| {name} | {size / 1e3:.0f} | {wrote:.0f} | {warm:.0f} | {cold:.0f} | {opened:.0f} | {occupied:.2f} |"


def damage(path: Path, rng: random.Random) -> None:
    """Flip 64 random bytes in the parts of files that hold structure as well as values, or cut a file in half."""
    files = [file for file in path.rglob("*") if file.is_file() and file.stat().st_size > 0 and file.name != "LOCK"]
    file = rng.choice(files)
    size = file.stat().st_size
    with file.open("r+b") as raw:
        if rng.random() < 0.1:
            raw.truncate(size // 2)
            return
        for _ in range(64):
            raw.seek(rng.randrange(size))
            byte = raw.read(1)[0] ^ (1 << rng.randrange(8))
            raw.seek(-1, os.SEEK_CUR)
            raw.write(bytes([byte]))


def use_damaged(name: str, path: Path, kept: int, size: int) -> None:
    """Read, write and list; exit code 0 if all went well, 3 for an exception, 4 if a value came back wrong."""
    code = 0
    try:
        store = STORES[name](path, kept * size)
        for index in range(kept):
            value = store.read(key_of(index))
            if value is not None and value != bytes([index % 256]) * size:
                code = 4
        store.keys()
        store.write([(key_of(kept + 1), b"x" * size)], [])
    except Exception:  # whatever a store raises over a damaged file is the answer that is counted
        code = 3
    os._exit(code)


def manners(name: str, path: Path, seconds: int = 20) -> str:
    size, kept = 8 << 10, 64
    found: dict[str, int] = {"unharmed": 0, "raised": 0, "wrong value": 0, "died": 0, "hung": 0}
    rng = random.Random(7)
    pristine = path.with_suffix(".pristine")
    shutil.rmtree(pristine, ignore_errors=True)
    store = STORES[name](pristine, kept * size)
    for index in range(kept):
        store.write([(key_of(index), bytes([index % 256]) * size)], [])
    store.close()
    for _ in range(FLIPS):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(pristine, path)
        damage(path, rng)
        process = multiprocessing.get_context("fork").Process(target=use_damaged, args=(name, path, kept, size))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
            found["hung"] += 1
        else:
            found[{0: "unharmed", 3: "raised", 4: "wrong value"}.get(process.exitcode, "died")] += 1
    return f"| {name} | " + " | ".join(str(count) for count in found.values()) + " |"


def checksums() -> None:
    value = np.random.default_rng(0).integers(0, 256, 368_640, dtype=np.uint8).tobytes()
    kinds: dict[str, Callable[[bytes], object]] = {
        "zlib.crc32": zlib.crc32,
        "hashlib.blake2b": lambda data: hashlib.blake2b(data, digest_size=16).digest(),
        "hashlib.sha256": lambda data: hashlib.sha256(data).digest(),
        "hashlib.md5": lambda data: hashlib.md5(data).digest(),
    }
    try:
        import xxhash

        kinds["xxhash.xxh3_128"] = xxhash.xxh3_128_digest
    except ImportError:
        pass
    for name, function in kinds.items():
        began = time.perf_counter()
        for _ in range(200):
            function(value)
        print(f"{name}: {200 * len(value) / (time.perf_counter() - began) / 1e6:.0f} MB/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", type=Path, default=Path("disk-stores"))
    parser.add_argument("--megabytes", type=int, default=256, help="what a store may hold")
    args = parser.parse_args()
    checksums()
    print("\n| store | kB a value | write MB/s | read MB/s | read cold MB/s | open ms | disk / data |")
    print("|---|---|---|---|---|---|---|")
    for size in SIZES:
        for name in STORES:
            print(speed(name, args.path, size, args.megabytes), flush=True)
    print(f"\n{FLIPS} damaged files each:\n\n| store | unharmed | raised | wrong value | died | hung |")
    print("|---|---|---|---|---|---|")
    for name in ("sqlite rollback", "lmdb", "rocksdb"):
        print(manners(name, args.path), flush=True)
    shutil.rmtree(args.path, ignore_errors=True)


if __name__ == "__main__":
    main()
