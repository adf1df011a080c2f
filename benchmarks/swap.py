"""Recompute or swap: seconds to compute a preempted request's tokens again, and to copy its blocks out and back.

The default model (or --model FILE), one request at a time, preempted twice by the real scheduler: the first swap also
takes the host's pages from the operating system, the second finds them there.

Run: .venv/bin/python benchmarks/swap.py
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import NamedTuple

from pageinn.engine.config import EngineConfig
from pageinn.engine.engine import Engine
from pageinn.engine.executor import StepResult
from pageinn.engine.messages import GenerationRequest, SamplingParams

LENGTHS = (1024, 2048, 4096, 8000)
MEMORY = 1 << 30


class Cost(NamedTuple):
    """Seconds for so many tokens; swaps: (out, in) of each."""

    tokens: int
    blocks: int
    recompute: float
    swaps: list[tuple[float, float]]


def measure(engine: Engine, tokens: int) -> Cost:
    """Prefill a prompt, then preempt its request after each of its first two tokens."""
    rng, results = random.Random(tokens), []
    core, executor = engine.core, engine.core._executor
    execute = type(executor).execute

    def kept(*given: object) -> StepResult:
        results.append(execute(executor, *given))
        return results[-1]

    executor.execute = kept
    prompt = tuple(rng.randrange(300, engine.vocab_size) for _ in range(tokens))
    core.submit(GenerationRequest(f"{tokens}", prompt, SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True)))
    begin, recompute, preempted = time.perf_counter(), 0.0, 0
    while not core.idle:
        if core.step():
            recompute = recompute or time.perf_counter() - begin
            if preempted < 2:
                # Without what the first swap left on the host, the second has as much to copy.
                core.scheduler.memory.host.clear()
                core.scheduler._preempt(core.scheduler._running[:1])
                preempted += 1
    moves = [result.moves.copied for result in results]
    outs, backs = [move for move in moves if move.blocks_out], [move for move in moves if move.blocks_in]
    assert len(outs) == len(backs) == 2
    swaps = [(out.out_seconds, back.in_seconds) for out, back in zip(outs, backs, strict=True)]
    core.reset_prefix_cache()
    return Cost(tokens, outs[0].blocks_out, recompute, swaps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--kv-cache-dtype", default="auto")
    args = parser.parse_args()
    config = EngineConfig(
        model=args.model,
        kv_cache_dtype=args.kv_cache_dtype,
        kv_cache_memory_bytes=MEMORY,
        host_memory_bytes=MEMORY,
        seed=1,
    )
    engine = Engine(config)
    print(engine.description)
    block = engine.core._executor._store.block_bytes
    print(f"{block:,} bytes a block\n")
    print("tokens  blocks  recompute   first out  first in      out       in   choice")
    for length in LENGTHS:
        cost = measure(engine, length)
        first, second = cost.swaps
        choice = "swap" if sum(second) < cost.recompute else "recompute"
        print(
            f"{cost.tokens:6}{cost.blocks:8}{cost.recompute:9.2f} s{first[0]:10.3f} s{first[1]:8.3f} s"
            f"{second[0]:8.3f} s{second[1]:7.3f} s   {choice}"
        )


if __name__ == "__main__":
    main()
