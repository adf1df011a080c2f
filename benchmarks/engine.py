"""Prefill, decode, start-up and memory on this machine: `python benchmarks/engine.py [--runs N]`.

Medians over the runs, in one process, int8 weights and the default settings; nothing of a prompt repeats. The command
to first answer is a server of its own, started from cold, asked over HTTP.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import httpx

from pageinn.engine.config import EngineConfig
from pageinn.engine.engine import Engine
from pageinn.engine.messages import SamplingParams
from yardsticks import show_yardsticks

#: Prefill tokens per second, decode tokens per second, seconds to a first answer: what is asked for on two cores.
BARS = {"prefill": 450.0, "decode": 60.0, "first answer": 10.0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="runs of each (default: 5)")
    runs = parser.parse_args().runs
    show_yardsticks()
    first_answer = median(seconds_to_first_answer() for _ in range(runs))
    engine = Engine(EngineConfig())
    print(engine.description, "\n")
    rng = random.Random(0)

    def prompt(length: int) -> list[int]:
        return [rng.randrange(300, engine.vocab_size) for _ in range(length)]

    seconds_of(engine, [prompt(64)], 4)
    prefill = median(1024 / seconds_of(engine, [prompt(1024)], 1) for _ in range(runs))
    decode = median(decode_rate(engine, [prompt(128)]) for _ in range(runs))
    decode16 = median(decode_rate(engine, [prompt(32) for _ in range(16)]) for _ in range(runs))
    print(f"prefill of 1,024 tokens               {prefill:8.0f} tokens/s   (at least {BARS['prefill']:.0f})")
    print(f"decode, 1 user, 128 after 128         {decode:8.0f} tokens/s   (at least {BARS['decode']:.0f})")
    print(f"decode, 16 users, 128 after 32        {decode16:8.0f} tokens/s")
    print(f"command to first answer               {first_answer:8.1f} s          (at most {BARS['first answer']:.0f})")
    print(f"peak memory of this process           {peak_mebibytes():8.0f} MiB")
    met = prefill >= BARS["prefill"] and decode >= BARS["decode"] and first_answer <= BARS["first answer"]
    return 0 if met else 1


def seconds_of(engine: Engine, prompts: list[list[int]], tokens: int) -> float:
    begin = time.perf_counter()
    engine.generate(prompts, SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True))
    return time.perf_counter() - begin


def decode_rate(engine: Engine, prompts: list[list[int]]) -> float:
    """Tokens per second of 128 tokens each, the time to the first ones taken off."""
    first = seconds_of(engine, prompts, 1)
    engine.core.reset_prefix_cache()
    return 128 * len(prompts) / (seconds_of(engine, prompts, 129) - first)


def seconds_to_first_answer() -> float:
    command = [sys.executable, "-m", "pageinn.cli", "serve", "--port", "0"]
    begin = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        url = next(found[0] for line in server.stderr if (found := re.search(r"http://\S+", line)))
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "The capital of France is"}, timeout=60)
        spent = time.perf_counter() - begin
        answer.raise_for_status()
        server.terminate()
    return spent


def peak_mebibytes() -> float:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


if __name__ == "__main__":
    sys.exit(main())
