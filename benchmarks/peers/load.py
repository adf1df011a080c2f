"""Closed-loop load: every client sends its next request as soon as the last is answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from .workloads import Client, Step, Turn

Messages = list[dict[str, str]]


class LoadError(RuntimeError):
    """A request failed; the message says how the engine answered."""


class Answer(NamedTuple):
    """One request's. ttft: seconds to the first token. cached_tokens: not computed, as far as the engine tells."""

    ttft: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    text: str = ""


class Target(Protocol):
    """An engine that is up. All calls generate exactly max_tokens, greedily; they raise LoadError."""

    version: str
    precision: str

    async def complete(self, prompt: Sequence[int], max_tokens: int) -> Answer: ...

    async def chat(self, messages: Messages, max_tokens: int) -> Answer: ...

    async def tokens(self, prompt: Sequence[int], max_tokens: int) -> list[int]:
        """The answer's token ids."""


class Load(NamedTuple):
    """One workload's run. ttft: seconds of each request, in order of size."""

    seconds: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    ttft: list[float]


async def drive(target: Target, clients: Sequence[Client]) -> Load:
    answers: list[Answer] = []
    began = time.perf_counter()
    await asyncio.gather(*(_client(target, client, answers) for client in clients))
    seconds = time.perf_counter() - began
    return Load(
        seconds,
        sum(answer.prompt_tokens for answer in answers),
        sum(answer.output_tokens for answer in answers),
        sum(answer.cached_tokens for answer in answers),
        sorted(answer.ttft for answer in answers),
    )


async def _client(target: Target, client: Client, answers: list[Answer]) -> None:
    messages: Messages = []
    for step in client:
        if isinstance(step, Step):
            answer = await target.complete(step.prompt, step.max_tokens)
        else:
            answer = await _turn(target, step, messages)
        if answer.output_tokens != step.max_tokens:
            raise LoadError(f"{answer.output_tokens} tokens came where {step.max_tokens} were asked for")
        answers.append(answer)


async def _turn(target: Target, turn: Turn, messages: Messages) -> Answer:
    if turn.system is not None:
        messages.append({"role": "system", "content": turn.system})
    messages.append({"role": "user", "content": turn.user})
    answer = await target.chat(list(messages), turn.max_tokens)
    messages.append({"role": "assistant", "content": answer.text})
    return answer
