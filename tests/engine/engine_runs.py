"""Drive an engine step by step and put its answers together, to the bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pageinn.engine.config import EngineConfig
from pageinn.engine.engine import Engine
from pageinn.engine.messages import Delta, FinishReason, GenerationRequest, SamplingParams, TokenLogProb
from pageinn.scheduling.config import AdmissionMode
from pageinn.store.kv_store import KVStore, bytes_per_block

#: Small pools, in which much is preempted.
OPTIMISTIC = EngineConfig(admission=AdmissionMode.OPTIMISTIC)
GREEDY = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


def request(name: str, prompt: Sequence[int], sampling: SamplingParams = GREEDY) -> GenerationRequest:
    return GenerationRequest(name, tuple(prompt), sampling)


def tokens(rng: random.Random, count: int) -> list[int]:
    """Ids of the tiny model's vocabulary, none of them a control token."""
    return [rng.randrange(3, 320) for _ in range(count)]


def engine_of(path: Path, blocks: int, **settings: int | str) -> Engine:
    return Engine(with_blocks(path, blocks, replace(OPTIMISTIC, **settings)))


class ChoiceKey(NamedTuple):
    request_id: str
    index: int


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogProb] = field(default_factory=list)
    text: str = ""
    cached: int = 0
    finish: FinishReason | None = None

    @property
    def bits(self) -> tuple[list[int], list[TokenLogProb], str]:
        """Everything of an answer that must not depend on anything but its request."""
        return self.tokens, self.logprobs, self.text


def run(
    engine: Engine, requests: Sequence[GenerationRequest], between: Callable[[], None] = lambda: None
) -> dict[ChoiceKey, Answer]:
    """Submit all at once and step until nothing is left; `between` is called before each step."""
    for request in requests:
        engine.core.submit(request)
    return finish(engine, between)


def finish(engine: Engine, between: Callable[[], None] = lambda: None) -> dict[ChoiceKey, Answer]:
    answers: dict[ChoiceKey, Answer] = {}
    while not engine.core.idle:
        between()
        for delta in engine.core.step():
            take(answers, delta)
    return answers


def take(answers: dict[ChoiceKey, Answer], delta: Delta) -> None:
    answer = answers.setdefault(ChoiceKey(delta.request_id, delta.index), Answer())
    assert answer.finish is None, "a delta after the end"
    answer.tokens += delta.tokens
    answer.logprobs += delta.logprobs
    answer.text += delta.text
    answer.cached = delta.cached_tokens
    answer.finish = delta.finish_reason


def alone(config: EngineConfig, requests: Sequence[GenerationRequest]) -> dict[ChoiceKey, Answer]:
    """The reference: each request by itself, nothing shared or kept, one thread, a large pool."""
    engine = Engine(replace(config, prefix_cache="off", threads=1))
    answers = {}
    for request in requests:
        answers.update(run(engine, [request]))
    return answers


def with_blocks(path: Path, blocks: int, config: EngineConfig) -> EngineConfig:
    """The settings with memory for exactly that many blocks of the tiny model (2 layers, 2 heads of 16)."""
    size = bytes_per_block(2, 2, 16, config.block_size, config.store_dtype)
    return replace(config, model=path, kv_cache_memory_bytes=blocks * size)


def store_of(engine: Engine) -> KVStore:
    return engine.core._executor._store


def poison(engine: Engine, blocks: Sequence[int] | None = None) -> None:
    """Fill blocks (all if None) with bit patterns that are not a number in any float format, scales included."""
    store = store_of(engine)
    for array in store.block_arrays():
        raw = array.view(np.uint8)
        if blocks is None:
            raw[:] = 0xFF
        else:
            raw[:, list(blocks)] = 0xFF
