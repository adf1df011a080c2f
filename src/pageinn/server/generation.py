"""One HTTP request's run through the engine: its prompts at once, their deltas in one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pageinn.engine.messages import (
    BusyError,
    Delta,
    EngineDeadError,
    FinishReason,
    GenerationRequest,
    PromptLogProb,
    RefusedError,
    TokenLogProb,
)
from pageinn.server.errors import engine_failed, from_engine
from pageinn.server.misses import Watch
from pageinn.server.served import Served


@dataclass(frozen=True)
class Run:
    """What is to be generated: one engine request for each prompt, n choices each."""

    id: str
    requests: list[GenerationRequest]
    n: int
    stream: bool
    include_usage: bool


class Piece(NamedTuple):
    """A delta and the number of its choice among all of the run's: prompt by prompt, n each."""

    choice: int
    delta: Delta


@dataclass
class Answer:
    """One choice, put together."""

    text: str = ""
    logprobs: list[TokenLogProb] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    prompt_logprobs: tuple[PromptLogProb | None, ...] = ()


class Usage:
    """Tokens of a run, counted from its pieces."""

    def __init__(self, run: Run) -> None:
        self._n = run.n
        self._prompt = sum(len(request.prompt) for request in run.requests)
        self._completion = 0
        self._cached: dict[int, int] = {}
        self._retained: dict[int, int] = {}
        self._asked = any(request.retain for request in run.requests)

    def add(self, piece: Piece) -> None:
        """Count one piece. Cached tokens are a fact of the prompt, told by every delta of its choices."""
        self._completion += len(piece.delta.tokens)
        self._cached[piece.choice // self._n] = piece.delta.cached_tokens
        self._retained[piece.choice // self._n] = piece.delta.retained_tokens

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not computed."""
        return sum(self._cached.values())

    @property
    def retained_tokens(self) -> int:
        """Prompt tokens that are kept for a time, or pinned."""
        return sum(self._retained.values())

    def as_json(self) -> dict[str, Any]:
        """The `usage` object. What is retained stands there if something was to be."""
        details = {"cached_tokens": self.cached_tokens}
        return {
            "prompt_tokens": self._prompt,
            "completion_tokens": self._completion,
            "total_tokens": self._prompt + self._completion,
            "prompt_tokens_details": {**details, **({"retained_tokens": self.retained_tokens} if self._asked else {})},
        }


async def pieces(served: Served, run: Run) -> AsyncGenerator[Piece, None]:
    """All deltas of a run as they come. Closing this, or cancelling who waits for it, cancels the whole run.

    Raises ApiError if the engine refuses or fails any part of it.
    """
    queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(served, run, place, queue)) for place in range(len(run.requests))]
    try:
        running = len(pumps)
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, Piece):
                yield _whole(item)
            elif isinstance(item, RefusedError | BusyError | EngineDeadError):
                raise from_engine(item)
            else:
                raise item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(served: Served, run: Run, place: int, queue: asyncio.Queue[Piece | Exception | None]) -> None:
    """Move one prompt's deltas into the queue. It waits only for the engine, so a cancel lands there."""
    request = run.requests[place]
    watch = None if served.misses is None else Watch(served.misses, request)
    try:
        async for delta in served.client.generate(request):
            if watch is not None:
                watch.see(delta)
            queue.put_nowait(Piece(place * run.n + delta.index, delta))
        queue.put_nowait(None)
    except Exception as error:  # raised again where the answer is put together
        queue.put_nowait(error)


def _whole(piece: Piece) -> Piece:
    """The piece, unless it says that its choice came to nothing."""
    if piece.delta.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
        raise engine_failed(piece.delta.error or "the server has cancelled the request")
    return piece


async def collect(stream: AsyncIterator[Piece], run: Run) -> tuple[list[Answer], Usage]:
    """Every choice of a run, complete, and its usage."""
    answers = [Answer() for _ in range(len(run.requests) * run.n)]
    usage = Usage(run)
    async for choice, delta in stream:
        usage.add(Piece(choice, delta))
        answer = answers[choice]
        answer.text += delta.text
        answer.logprobs.extend(delta.logprobs)
        answer.finish_reason = delta.finish_reason or answer.finish_reason
        answer.prompt_logprobs = answer.prompt_logprobs or delta.prompt_logprobs
    return answers, usage
