"""Where a decode step's time goes: kernels, and the Python around them.

python benchmarks/step.py [--users 16] [--context 128] [--steps 200]

The default model behind the engine's client, as the server runs it, with one stream for each user. Times are wall
time of the step loop's thread, medians over the steps. What is timed is wrapped, which adds some 0.05 ms to a step.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from pageinn.engine.client import EngineClient
from pageinn.engine.config import EngineConfig
from pageinn.engine.engine import Engine
from pageinn.engine.messages import GenerationRequest, SamplingParams
from yardsticks import show_yardsticks

#: The part of a step of 16 users that may be Python's.
BAR = 0.10
KERNELS = ("linear", "attention", "rotary_write", "rms_norm", "silu_mul", "sample")
#: Steps after the last prompt was computed that are not counted.
WARM_UP = 8


class Clock:
    """Seconds by name, step by step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._now: dict[str, float] = {}

    def time(self, owner: Any, method: str, name: str) -> None:
        """Let calls of an object's method be timed from now on."""
        setattr(owner, method, self._timed(getattr(owner, method), name))

    def close_step(self) -> None:
        """What was timed since the last call was one step's."""
        self.steps.append(self._now)
        self._now = {}

    def _timed(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._now[name] = self._now.get(name, 0.0) + time.perf_counter() - began

        return timed


def watch(engine: Engine, client: EngineClient) -> Clock:
    """Time the parts of each step."""
    clock, core = Clock(), engine.core
    executor = core._executor
    for kernel in KERNELS:
        clock.time(executor._backend, kernel, kernel)
    clock.time(executor._model.weights.embedding, "lookup", "embedding")
    clock.time(executor._model, "forward", "forward")
    clock.time(executor, "execute", "execute")
    clock.time(core.scheduler, "schedule", "schedule")
    clock.time(core.scheduler, "commit", "commit")
    clock.time(core, "step", "step")
    publish = client._publish

    def published(deltas: Any) -> None:
        began = time.perf_counter()
        publish(deltas)
        clock._now["publish"] = time.perf_counter() - began
        clock.close_step()

    client._publish = published  # type: ignore[method-assign]
    return clock


async def decode(client: EngineClient, prompts: list[list[int]], tokens: int) -> None:
    sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)

    async def one(place: int, prompt: list[int]) -> None:
        async for _ in client.generate(GenerationRequest(f"user-{place}", tuple(prompt), sampling)):
            pass

    await asyncio.gather(*(one(place, prompt) for place, prompt in enumerate(prompts)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=16)
    parser.add_argument("--context", type=int, default=128, metavar="TOKENS")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    show_yardsticks()
    engine = Engine(EngineConfig(max_num_seqs=max(args.users, 1)))
    client = EngineClient(engine)
    clock = watch(engine, client)
    rng = random.Random(0)
    prompts = [[rng.randrange(300, engine.vocab_size) for _ in range(args.context)] for _ in range(args.users)]
    asyncio.run(decode(client, prompts, args.steps + 2 * WARM_UP))
    # Prompts are computed in one step at first, and only full steps are wanted.
    steps = clock.steps[-args.steps - WARM_UP : -WARM_UP]

    def of(*names: str) -> float:
        return median(sum(step.get(name, 0.0) for name in names) for step in steps) * 1e3

    whole, kernels = of("step", "publish"), of(*KERNELS, "embedding")
    rows = {name: of(name) for name in (*KERNELS, "embedding")}
    rows["schedule and commit"] = of("schedule", "commit")
    rows["decoder's loop"] = of("forward") - of(*KERNELS[:-1], "embedding")
    rows["batch, tokens"] = of("execute") - of("forward", "sample")
    rows["text, deltas"] = of("step") - of("execute", "schedule", "commit")
    rows["statistics, wake-up"] = of("publish")
    print(f"{args.users} users, {args.context} tokens before the {args.steps} that were counted\n")
    for name, spent in rows.items():
        print(f"{name:22}{spent:9.3f} ms{spent / whole:8.1%}")
    python = whole - kernels
    print(f"\n{'kernels':22}{kernels:9.3f} ms{kernels / whole:8.1%}")
    print(f"{'Python':22}{python:9.3f} ms{python / whole:8.1%}   (at most {BAR:.0%} with 16 users)")
    print(f"{'a step':22}{whole:9.3f} ms{args.users / whole * 1e3:9.0f} tokens/s")
    return 0 if python / whole <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
