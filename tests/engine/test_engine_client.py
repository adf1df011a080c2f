"""The async face over the real engine: streams, cancellations, refusals and departures."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from client_runs import (
    GREEDY,
    PROMPT,
    VOCAB,
    answers_of,
    client_of,
    engine_of,
    idle,
    request,
    within_patience,
)
from engine_runs import Answer, ChoiceKey, run, take

from pageinn.engine.client import EngineClient
from pageinn.engine.messages import FinishReason, GenerationRequest, RefusedError, SamplingParams


def test_a_stream_equals_generate(tiny_path: Path) -> None:
    """The pieces of a stream, joined, are what library use returns: text, tokens and log-probabilities, n = 3."""
    sampling = SamplingParams(max_tokens=30, n=3, temperature=0.8, seed=4, logprobs=2, stop=("zz", "e"))
    expected = engine_of(tiny_path).generate([PROMPT], sampling)[0]

    async def stream() -> dict[ChoiceKey, Answer]:
        async with client_of(engine_of(tiny_path)) as client:
            return await answers_of(client, request("one", PROMPT, sampling))

    answers = within_patience(stream())
    for index, choice in enumerate(expected):
        answer = answers[ChoiceKey("one", index)]
        assert answer.text == choice.text
        assert tuple(answer.tokens) == choice.tokens
        assert tuple(answer.logprobs) == choice.logprobs
        assert (answer.finish, answer.cached) == (choice.finish_reason, choice.cached_tokens)


def test_a_client_that_goes_away_frees_its_blocks(tiny_path: Path) -> None:
    """Field case G1: a stream closed early leaves nothing in use, long before its 3,000 tokens; an end is no abort."""

    async def leave() -> None:
        async with client_of(engine_of(tiny_path, prefix_cache="off")) as client:
            await answers_of(client, request("whole"))
            assert client.stats().finished == {"length": 1}
            long = client.generate(request("left", sampling=replace(GREEDY, max_tokens=3000, n=2)))
            await anext(long)
            await anext(long)
            assert client.stats().blocks_in_use > 0
            await long.aclose()
            stats = await idle(client)
            assert stats.blocks_free == stats.blocks_total
            assert stats.finished == {"length": 1, "abort": 2}
            assert stats.generation_tokens < 3000
            assert len(await answers_of(client, request("next"))) == 1

    within_patience(leave())


def test_a_cancelled_task_frees_its_blocks(tiny_path: Path) -> None:
    """Field case G1: the task that reads a stream is cancelled while it waits, as a server does without streaming."""

    async def leave() -> None:
        async with client_of(engine_of(tiny_path, prefix_cache="off")) as client:
            reader = asyncio.create_task(answers_of(client, request("left", sampling=replace(GREEDY, max_tokens=3000))))
            while client.stats().generation_tokens < 3:
                await asyncio.sleep(0.001)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            assert (await idle(client)).finished == {"abort": 1}

    within_patience(leave())


def test_a_cancel_ends_the_stream(tiny_path: Path) -> None:
    """From outside, by its id: whoever reads the stream is not left waiting."""

    async def cancel() -> None:
        async with client_of(engine_of(tiny_path, prefix_cache="off")) as client:
            reader = asyncio.create_task(answers_of(client, request("left", sampling=replace(GREEDY, max_tokens=3000))))
            while client.stats().generation_tokens < 3:
                await asyncio.sleep(0.001)
            await client.cancel("left")
            await client.cancel("unknown")
            answer = (await reader)[ChoiceKey("left", 0)]
            assert 3 <= len(answer.tokens) < 3000
            assert answer.finish is None
            assert (await idle(client)).finished == {"abort": 1}

    within_patience(cancel())


def test_a_request_cancelled_before_its_first_step(tiny_path: Path) -> None:
    """Closed while it waits for a seat that another request holds: it never computes anything."""

    async def leave() -> None:
        async with client_of(engine_of(tiny_path, max_num_seqs=1)) as client:
            first = client.generate(request("first", sampling=replace(GREEDY, max_tokens=2000)))
            await anext(first)
            waiting = asyncio.ensure_future(anext(client.generate(request("second", range(100, 190)))))
            await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await first.aclose()
            stats = await idle(client)
            assert stats.finished == {"abort": 2}
            assert stats.prompt_tokens_computed == len(PROMPT)

    within_patience(leave())


REFUSED = [
    ("prompt", {}, ()),
    ("prompt", {}, (1, VOCAB)),
    ("prompt", {}, (1, -1)),
    ("prompt", {}, (1, 1 << 40)),
    ("prompt", {}, tuple([5] * 4096)),
    ("prompt", {}, tuple([5] * 5000)),
    ("prompt", {"max_tokens": 4090}, PROMPT),
    ("max_tokens", {"max_tokens": -3}, PROMPT),
    ("n", {"n": 0}, PROMPT),
    ("n", {"n": 129}, PROMPT),
    ("temperature", {"temperature": math.nan}, PROMPT),
    ("temperature", {"temperature": -0.1}, PROMPT),
    ("temperature", {"temperature": math.inf}, PROMPT),
    ("top_p", {"top_p": 0.0}, PROMPT),
    ("top_p", {"top_p": 1.5}, PROMPT),
    ("top_p", {"top_p": math.nan}, PROMPT),
    ("top_k", {"top_k": -1}, PROMPT),
    ("top_k", {"top_k": 1 << 31}, PROMPT),
    ("min_p", {"min_p": -0.5}, PROMPT),
    ("min_p", {"min_p": 2.0}, PROMPT),
    ("min_p", {"min_p": math.nan}, PROMPT),
    ("logprobs", {"logprobs": -1}, PROMPT),
    ("logprobs", {"logprobs": 21}, PROMPT),
    ("seed", {"seed": 1 << 64}, PROMPT),
    ("seed", {"seed": -(1 << 63) - 1}, PROMPT),
    ("stop", {"stop": ("x", "")}, PROMPT),
]


def test_what_is_refused_harms_nobody(tiny_path: Path) -> None:
    """Field case D1 and every parameter out of range: one line that names the field, and the loop serves on."""

    async def refuse() -> None:
        async with client_of(engine_of(tiny_path)) as client:
            long = client.generate(request("long", sampling=replace(GREEDY, max_tokens=300)))
            await anext(long)
            for number, (field, settings, prompt) in enumerate(REFUSED):
                with pytest.raises(RefusedError) as refused:
                    await anext(client.generate(request(f"r{number}", prompt, replace(GREEDY, **settings))))
                assert refused.value.param == field, (field, settings, len(prompt))
                assert "\n" not in str(refused.value)
            assert client.alive
            assert len([delta async for delta in long]) == 299
            # An id whose request was refused is free.
            assert (await answers_of(client, request("r0")))[ChoiceKey("r0", 0)].finish is FinishReason.LENGTH
            assert client.stats().finished == {"length": 2}
            assert client.stats().prompt_tokens == 2 * len(PROMPT)

    within_patience(refuse())


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1e-45},
        {"temperature": 1e4},
        {"top_p": 1e-300},
        {"top_k": (1 << 31) - 1},
        {"min_p": 1.0},
        {"seed": -(1 << 63)},
        {"seed": (1 << 64) - 1},
        {"logprobs": 20},
        {"n": 128, "max_tokens": 2},
    ],
)
def test_parameters_at_their_limits_are_served(tiny_path: Path, settings: dict[str, Any]) -> None:
    """Nothing that is let in may end the step loop."""
    sampling = replace(GREEDY, temperature=1.0, max_tokens=4)
    choices = engine_of(tiny_path).generate([PROMPT], replace(sampling, **settings))[0]
    assert all(choice.finish_reason is FinishReason.LENGTH for choice in choices)


def test_an_id_in_use_is_refused_and_free_after_its_end(tiny_path: Path) -> None:
    async def twice() -> None:
        async with client_of(engine_of(tiny_path)) as client:
            first = client.generate(request("same", sampling=replace(GREEDY, max_tokens=50)))
            await anext(first)
            with pytest.raises(RefusedError, match="same is in use"):
                await anext(client.generate(request("same")))
            assert len([delta async for delta in first]) == 49
            assert len([delta async for delta in client.generate(request("same"))]) == 8

    within_patience(twice())


def test_an_id_used_again_at_once_gets_none_of_the_old_answer(tiny_path: Path) -> None:
    """A stream is closed and its id reused before the step loop has heard of either: the old deltas go nowhere."""
    other = tuple(range(200, 260))
    expected = run(engine_of(tiny_path), [request("same", other)])[ChoiceKey("same", 0)]

    async def reuse() -> None:
        async with client_of(engine_of(tiny_path)) as client:
            for _ in range(60):
                old = client.generate(request("same", sampling=replace(GREEDY, max_tokens=2000)))
                await anext(old)
                await old.aclose()
                answer = (await answers_of(client, request("same", other)))[ChoiceKey("same", 0)]
                assert answer.bits == expected.bits

    within_patience(reuse())


def traffic(seed: int, count: int) -> list[GenerationRequest]:
    """Prompts in families, some with several choices."""
    rng = random.Random(seed)
    heads = [[rng.randrange(3, VOCAB) for _ in range(40)] for _ in range(4)]
    return [
        request(
            f"{seed}-{number}",
            [*rng.choice(heads), *(rng.randrange(3, VOCAB) for _ in range(rng.randrange(1, 30)))],
            replace(GREEDY, max_tokens=rng.randrange(1, 60), n=rng.choice([1, 1, 3]), temperature=1.0, seed=number),
        )
        for number in range(count)
    ]


async def read_some(client: EngineClient, each: GenerationRequest, rng: random.Random) -> dict[ChoiceKey, Answer]:
    """Read a stream to its end, or leave it after a few deltas or a moment; complete answers only."""
    answers: dict[ChoiceKey, Answer] = {}
    await asyncio.sleep(rng.random() * 0.2)
    stream = client.generate(each)
    leave_after = rng.randrange(40) if rng.random() < 0.5 else None
    async for delta in stream:
        take(answers, delta)
        if leave_after is not None and sum(len(answer.tokens) for answer in answers.values()) > leave_after:
            await stream.aclose()
            return {}
    return answers


def test_many_streams_and_random_departures_from_two_event_loops(tiny_path: Path) -> None:
    """Field cases A3, A8, G1: a pool that preempts, half of the clients leave; answers are exact and nothing leaks."""
    engine = engine_of(tiny_path, 24, max_num_seqs=16)
    memory = engine.core.scheduler.memory
    requests = {seed: traffic(seed, 60) for seed in (1, 2)}
    expected: dict[ChoiceKey, Answer] = {}
    for each in (*requests[1], *requests[2]):
        expected.update(run(engine, [each]))
    assert memory.usage().in_use == 0
    client = EngineClient(engine)
    found: dict[ChoiceKey, Answer] = {}

    async def one_loop(seed: int) -> None:
        rng = random.Random(seed)
        for answers in await asyncio.gather(*(read_some(client, each, rng) for each in requests[seed])):
            found.update(answers)

    other = threading.Thread(target=lambda: within_patience(one_loop(2)))
    other.start()
    within_patience(one_loop(1))
    other.join()
    stats = within_patience(idle(client))
    within_patience(client.drain())
    memory.check()
    assert stats.blocks_in_use == 0
    assert stats.blocks_free + stats.blocks_kept == 24
    assert stats.preemptions > 0
    assert stats.finished["abort"] > 0
    assert len(found) > 30
    for key, answer in found.items():
        assert answer.bits == expected[key].bits, key
        assert answer.finish == expected[key].finish
