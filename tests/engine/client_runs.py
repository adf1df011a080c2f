"""Drive a client over the real engine, and give up on what hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from engine_runs import OPTIMISTIC, Answer, ChoiceKey, take, with_blocks

from pageinn.engine.client import EngineClient
from pageinn.engine.engine import Engine
from pageinn.engine.messages import GenerationRequest, SamplingParams
from pageinn.engine.stats import Stats

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
PROMPT = tuple(range(40, 90))
VOCAB = 320
#: Only a hang takes this long.
PATIENCE = 120.0

Result = TypeVar("Result")


def engine_of(path: Path, blocks: int = 300, **settings: int | str) -> Engine:
    return Engine(with_blocks(path, blocks, replace(OPTIMISTIC, threads=1, **settings)))


def request(name: str, prompt: Sequence[int] = PROMPT, sampling: SamplingParams = GREEDY) -> GenerationRequest:
    return GenerationRequest(name, tuple(prompt), sampling)


def within_patience(work: Coroutine[Any, Any, Result]) -> Result:
    async def limited() -> Result:
        return await asyncio.wait_for(work, PATIENCE)

    return asyncio.run(limited())


@asynccontextmanager
async def client_of(engine: Engine) -> AsyncIterator[EngineClient]:
    client = EngineClient(engine)
    try:
        yield client
    finally:
        await client.drain()
        assert not client.alive


async def answers_of(client: EngineClient, *requests: GenerationRequest) -> dict[ChoiceKey, Answer]:
    answers: dict[ChoiceKey, Answer] = {}

    async def one(each: GenerationRequest) -> None:
        async for delta in client.generate(each):
            take(answers, delta)

    await asyncio.gather(*map(one, requests))
    return answers


async def idle(client: EngineClient) -> Stats:
    """The statistics once nothing is in use any more."""
    while (stats := client.stats()).blocks_in_use or stats.running or stats.waiting:
        await asyncio.sleep(0.005)
    return stats
