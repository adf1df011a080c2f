"""What the simulator says is what the engine does: its counters to the token, and each decision to the block."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from engine_runs import engine_of, request, run, tokens
from tiny import write_tiny_llama

from pageinn.engine.config import EngineConfig
from pageinn.engine.engine import Engine
from pageinn.engine.messages import SamplingParams
from pageinn.memory.manager import MemoryManager
from pageinn.memory.tokens import pack
from pageinn.scheduling.measuring import Copied
from pageinn.scheduling.plan import Event, Outcome, Plan
from pageinn.scheduling.scheduler import Scheduler
from pageinn.simulate.jobs import Job, job
from pageinn.simulate.machine import Took
from pageinn.simulate.run import simulate

PROMPTS = Path(__file__).parents[1] / "data" / "miniswe" / "inputs.jsonl"
ANSWER = 6
#: Of the default model in bfloat16: 30 layers, 3 heads of 64, keys and values.
TOKEN_BYTES_STORED = 30 * 2 * 3 * 64 * 2
BLOCK = 16


class Instant:
    def took(self, plan: Plan) -> Took:
        return Took(1e-6, Copied())


def prompts_of(engine: Engine, count: int, longest: int) -> list[list[int]]:
    """Real agent prompts cut at different lengths, so that they part, repeat and go on; some are repeated whole."""
    rng = random.Random(5)
    whole = [engine.tokenizer.encode(json.loads(line)["input"])[:longest] for line in PROMPTS.read_text().splitlines()]
    cut = [one[: rng.randrange(20, len(one))] for one in rng.choices(whole, k=count)]
    return [one[:-5] + tokens(rng, 5) if rng.random() < 0.4 else one for one in cut]


@pytest.mark.parametrize("blocks", [18, 60, 1000])
def test_one_at_a_time_counters_agree_to_the_token(smollm2_path: Path, blocks: int) -> None:
    """The default model over 40 real prompts, one after the other, in pools that keep nearly nothing, some, and all."""
    cache = blocks * BLOCK * TOKEN_BYTES_STORED
    live = Engine(EngineConfig(smollm2_path, kv_cache_memory_bytes=cache, block_size=BLOCK, max_model_len=256))
    jobs: list[Job] = []
    sampling = SamplingParams(max_tokens=ANSWER, temperature=0.0)
    for number, prompt in enumerate(prompts_of(live, 40, 200)):
        (answer,) = run(live, [request(str(number), prompt, sampling)]).values()
        count = len(answer.tokens)
        jobs.append(job(number, 1000.0 * number, pack(prompt), count, ANSWER, answer=pack(answer.tokens)))
    memory = MemoryManager(blocks, BLOCK)
    simulated = simulate(jobs, Scheduler(live.core.scheduler.config, memory), Instant())
    found, real = simulated.counters, live.core.scheduler.counters
    assert real.hits > 0
    assert (found.queries, found.hits, found.computed_prompt_tokens) == (
        real.queries,
        real.hits,
        real.computed_prompt_tokens,
    )
    assert memory.evicted_blocks == live.core.scheduler.memory.evicted_blocks
    assert memory.usage() == live.core.scheduler.memory.usage()


class Recorded(NamedTuple):
    """A step as it was: what went in, and what was decided."""

    now: float
    events: list[Event]
    plan: Plan
    sampled: dict[int, int]
    outcomes: list[Outcome]


class Recorder:
    """Stands between the engine's core and its scheduler, and writes down all that passes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.steps: list[Recorded] = []
        self._schedule, self._commit = scheduler.schedule, scheduler.commit
        scheduler.schedule = self.schedule  # type: ignore[method-assign]
        scheduler.commit = self.commit  # type: ignore[method-assign]

    def schedule(self, now: float, events: Iterable[Event]) -> Plan:
        self._now, self._events = now, list(events)
        return self._schedule(now, self._events)

    def commit(self, plan: Plan, sampled: Mapping[int, int], *failed: object) -> list[Outcome]:
        outcomes = self._commit(plan, sampled, *failed)
        self.steps.append(Recorded(self._now, self._events, plan, dict(sampled), outcomes))
        return outcomes


def test_recorded_events_reproduce_every_decision(tmp_path: Path) -> None:
    """40 requests at once in a pool for a quarter of them, some with several choices: every plan and outcome again."""
    rng = random.Random(3)
    live = engine_of(write_tiny_llama(tmp_path / "tiny.gguf"), 60, block_size=8, max_model_len=200)
    recorder = Recorder(live.core.scheduler)
    head = tokens(rng, 40)
    requests = [
        request(str(n), head[: rng.randrange(41)] + tokens(rng, 8), SamplingParams(max_tokens=30, n=1 + n % 3, seed=n))
        for n in range(40)
    ]
    run(live, requests)
    again = Scheduler(live.core.scheduler.config, MemoryManager(60, 8))
    for step in recorder.steps:
        assert again.schedule(step.now, step.events) == step.plan
        assert again.commit(step.plan, step.sampled) == step.outcomes
    assert again.counters == live.core.scheduler.counters
    assert sum(bool(step.plan.edits) for step in recorder.steps) > 20
