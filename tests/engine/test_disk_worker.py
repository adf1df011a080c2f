"""The thread beside the step loop, with the real store and with stores that fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from disk_blocks import SIZE, address, entry, payload

from pageinn.engine.disk_worker import BATCH, QUEUED_BYTES, DiskWorker, Emptied, Load, Lost, Written
from pageinn.store.disk import Address, DiskError, DiskStore, Entry


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path / "cache", "f", 64 << 20)


def rows(count: int) -> list[np.ndarray]:
    return list(np.zeros((count, SIZE), np.uint8))


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "the thread did not do it"
        time.sleep(0.001)


def load_of(*numbers: int) -> Load:
    return Load([address(number) for number in numbers], rows(len(numbers)))


class Hanging(DiskStore):
    """Reads and writes wait until they are let go. done: each of them, in the order in which they came."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "f", 64 << 20)
        self.entered, self.go = threading.Event(), threading.Event()
        self.done: list[str] = []

    def read(self, address: Address) -> bytes | None:
        self.done.append("read")
        self.entered.set()
        self.go.wait()
        return super().read(address)

    def write(self, entries: Sequence[Entry]) -> list[bytes]:
        self.done.append("write")
        self.entered.set()
        self.go.wait()
        return super().write(entries)


def test_what_is_written_can_be_loaded(store: DiskStore) -> None:
    worker = DiskWorker(store)
    worker.write([entry(number) for number in range(20)], [])
    until(lambda: worker.bytes_written == 20 * SIZE)
    written = worker.results()
    assert [key for result in written for key in result.keys] == [address(number).key for number in range(20)]  # type: ignore[union-attr]
    assert all(isinstance(result, Written) and result.stored and not result.dropped for result in written)
    load = load_of(3, 19)
    worker.load(load)
    until(lambda: load.returned)
    assert load.done == 2
    assert [row.tobytes() for row in load.rows] == [payload(3), payload(19)]
    assert worker.close(10)
    assert worker.errors == 0


def test_closing_writes_what_is_queued_and_lets_go(store: DiskStore, tmp_path: Path) -> None:
    worker = DiskWorker(store)
    worker.write([entry(number) for number in range(20)], [address(0).key])
    assert worker.close(10)
    again = DiskStore(tmp_path / "cache", "f", 64 << 20)
    assert again.keys() == [address(number).key for number in [*range(1, 20), 0]]


def test_a_load_ends_at_the_first_block_that_is_missing(store: DiskStore) -> None:
    store.write([entry(0), entry(2)])
    worker = DiskWorker(store)
    load = load_of(0, 1, 2)
    worker.load(load)
    until(lambda: load.returned)
    assert load.done == 1
    assert worker.results() == [Lost(address(1).key)]
    assert worker.errors == 0
    assert not load.rows[1].any()


def test_a_damaged_block_is_an_error_is_dropped_and_ends_the_load(store: DiskStore) -> None:
    """J3."""
    store.write([entry(0), entry(1)])
    store._db.execute("UPDATE payload SET bytes = zeroblob(?) WHERE id = 2", (SIZE,))
    worker = DiskWorker(store)
    load = load_of(0, 1)
    worker.load(load)
    until(lambda: load.returned)
    assert (load.done, worker.errors) == (1, 1)
    assert worker.results() == [Lost(address(1).key)]
    assert worker.close(10)


def test_a_load_that_is_over_is_not_written_to_any_more(tmp_path: Path) -> None:
    """Its rows belong to somebody else by then."""
    store = Hanging(tmp_path / "cache")
    store.go.set()
    store.write([entry(0)])
    store.go.clear()
    worker = DiskWorker(store)
    load = load_of(0)
    worker.load(load)
    store.entered.wait()
    load.end()
    store.go.set()
    until(lambda: load.returned)
    assert load.done == 0
    assert not load.rows[0].any()


def test_a_queue_that_is_full_says_so_and_loads_go_first(tmp_path: Path) -> None:
    store = Hanging(tmp_path / "cache")
    worker = DiskWorker(store)
    assert worker.room == QUEUED_BYTES
    worker.write([entry(number) for number in range(40)], [])
    store.entered.wait()
    assert worker.room == QUEUED_BYTES - 40 * SIZE
    load = load_of(0)
    worker.load(load)
    store.go.set()
    until(lambda: load.returned)
    assert load.done == 1
    until(lambda: worker.room == QUEUED_BYTES)
    # The batch that was under way, the load, and then the others.
    assert store.done == ["write", "read", *["write"] * (-(-40 // BATCH) - 1)]
    assert worker.bytes_written == 40 * SIZE


def test_a_thread_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    store = Hanging(tmp_path / "cache")
    worker = DiskWorker(store)
    worker.write([entry(0)], [])
    store.entered.wait()
    assert not worker.close(0.05)
    store.go.set()


class Raising(DiskStore):
    """Every read and write fails in the way given."""

    def __init__(self, path: Path, error: Exception) -> None:
        super().__init__(path, "f", 64 << 20)
        self.error: Exception | None = error

    def read(self, address: Address) -> bytes | None:
        if self.error:
            raise self.error
        return super().read(address)

    def write(self, entries: Sequence[Entry]) -> list[bytes]:
        if self.error:
            raise self.error
        return super().write(entries)


@pytest.mark.parametrize("error", [DiskError("full", damaged=False), OSError(5, "I/O"), RuntimeError("bug")])
def test_errors_are_counted_and_end_nothing(tmp_path: Path, error: Exception) -> None:
    store = Raising(tmp_path / "cache", error)
    worker = DiskWorker(store)
    worker.write([entry(0)], [])
    load = load_of(0)
    worker.load(load)
    results: list[object] = []

    def both_are_told() -> bool:
        results.extend(worker.results())
        return load.returned and len(results) == 2

    until(both_are_told)
    assert sorted(results, key=str) == [Lost(address(0).key), Written([address(0).key], False, [])]
    assert worker.errors == 2
    store.error = None
    worker.write([entry(1)], [])
    load = load_of(1)
    until(lambda: worker.bytes_written == SIZE)
    worker.load(load)
    until(lambda: load.returned)
    assert load.done == 1


def test_a_broken_file_is_replaced(tmp_path: Path) -> None:
    store = Raising(tmp_path / "cache", DiskError("malformed", damaged=True))
    worker = DiskWorker(store)
    load = load_of(0)
    worker.load(load)
    until(lambda: load.returned)
    assert Emptied() in worker.results()
    store.error = None
    worker.write([entry(1)], [])
    assert worker.close(10)
    assert worker.errors == 1
    assert DiskStore(tmp_path / "cache", "f", 64 << 20).keys() == [address(1).key]
