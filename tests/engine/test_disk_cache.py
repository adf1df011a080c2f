"""Blocks that outlive the engine: found again, by those who may and where no bit has changed, or a miss."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
from disk_runs import (
    BLOCKS,
    SAMPLED,
    WHOLE,
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
from engine_runs import Answer, ChoiceKey, alone, engine_of, request, run, take, tokens
from tiny import write_tiny_llama

from pageinn.engine import fingerprint
from pageinn.engine.client import EngineClient
from pageinn.engine.config import ConfigError
from pageinn.engine.messages import GenerationRequest
from pageinn.memory.scopes import PUBLIC, Scope
from pageinn.store.disk import DiskCacheError

pytestmark = pytest.mark.usefixtures("computing_is_dear")


# --- a restart ---


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "fp8_e4m3", "int8"])
def test_a_restart_with_nothing_changed_hits(start: Start, dtype: str) -> None:
    """J4, and to the bit."""
    asked = prompts(1)
    before = run(start(kv_cache_dtype=dtype), asked)
    engine = start(kv_cache_dtype=dtype)
    after = run(engine, asked)
    assert bits(after) == bits(before)
    assert cached(before) == [0] * 4
    assert cached(after) == [WHOLE] * 4
    assert disk(engine).queries == disk(engine).hits == 4 * WHOLE
    assert disk(engine).errors == disk(engine).late == disk(engine).dropped_writes == 0
    assert nothing_held(engine)


def test_threads_are_no_part_of_the_fingerprint(start: Start) -> None:
    before = run(start(threads=1), prompts(1))
    after = run(start(threads=2), prompts(1))
    assert bits(after) == bits(before)
    assert cached(after) == [WHOLE] * 4


def test_answers_are_found_too(start: Start) -> None:
    """A conversation that goes on after a restart: its prompt holds the answer."""
    [first] = prompts(2, 1)
    [answer] = run(start(), [first]).values()
    longer = [*first.prompt, *answer.tokens, 5, 6, 7]
    [after] = run(start(), [request("next", longer, SAMPLED)]).values()
    # All but the last generated token have keys and values: 111 tokens.
    assert after.cached == WHOLE
    assert len(first.prompt) + len(answer.tokens) == 112


def test_the_client_writes_when_it_drains(tiny_path: Path, disk_path: Path) -> None:
    """J4, by way of the thread that serves."""

    async def ask(client: EngineClient) -> int:
        deltas = [delta async for delta in client.generate(prompts(3, 1)[0])]
        await client.drain()
        return deltas[-1].cached_tokens

    def serve() -> int:
        engine = engine_of(tiny_path, BLOCKS, disk_cache=disk_path)

        async def served() -> int:
            return await ask(EngineClient(engine))

        return asyncio.run(served())

    assert [serve(), serve()] == [0, WHOLE]


def test_what_was_demoted_before_it_was_written_is_written_from_there(
    tiny_path: Path, disk_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    block_bytes = 2 * 2 * 2 * 16 * 16 * 2
    engine = engine_of(tiny_path, 24, disk_cache=disk_path, host_memory_bytes=64 * block_bytes, max_model_len=200)
    monkeypatch.setattr(engine.core, "write_behind", lambda computed: None)
    before = {}
    for each in prompts(19, 8):
        before.update(run(engine, [each]))
    assert engine.core.scheduler.memory.host_usage().kept > 0
    engine.close()
    engine = start()
    after = run(engine, prompts(19, 8))
    assert bits(after) == bits(before)
    assert cached(after) == [WHOLE] * 8


@pytest.mark.parametrize("seed", range(3))
def test_any_history_is_right(tiny_path: Path, disk_path: Path, seed: int) -> None:
    """Restarts, aborts, resets and eviction in a pool that is too small, a small host pool and a small file."""
    rng = random.Random(seed)
    settings = {"max_model_len": 320, "disk_cache_bytes": 3 << 20, "max_num_batched_tokens": 48}
    stems = [tokens(rng, 160) for _ in range(6)]
    reference = engine_of(tiny_path, BLOCKS)
    hits = 0
    for life in range(4):
        engine = engine_of(tiny_path, 40, disk_cache=disk_path, **settings)
        asked: dict[str, GenerationRequest] = {}
        gone: set[str] = set()
        answers: dict[ChoiceKey, Answer] = {}
        for number in range(16):
            stem = rng.choice(stems)
            prompt = [*stem[: rng.choice([40, 96, 160])], *tokens(rng, rng.choice([0, 5, 40]))]
            scope = rng.choice([Scope("a"), Scope("a"), Scope("b"), PUBLIC])
            name = f"{life} {number}"
            asked[name] = replace(request(name, prompt, replace(SAMPLED, n=rng.choice([1, 1, 2]))), scope=scope)
            engine.core.submit(asked[name])
            for _ in range(rng.randrange(6)):
                for delta in engine.core.step():
                    take(answers, delta)
                engine.core.scheduler.memory.check()
            if rng.random() < 0.2:
                gone.add(name)
                engine.core.cancel(name)
            if rng.random() < 0.05:
                engine.core.reset_prefix_cache()
        while not engine.core.idle:
            for delta in engine.core.step():
                take(answers, delta)
        for name, each in asked.items():
            if name not in gone:
                for key, answer in run(reference, [each]).items():
                    assert answers[key].bits == answer.bits, key
        assert nothing_held(engine)
        engine.close()
        assert disk(engine).errors == 0
        hits += disk(engine).hits
    assert hits > 0


# --- who may read what ---


@pytest.mark.parametrize("other", [Scope("b"), Scope("a", "salt"), Scope("a", ""), PUBLIC])
def test_another_scope_finds_nothing(start: Start, other: Scope) -> None:
    """C5: through the disk too."""
    run(start(), prompts(4, 2, Scope("a")))
    engine = start()
    assert cached(run(engine, prompts(4, 2, other))) == [0, 0]
    assert disk(engine).hits == 0
    assert cached(run(start(), prompts(4, 2, Scope("a")))) == [WHOLE] * 2


def test_what_is_public_is_found_by_all_and_what_follows_by_its_owner_only(start: Start) -> None:
    [public] = prompts(5, 1, PUBLIC)
    rng = random.Random(6)
    longer = request("own", [*public.prompt[:WHOLE], *tokens(rng, 64)], SAMPLED)
    engine = start()
    run(engine, [public])
    before = run(engine, [replace(longer, scope=Scope("a"))])
    engine = start()
    of_another = run(engine, [replace(longer, scope=Scope("b"))])
    of_its_owner = run(start(), [replace(longer, scope=Scope("a"))])
    assert bits(before) == bits(of_another) == bits(of_its_owner)
    assert cached(before) == cached(of_another) == [WHOLE]
    # The last token is computed whatever is there.
    assert cached(of_its_owner) == [WHOLE + 64 - 1]


# --- what changes a bit ---


def test_another_model_under_the_same_name_finds_nothing(start: Start, tmp_path: Path) -> None:
    """C6, J1: and answers as itself."""
    file = write_tiny_llama(tmp_path / "model.gguf", seed=1)
    before = run(start(file), prompts(7))
    write_tiny_llama(file, seed=2)
    engine = start(file)
    after = run(engine, prompts(7))
    assert cached(after) == [0] * 4
    assert bits(after) == bits(alone(plain(engine), prompts(7))) != bits(before)
    write_tiny_llama(file, seed=1)
    assert bits(run(start(file), prompts(7))) == bits(before)


@pytest.mark.parametrize(
    "changed",
    [
        {"block_size": 32},
        {"kv_cache_dtype": "float32"},
        {"kv_cache_dtype": "float16"},
        {"quantization": "none"},
    ],
    ids=str,
)
def test_other_settings_find_nothing_and_start_afresh(start: Start, changed: dict[str, int | str]) -> None:
    """J2."""
    run(start(), prompts(8))
    engine = start(**changed)
    after = run(engine, prompts(8))
    assert cached(after) == [0] * 4
    assert bits(after) == bits(alone(plain(engine), prompts(8)))
    assert cached(run(start(**changed), prompts(8))) == [WHOLE] * 4


def test_other_code_finds_nothing(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """J2: a changed file of the decoder or the kernels."""
    run(start(), prompts(9))
    other = tmp_path / "decoder.py"
    other.write_text("# changed")
    code = fingerprint._code()
    monkeypatch.setattr(fingerprint, "_code", lambda: [other, *code[1:]])
    assert cached(run(start(), prompts(9))) == [0] * 4


# --- waiting and not waiting ---


def test_what_is_cheaper_to_compute_is_computed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    run(start(), prompts(14))
    engine = start()
    price(monkeypatch, 1e-9)
    assert cached(run(engine, prompts(14))) == [0] * 4
    assert disk(engine).declined == 4 * WHOLE
    assert disk(engine).hits == disk(engine).bytes_read == 0


def test_what_two_requests_want_is_read_once(start: Start) -> None:
    [first] = prompts(15, 1)
    longer = request("longer", [*first.prompt, *range(3, 103)], SAMPLED)
    before = run(start(), [first, longer])
    engine = start()
    after = run(engine, [first, replace(first, request_id="again"), longer])
    assert bits(before).items() <= bits(after).items()
    # The last token of a prompt is computed whatever is there; 200 tokens are twelve blocks and a half.
    assert cached(after) == [WHOLE, WHOLE, 192]
    assert disk(engine).bytes_read == 12 * engine.cache_bytes // engine.num_blocks


def test_of_a_prompt_larger_than_the_host_pool_as_much_is_found_as_that_holds(start: Start) -> None:
    """A quarter of 400 blocks: the 100 that were loaded are not given up for the 20 that follow them."""
    [long] = [request("long", tokens(random.Random(20), 120 * 16), SAMPLED)]
    before = run(start(), [long])
    engine = start()
    after = run(engine, [long])
    assert bits(after) == bits(before)
    assert engine.host_blocks == 100
    assert cached(after) == [100 * 16]
    assert disk(engine).hits == 100 * 16
    assert disk(engine).bytes_read == 100 * engine.cache_bytes // engine.num_blocks
    assert nothing_held(engine)


def test_a_reset_empties_the_disk_too(start: Start) -> None:
    engine = start()
    run(engine, prompts(17))
    engine.core.reset_prefix_cache()
    assert cached(run(engine, prompts(17))) == [0] * 4
    engine.core.reset_prefix_cache()
    engine = start()
    assert disk(engine).blocks == 0
    assert cached(run(engine, prompts(17))) == [0] * 4


def test_the_bound_holds_and_what_was_used_last_is_there(start: Start, disk_path: Path) -> None:
    bound = 3 << 20
    engine = start(disk_cache_bytes=bound)
    for seed in range(200, 240):
        run(engine, named(seed))
    engine = start(disk_cache_bytes=bound)
    assert (disk_path / "blocks.sqlite").stat().st_size <= bound
    assert cached(run(engine, named(239))) == [WHOLE] * 4
    assert cached(run(engine, named(200))) == [0] * 4


def test_settings_that_make_no_sense_are_refused(tiny_path: Path, disk_path: Path, start: Start) -> None:
    with pytest.raises(ConfigError, match="--disk-cache needs --prefix-cache keep"):
        engine_of(tiny_path, BLOCKS, disk_cache=disk_path, prefix_cache="live")
    with pytest.raises(DiskCacheError, match="--disk-cache-bytes is 1; it must be at least"):
        engine_of(tiny_path, BLOCKS, disk_cache=disk_path, disk_cache_bytes=1)
    start()
    with pytest.raises(DiskCacheError, match="is in use by another process"):
        engine_of(tiny_path, BLOCKS, disk_cache=disk_path)
