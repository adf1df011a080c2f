"""One row of the stack on the live engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pageinn.engine.config import EngineConfig
from pageinn.engine.engine import Engine
from pageinn.engine.messages import GenerationRequest, SamplingParams
from pageinn.scheduling.config import AdmissionMode
from pageinn.stack.levers import Lever
from pageinn.stack.workload import Conversation, Shape, conversations

#: A block of a whole length must hold a multiple of this many tokens.
_GRAIN = 8


@dataclass(frozen=True)
class Bench:
    """What all rows have in common. limit: the longest sequence. batched: tokens of one step."""

    model: Path | None
    cache_bytes: int
    limit: int
    lengths: Sequence[int]
    count: int
    shape: Shape
    seqs: int
    batched: int
    threads: int | None


class Measured(NamedTuple):
    """What a row brought.

    residents: mean of how many requests held memory while it was full and others waited; the most at once if nobody
    had to wait for memory. wasted: the share of their slots that held nothing, over the same time. rate: generated
    tokens a second, all in all. hit_rate: prompt tokens not computed, by all of them.
    """

    blocks: int
    block_size: int
    residents: float
    waited: bool
    wasted: float
    rate: float
    hit_rate: float


class _Step(NamedTuple):
    """A step as it was computed. limited: others waited, and not because the step had no tokens or seats left."""

    seconds: float
    running: int
    limited: bool
    wasted: float


def measure(lever: Lever, bench: Bench, done: Callable[[int], None] = lambda tokens: None) -> Measured:
    """Load the engine as the row has it and take all conversations through it; `done` hears of generated tokens.

    Raises ConfigError, among others where the cache does not hold one sequence of the limit.
    """
    block_size = -(-bench.limit // _GRAIN) * _GRAIN if lever.whole else 16
    config = EngineConfig(
        model=bench.model,
        kv_cache_dtype=lever.dtype,
        kv_cache_memory_bytes=bench.cache_bytes,
        block_size=block_size,
        max_num_seqs=bench.seqs,
        max_num_batched_tokens=max(bench.batched, bench.seqs),
        max_model_len=bench.limit,
        prefix_cache=lever.prefix_cache,
        # A resident is promised its whole length, as the planner counts it.
        admission=AdmissionMode.GUARANTEED,
        threads=bench.threads,
        seed=0,
    )
    return _Run(Engine(config), bench).measure(done)


class _Run:
    def __init__(self, engine: Engine, bench: Bench) -> None:
        self._engine = engine
        self._core = engine.core
        self._bench = bench
        self._open: dict[str, Conversation] = {}
        self._answers: dict[str, list[int]] = {}
        self._turns = 0

    def measure(self, done: Callable[[int], None]) -> Measured:
        bench, scheduler = self._bench, self._core.scheduler
        for one in conversations(bench.lengths, bench.count, bench.shape, self._engine.vocab_size):
            self._ask(one)
        steps: list[_Step] = []
        tokens = before = 0
        while not self._core.idle:
            began = time.perf_counter()
            deltas = self._core.step()
            seconds = time.perf_counter() - began
            wasted = scheduler.memory.occupancy().wasted or 0.0
            ended = sum(delta.finish_reason is not None for delta in deltas)
            running = scheduler.num_running + ended
            computed = scheduler.counters.computed_prompt_tokens
            prompts, before = computed - before, computed
            room = prompts + running < scheduler.config.max_num_batched_tokens and running < bench.seqs
            steps.append(_Step(seconds, running, room and scheduler.num_waiting > 0, wasted))
            generated = 0
            for delta in deltas:
                generated += len(delta.tokens)
                self._answers[delta.request_id] += delta.tokens
                if delta.finish_reason is not None:
                    self._end(delta.request_id)
            tokens += generated
            done(generated)
        full = _while_full(steps)
        time_full = sum(step.seconds for step in full)
        counters = scheduler.counters
        return Measured(
            self._engine.num_blocks,
            self._engine.config.block_size,
            sum(step.running * step.seconds for step in full) / time_full,
            any(step.limited for step in full),
            sum(step.wasted * step.seconds for step in full) / time_full,
            tokens / sum(step.seconds for step in steps),
            counters.hits / counters.queries,
        )

    def _ask(self, conversation: Conversation) -> None:
        name = str(self._turns)
        self._turns += 1
        self._open[name] = conversation
        self._answers[name] = []
        sampling = SamplingParams(max_tokens=self._bench.shape.answer, temperature=0.0, ignore_eos=True)
        self._core.submit(GenerationRequest(name, conversation.next_prompt(), sampling))

    def _end(self, name: str) -> None:
        conversation = self._open.pop(name)
        if conversation.answered(self._answers.pop(name)):
            self._ask(conversation)


def _while_full(steps: list[_Step]) -> list[_Step]:
    """The steps in which memory was what others waited for; if there was none, the one in which most ran.

    Before it was full for the first time, others may have waited for the one that computes what they share.
    """
    most = max(step.running for step in steps)
    first = next(at for at, step in enumerate(steps) if step.running >= 0.9 * most)
    return [step for step in steps[first:] if step.limited] or [max(steps, key=lambda step: step.running)]
