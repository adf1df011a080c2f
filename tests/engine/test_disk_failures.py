"""A disk that is damaged, fails, hangs or lies under a killed engine: a miss, and never an error of a request."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from disk_runs import (
    WHOLE,
    Failing,
    Start,
    bits,
    cached,
    disk,
    named,
    nothing_held,
    plain,
    price,
    prompts,
)
from engine_runs import alone, finish, run

pytestmark = pytest.mark.usefixtures("computing_is_dear")


def test_flipped_bytes_are_misses_and_counted_errors(start: Start, disk_path: Path) -> None:
    """J3."""
    before = run(start(), prompts(10))
    start().close()
    file = disk_path / "blocks.sqlite"
    raw = bytearray(file.read_bytes())
    # Every block of the tiny model holds 4 KiB of payload: one byte in each stretch of so many.
    rng = random.Random(1)
    for place in range(2 * 65536, len(raw) - 4096, 4096):
        raw[place + rng.randrange(4096)] ^= 1
    file.write_bytes(raw)
    engine = start()
    after = run(engine, prompts(10))
    assert bits(after) == bits(before)
    assert disk(engine).errors > 0
    assert disk(engine).hits < 4 * WHOLE
    assert nothing_held(engine)


@pytest.mark.parametrize("way", ["read", "read once", "short", "full", "keys"])
def test_a_disk_that_fails_changes_no_answer(start: Start, failing: type[Failing], way: str) -> None:
    before = run(start(), prompts(11))
    engine = start()
    failing.broken = frozenset({way})
    if way == "keys":
        engine = start()
    asked = [*prompts(11), *(replace(each, request_id=f"new {each.request_id}") for each in prompts(12))]
    after = run(engine, asked)
    assert bits(after) == bits(alone(plain(engine), asked))
    assert bits(before).items() <= bits(after).items()
    assert all(answer.finish == "length" for answer in after.values())
    engine.close()
    stats = disk(engine)
    told = {
        "read": stats.errors >= 1 and stats.hits == 0,
        "read once": stats.errors == 1 and stats.hits == 3 * WHOLE,
        "short": stats.hits == 0,
        "full": stats.errors >= 1 and stats.dropped_writes >= 4 * 6 and stats.blocks == 4 * 6,
        "keys": stats.errors == 1 and stats.hits == 0 and stats.blocks == 8 * 6,
    }
    assert told[way], stats
    assert nothing_held(engine)


def test_a_disk_that_hangs_is_waited_for_no_longer_than_computing_takes(
    start: Start, failing: type[Failing], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run(start(), prompts(13))
    engine = start()
    price(monkeypatch, 0.002)
    failing.broken = frozenset({"hang"})
    after = run(engine, prompts(13))
    assert bits(after) == bits(before)
    assert cached(after) == [0] * 4
    assert disk(engine).late > 0
    assert nothing_held(engine)
    # Nobody waits for it again before it has come back.
    late = disk(engine).late
    engine.core.scheduler.memory.reset()
    assert bits(run(engine, prompts(13))) == bits(before)
    assert disk(engine).late == late
    failing.broken = frozenset()
    failing.go.set()
    end = time.monotonic() + 60
    while not cached(run(engine, prompts(13)))[0]:
        engine.core.scheduler.memory.reset()
        assert time.monotonic() < end
    assert nothing_held(engine)


@pytest.mark.parametrize("bound", [{"max_queued_requests": 2}, {"max_queued_tokens": 250}])
def test_the_bounds_of_the_queue_count_what_waits_for_the_disk(
    start: Start, failing: type[Failing], bound: dict[str, int]
) -> None:
    """Four of 100 tokens come while the disk hangs: two wait for it, and two are turned away at once."""
    run(start(), prompts(14))
    engine = start(**bound)
    failing.broken = frozenset({"hang"})
    for each in prompts(14):
        engine.core.submit(each)
    refused = {delta.request_id for delta in engine.core.step() if delta.busy is not None}
    assert refused == {"r2", "r3"}
    stats = engine.core.stats()
    assert (stats.waiting, stats.queued_tokens) == (2, 200)
    failing.broken = frozenset()
    failing.go.set()
    assert cached(finish(engine)) == [WHOLE] * 2
    assert engine.core.stats().queued_tokens == 0
    assert nothing_held(engine)


_KILLED = """
import random, sys
sys.path[:0] = {paths!r}
from pathlib import Path
from engine_runs import engine_of, run, request, tokens
from disk_runs import BLOCKS, prompts
engine = engine_of(Path({model!r}), BLOCKS, disk_cache=Path({path!r}), disk_cache_bytes={bound})
told = False
for seed in range(int(sys.argv[1]), 1000):
    run(engine, prompts(seed))
    if not told and engine.core.stats().disk.blocks:
        print("writing", flush=True)
        told = True
"""


def test_an_engine_that_was_killed_while_it_wrote_is_right_afterwards(
    tiny_path: Path, disk_path: Path, start: Start
) -> None:
    """J3, kill -9. `benchmarks/disk_kills.py` does it 50 times."""
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "model")]
    bound = 256 << 20  # more than is written in that time, so that the first prompts are still there
    script = _KILLED.format(paths=paths, model=str(tiny_path), path=str(disk_path), bound=bound)
    rng = random.Random(2)
    for _ in range(2):
        killed = subprocess.Popen([sys.executable, "-c", script, "100"], stdout=subprocess.PIPE, text=True)
        assert killed.stdout is not None
        assert killed.stdout.readline() == "writing\n"
        time.sleep(rng.uniform(0.3, 0.8))
        killed.kill()
        killed.wait()
        killed.stdout.close()
    engine = start(disk_cache_bytes=bound)
    asked = [each for seed in range(100, 103) for each in named(seed)]
    after = run(engine, asked)
    assert bits(after) == bits(alone(plain(engine), asked))
    assert disk(engine).hits > 0
    assert disk(engine).errors == 0


def test_a_request_that_goes_away_while_it_waits_leaves_nothing_behind(start: Start, failing: type[Failing]) -> None:
    """D5, for slots that are being filled from the disk."""
    run(start(), prompts(16))
    engine = start()
    failing.broken = frozenset({"hang"})
    for each in prompts(16):
        engine.core.submit(each)
    for _ in range(3):
        assert engine.core.step() == []
    assert engine.core.scheduler.memory.host_usage().held > 0
    for each in prompts(16):
        engine.core.cancel(each.request_id)
    assert finish(engine) == {}
    assert nothing_held(engine)
    failing.go.set()


def test_a_reset_while_requests_wait_lets_them_go(start: Start, failing: type[Failing]) -> None:
    before = run(start(), prompts(18))
    engine = start()
    failing.broken = frozenset({"hang"})
    for each in prompts(18):
        engine.core.submit(each)
    engine.core.step()
    engine.core.reset_prefix_cache()
    after = finish(engine)
    assert bits(after) == bits(before)
    assert cached(after) == [0] * 4
    assert nothing_held(engine)
    failing.go.set()
