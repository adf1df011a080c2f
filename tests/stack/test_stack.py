"""The bench of the levers: its conversations, its arithmetic, and two rows on a tiny model."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tiny import write_tiny_llama

from pageinn.catalogue.models import find_model
from pageinn.plan.local import find
from pageinn.stack.levers import LEVERS
from pageinn.stack.report import as_json, as_text, multiplied, planned_users, rows_of
from pageinn.stack.run import Bench, Measured, _Step, _while_full, measure
from pageinn.stack.workload import Shape, WorkloadError, conversations, spread, turn_lengths

GIB = 2**30


def bench(**changes: object) -> Bench:
    settings: dict[str, object] = {
        "model": None,
        "cache_bytes": 53 * GIB,
        "limit": 8192,
        "lengths": (300, 2000, 600, 4400),
        "count": 8,
        "shape": Shape(),
        "seqs": 64,
        "batched": 256,
        "threads": None,
    }
    return Bench(**{**settings, **changes})  # type: ignore[arg-type]  what differs is named by the test


def test_any_stretch_of_conversations_is_like_the_whole_sample() -> None:
    """Van der Corput: 0, 1/2, 1/4, 3/4, 1/8, ...: each four lengths are the sample, each two half of either side."""
    assert spread([40, 10, 30, 20], 8) == [10, 30, 20, 40, 10, 30, 20, 40]


def test_turns_grow_evenly_to_the_final_length() -> None:
    assert turn_lengths(100, Shape(shared=20, turns=4, answer=5)) == [40, 60, 80, 100]
    with pytest.raises(WorkloadError, match="at least 44"):
        turn_lengths(43, Shape(shared=20, turns=4, answer=5))


def test_a_turn_repeats_all_before_it_and_all_begin_alike() -> None:
    first, second = conversations([30], 2, Shape(shared=8, turns=2, answer=3), vocab=1000)
    one = first.next_prompt()
    assert (len(one), len(second.next_prompt())) == (17, 17)
    assert first.answered([7, 7, 7])
    two = first.next_prompt()
    assert two[:20] == (*one, 7, 7, 7)
    assert len(two) == 28
    assert not first.answered([1, 1, 1])
    assert second.next_prompt()[:8] == one[:8]


def test_only_steps_in_which_memory_was_short_count() -> None:
    """Filling and emptying are left out; where memory was never short, the fullest step stands."""
    steps = [_Step(1.0, run, short, 0.0) for run, short in [(1, True), (2, False), (20, True), (19, True), (21, False)]]
    assert [step.running for step in _while_full(steps)] == [20, 19]
    assert [step.running for step in _while_full(steps[1:2] + steps[4:])] == [21]


def test_the_plan_beside_it_is_the_planners() -> None:
    """Llama 3 8B within 53.1 GiB at a limit of 8,192: 53 whole; in blocks of a mean of 2,275 tokens, 381."""
    planned = planned_users(
        bench(cache_bytes=int(53.1 * GIB), lengths=(2275,), shape=Shape(answer=10)), find_model("llama-3-8b")
    )
    assert planned["whole"] == 53
    assert planned["paged"] == 53.1 * GIB // (131_072 * 2288)
    assert planned["fp8"] == 53.1 * GIB // (65_536 * 2288)


def figures(residents: float, rate: float, waited: bool = True) -> Measured:
    return Measured(100, 16, residents, waited, 0.01, rate, 0.5)


def test_gains_are_over_the_row_before_and_the_product_is_of_each_alone() -> None:
    """2 to 10 by paging, 10 to 20 by keeping, 10 to 19 by fp8: 5 x 2 x 1.9 = 19; together 36 / 2 = 18."""
    measured = {
        "whole": figures(2, 10),
        "paged": figures(10, 20),
        "shared": figures(16, 30),
        "kept": figures(20, 60),
        "fp8": figures(36, 90),
        "fp8_alone": figures(19, 25),
    }
    rows = rows_of(measured, bench(), find_model("llama-3-8b"))
    gains = {row.lever.key: row.gain for row in rows}
    assert gains == pytest.approx(
        {"whole": 1.0, "paged": 5.0, "shared": 1.6, "kept": 1.25, "fp8": 1.8, "fp8_alone": 1.9}
    )
    assert multiplied(rows) == pytest.approx((19.0, 18.0))
    assert multiplied(rows[:-1]) is None


def test_the_lengths_alone_say_what_reserving_wastes() -> None:
    """300, 2,000, 600 and 4,400 tokens at a limit of 8,192: 77.7 %; in blocks of 16, 12 slots of 7,312: 0.16 %."""
    rows = rows_of({lever.key: figures(1, 1, waited=False) for lever in LEVERS}, bench(), find_model("llama-3-8b"))
    text = as_text(rows, bench(), find_model("llama-3-8b"))
    assert "77.7 %" in text
    assert "0.16 %" in text
    assert "nobody had to wait" in text
    assert max(map(len, text.splitlines())) <= 80
    assert [row["lever"] for row in as_json(rows, bench())["rows"]] == [lever.key for lever in LEVERS]


def test_fp8_has_twice_the_blocks_and_conversations_end(tmp_path: Path) -> None:
    """The same bytes give exactly twice the blocks, and the second turn hits the first one's prompt and answer."""
    small = bench(
        model=write_tiny_llama(tmp_path / "tiny.gguf"),
        cache_bytes=1 << 16,
        limit=64,
        lengths=(40, 60),
        shape=Shape(4, 2, 4),
        batched=64,
    )
    by_key = {lever.key: lever for lever in LEVERS}
    paged, fp8 = measure(by_key["paged"], small), measure(by_key["fp8"], small)
    assert fp8.blocks == 2 * paged.blocks
    assert paged.hit_rate == 0.0
    assert fp8.hit_rate > 0.2


@pytest.mark.parametrize("key", ["paged", "shared", "fp8"])
def test_the_planner_and_the_engine_agree_on_how_many_fit(tmp_path: Path, key: str) -> None:
    """With over 200 residents of 33 to 96 tokens, what is measured and what is planned differ by under 2 %."""
    model = write_tiny_llama(tmp_path / "tiny.gguf")
    rng = random.Random(1)
    lengths = tuple(rng.randrange(33, 97) for _ in range(256))
    shared = 0 if key == "paged" else 16
    token = 2 * 2 * 2 * 16 * 2  # layers, keys and values, heads, dimensions, bytes
    crowd = bench(
        model=model,
        cache_bytes=220 * 72 * token // (2 if key == "fp8" else 1),
        limit=128,
        lengths=lengths,
        count=1200,
        shape=Shape(shared, 1, 8),
        seqs=512,
        batched=4096,
    )
    lever = next(lever for lever in LEVERS if lever.key == key)
    found = measure(lever, crowd)
    planned = planned_users(crowd, find(str(model)).shape)[key]
    assert planned > 200
    assert found.waited
    assert found.residents == pytest.approx(planned, rel=0.02)
