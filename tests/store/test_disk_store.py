"""The store on disk: what it gives back is right or nothing, whatever happens to the file."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from disk_blocks import SIZE, address, entry, payload
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pageinn.store.disk import MIN_BYTES, PAGE_BYTES, DiskCacheError, DiskError, DiskStore

BOUND = 4 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def opened(path: Path, fingerprint: str = "f", bound: int = BOUND) -> DiskStore:
    return DiskStore(path, fingerprint, bound)


def file_of(path: Path) -> Path:
    return path / "blocks.sqlite"


def right_or_nothing(store: DiskStore, numbers: range) -> int:
    """How many blocks are there; all others are misses or errors."""
    there = 0
    for number in numbers:
        with suppress(DiskError):
            read = store.read(address(number))
            assert read is None or read == payload(number)
            there += read is not None
    return there


def test_a_restart_finds_what_was_written(path: Path) -> None:
    """J4."""
    store = opened(path)
    assert store.write([entry(1), entry(2)]) == []
    store.close()
    store = opened(path)
    assert store.keys() == [address(1).key, address(2).key]
    assert store.read(address(1)) == payload(1)
    assert store.read(address(2)) == payload(2)
    assert store.read(address(3)) is None


def test_a_block_is_known_by_its_tokens_and_its_parent_not_by_its_key_alone(path: Path) -> None:
    store = opened(path)
    store.write([entry(1)])
    for wrong in ({"tokens": address(2).tokens}, {"parent": address(2).parent}):
        with pytest.raises(DiskError, match="is damaged"):
            store.read(address(1)._replace(**wrong))
    assert store.read(address(1)) == payload(1)


@pytest.mark.parametrize("column", ["parent", "tokens", "checksum", "bytes"])
@pytest.mark.parametrize("place", [0, -1])
def test_a_flipped_bit_is_an_error(path: Path, column: str, place: int) -> None:
    """J3: in every field, by its first and by its last byte."""
    store = opened(path)
    store.write([entry(1), entry(2)])
    store.close()
    table = "payload" if column == "bytes" else "entry"
    db = sqlite3.connect(file_of(path))
    (value,) = db.execute(f"SELECT {column} FROM {table} WHERE id = 1").fetchone()
    damaged = bytearray(value)
    damaged[place] ^= 1
    db.execute(f"UPDATE {table} SET {column} = ? WHERE id = 1", (bytes(damaged),))
    db.commit()
    db.close()
    store = opened(path)
    with pytest.raises(DiskError, match="is damaged") as raised:
        store.read(address(1))
    assert not raised.value.damaged
    store.drop(address(1).key)
    assert store.read(address(1)) is None
    assert store.read(address(2)) == payload(2)


def test_a_damaged_file_is_a_miss_an_error_or_a_fresh_start_and_never_a_wrong_block(path: Path, tmp_path: Path) -> None:
    """J3: bits flipped anywhere in the file, or its end cut off."""
    store = opened(path)
    store.write([entry(number) for number in range(20)])
    store.close()
    pristine = tmp_path / "pristine"
    shutil.copytree(path, pristine)
    rng = random.Random(3)
    misses = fresh = 0
    for _ in range(60):
        shutil.rmtree(path)
        shutil.copytree(pristine, path)
        raw = bytearray(file_of(path).read_bytes())
        # The first pages hold the trees, the others little but payload.
        end = rng.choice([100, 2 * PAGE_BYTES, len(raw)])
        for _ in range(rng.choice([1, 100])):
            raw[rng.randrange(end)] ^= 1 << rng.randrange(8)
        file_of(path).write_bytes(raw[: rng.choice([len(raw), rng.randrange(len(raw))])])
        store = opened(path)
        there = right_or_nothing(store, range(20))
        fresh += there == 0
        misses += 0 < there < 20
        with suppress(DiskError):
            store.write([entry(20)])
        right_or_nothing(store, range(21))
        store.close()
    assert misses > 0
    assert fresh > 0


def test_damage_under_an_open_file_is_an_error_and_the_store_can_start_afresh(path: Path) -> None:
    """J3."""
    store = opened(path)
    store.write([entry(number) for number in range(20)])
    with file_of(path).open("r+b") as raw:
        raw.seek(PAGE_BYTES)
        raw.write(b"\xff" * (file_of(path).stat().st_size - PAGE_BYTES))
    right_or_nothing(store, range(20))
    with pytest.raises(DiskError) as raised:
        store.write([entry(number) for number in range(20, 60)])
    assert raised.value.damaged
    store.rebuild()
    assert store.keys() == []
    store.write([entry(1)])
    assert store.read(address(1)) == payload(1)


def test_what_is_not_a_database_is_replaced(path: Path) -> None:
    path.mkdir()
    file_of(path).write_bytes(b"\0" * 100_000)
    store = opened(path)
    assert store.keys() == []
    store.write([entry(1)])
    assert store.read(address(1)) == payload(1)


def test_another_fingerprint_finds_nothing(path: Path) -> None:
    """J1, J2: whatever the fingerprint covers."""
    store = opened(path)
    store.write([entry(1)])
    store.close()
    store = opened(path, "g")
    assert store.keys() == []
    assert store.read(address(1)) is None
    store.write([entry(2)])
    store.close()
    assert opened(path, "g").read(address(2)) == payload(2)


def test_one_path_serves_one_store_at_a_time(path: Path) -> None:
    store = opened(path)
    with pytest.raises(DiskCacheError, match=r"is in use by another process; give each its own") as refused:
        opened(path)
    assert "\n" not in str(refused.value)
    store.close()
    opened(path).close()


def test_a_path_that_is_a_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskCacheError, match=r"--disk-cache .*file: ") as refused:
        opened(tmp_path / "file")
    assert "\n" not in str(refused.value)


def test_a_bound_that_holds_nothing_is_refused(path: Path) -> None:
    with pytest.raises(DiskCacheError, match=f"--disk-cache-bytes is 1; it must be at least {MIN_BYTES}"):
        opened(path, bound=1)


def test_others_may_not_read_the_folder(path: Path) -> None:
    opened(path).close()
    assert path.stat().st_mode & 0o077 == 0


def test_others_may_not_read_the_file_in_a_folder_that_was_there_and_open_to_all(path: Path) -> None:
    path.mkdir(mode=0o755)
    umask = os.umask(0o022)
    try:
        store = opened(path)
        store.write([entry(1)])
        store.rebuild()
        store.write([entry(1)])
    finally:
        os.umask(umask)
    modes = {file.name: file.stat().st_mode & 0o777 for file in path.iterdir()}
    assert modes.keys() >= {"blocks.sqlite", "lock"}
    assert set(modes.values()) == {0o600}


def test_the_least_recently_used_blocks_go_first_and_the_bound_holds(path: Path) -> None:
    store = opened(path)
    dropped = []
    for number in range(100):
        if number == 20:
            assert not dropped
            store.touch([address(1).key, address(0).key])
        dropped += store.write([entry(number)])
        assert file_of(path).stat().st_size <= BOUND
        assert store.nbytes <= BOUND
    order = [*range(2, 20), 1, 0, *range(20, 100)]
    assert dropped == [address(number).key for number in order[: len(dropped)]]
    assert len(dropped) + len(store.keys()) == 100
    # Pages hold 64 KiB, so that 100 kB take two; a few more are the trees' and room for the next batch.
    assert len(store.keys()) >= BOUND / (2 * PAGE_BYTES) - 12


def test_order_of_use_outlives_the_process(path: Path) -> None:
    store = opened(path)
    store.write([entry(number) for number in range(3)])
    store.touch([address(0).key, b"unknown"])
    store.close()
    assert opened(path).keys() == [address(number).key for number in (1, 2, 0)]


def test_a_smaller_bound_shrinks_the_file(path: Path) -> None:
    store = opened(path, bound=2 * BOUND)
    for number in range(50):
        store.write([entry(number)])
    store.close()
    assert file_of(path).stat().st_size > BOUND
    store = opened(path)
    assert file_of(path).stat().st_size <= BOUND
    assert store.keys() == [address(number).key for number in range(50)][-len(store.keys()) :]
    assert right_or_nothing(store, range(50)) == len(store.keys()) > 0


def test_a_batch_beyond_the_bound_is_an_error_and_changes_nothing(path: Path) -> None:
    store = opened(path, bound=MIN_BYTES)
    store.write([entry(1)])
    with pytest.raises(DiskError, match="--disk-cache-bytes") as raised:
        store.write([entry(2, MIN_BYTES)])
    assert not raised.value.damaged
    assert store.read(address(1)) == payload(1)


@contextmanager
def no_file_may_exceed(size: int) -> Iterator[None]:
    """What a full disk does to whoever writes: the call fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_that_is_full_is_an_error_that_changes_nothing_and_passes(path: Path) -> None:
    store = opened(path)
    store.write([entry(0)])
    size = file_of(path).stat().st_size
    with no_file_may_exceed(size), pytest.raises(DiskError) as raised:
        store.write([entry(number) for number in range(1, 10)])
    assert not raised.value.damaged
    assert store.read(address(0)) == payload(0)
    store.write([entry(10)])
    assert store.read(address(10)) == payload(10)


def test_a_disk_that_is_smaller_than_the_bound_is_used_as_far_as_it_goes(path: Path) -> None:
    store = opened(path, bound=4 * BOUND)
    # SQLite says of a file that may not grow what it says of a full disk.
    store._db.execute(f"PRAGMA max_page_count={BOUND // PAGE_BYTES}")
    dropped = []
    for number in range(60):
        dropped += store.write([entry(number)])
    assert dropped == [address(number).key for number in range(len(dropped))]
    assert right_or_nothing(store, range(60)) == 60 - len(dropped) > 15
    assert file_of(path).stat().st_size <= BOUND


_WRITER = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from disk_blocks import entry
from pageinn.store.disk import DiskStore
store = DiskStore(Path({path!r}), "f", {bound})
start = int(sys.argv[1])
print("writing", flush=True)
for number in range(start, start + 100_000, 4):
    store.write([entry(each) for each in range(number, number + 4)])
    print(number + 4, flush=True)
"""


def test_blocks_are_whole_or_absent_after_a_kill(path: Path) -> None:
    """J3, kill -9 at a random moment of writing. What a writer saw written is there, up to what it evicted since."""
    rng = random.Random(5)
    script = _WRITER.format(tests=str(Path(__file__).parent), path=str(path), bound=BOUND)
    start = 0
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", script, str(start)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        time.sleep(rng.uniform(0.01, 0.4))
        writer.kill()
        told = writer.stdout.read().splitlines()
        writer.wait()
        writer.stdout.close()
        written = int(told[-1]) if told else start
        store = opened(path)
        there = right_or_nothing(store, range(max(written - 200, 0), written + 8))
        assert there == len(store.keys())
        assert not told or store.read(address(written - 1)) == payload(written - 1)
        store.close()
        start = written


class Machine(RuleBasedStateMachine):
    """Any history of writes, touches, drops and restarts against an ordered dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(os.environ["DISK_STORE_TEST"]) / f"{id(self)}"
        self.store = opened(self.path, bound=2 << 20)
        self.model: dict[int, None] = {}

    def use(self, number: int) -> None:
        self.model.pop(number, None)
        self.model[number] = None

    @rule(numbers=st.lists(st.integers(0, 30), min_size=1, max_size=4, unique=True))
    def write(self, numbers: list[int]) -> None:
        fresh = [number for number in numbers if number not in self.model]
        dropped = self.store.write([entry(number) for number in fresh])
        oldest = list(self.model)[: len(dropped)]
        assert dropped == [address(number).key for number in oldest]
        for number in oldest:
            del self.model[number]
        for number in fresh:
            self.use(number)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(list(self.model)))
        self.store.touch([address(number).key])
        self.use(number)

    @rule(number=st.integers(0, 30))
    def drop(self, number: int) -> None:
        self.store.drop(address(number).key)
        self.model.pop(number, None)

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = opened(self.path, bound=2 << 20)

    @rule(number=st.integers(0, 30))
    def read(self, number: int) -> None:
        assert self.store.read(address(number)) == (payload(number) if number in self.model else None)

    @invariant()
    def order(self) -> None:
        assert self.store.keys() == [address(number).key for number in self.model]

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.path)


def test_any_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISK_STORE_TEST", str(tmp_path))
    machine = Machine.TestCase()
    machine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
    machine.runTest()


def test_a_value_has_the_size_that_the_machine_assumes() -> None:
    """Two pages of 64 KiB, so that the small bounds above are reached."""
    assert PAGE_BYTES < SIZE < 2 * PAGE_BYTES
