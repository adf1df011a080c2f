"""What HTTP costs while streams are open: the same requests in process and over HTTP, in turn.

python benchmarks/streams.py [--streams 16] [--runs 3]

So many answers of 200 tokens after prompts of 32 are streamed at once; meanwhile, one after another, eight prompts of
32 tokens ask for a single token, which gives times to first token. The client of the server reads raw sockets, because
it shares the cores with it. Medians over the runs; a step is the time between two tokens of a stream.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from statistics import median
from typing import NamedTuple
from urllib.parse import urlsplit

from pageinn.engine.client import EngineClient
from pageinn.engine.config import EngineConfig
from pageinn.engine.engine import Engine
from pageinn.engine.messages import GenerationRequest, SamplingParams
from yardsticks import show_yardsticks

#: How much slower than in process a step may be over HTTP.
BAR = 0.05
PROMPT, TOKENS, PROBES, VOCABULARY = 32, 200, 8, 49152
numbers = count()
rng = random.Random(0)

#: Streams a prompt's answer of so many tokens: something for each token.
Ask = Callable[[list[int], int], AsyncIterator[object]]


class Figures(NamedTuple):
    """Of one run, in seconds."""

    step: float
    whole: float
    first_token: float


def prompt() -> list[int]:
    return [rng.randrange(300, VOCABULARY) for _ in range(PROMPT)]


async def run(ask: Ask, streams: int) -> Figures:
    times: list[list[float]] = [[] for _ in range(streams)]

    async def stream(place: int) -> None:
        async for _ in ask(prompt(), TOKENS):
            times[place].append(time.perf_counter())

    began = time.perf_counter()
    tasks = [asyncio.create_task(stream(place)) for place in range(streams)]
    while not all(len(each) > 2 for each in times):
        await asyncio.sleep(0.01)
    probes = []
    for _ in range(PROBES):
        asked = time.perf_counter()
        async for _ in ask(prompt(), 1):
            probes.append(time.perf_counter() - asked)
    await asyncio.gather(*tasks)
    steps = [later - earlier for each in times for earlier, later in pairwise(each)]
    return Figures(median(steps), time.perf_counter() - began, median(probes))


def in_process(client: EngineClient) -> Ask:
    async def ask(tokens: list[int], most: int) -> AsyncIterator[object]:
        sampling = SamplingParams(max_tokens=most, temperature=0.0, ignore_eos=True)
        async for delta in client.generate(GenerationRequest(f"r{next(numbers)}", tuple(tokens), sampling)):
            yield delta

    return ask


def over_http(url: str) -> Ask:
    parts = urlsplit(url)

    async def ask(tokens: list[int], most: int) -> AsyncIterator[object]:
        body = {"prompt": tokens, "max_tokens": most, "temperature": 0, "ignore_eos": True, "stream": True}
        content = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        head = "POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                yield line
            elif line.startswith(b"data: [DONE]"):
                break
            elif line.startswith(b"HTTP/1.1") and b" 200 " not in line:
                raise SystemExit(f"the server says {line!r}")
        writer.close()

    return ask


@contextmanager
def server() -> Iterator[str]:
    command = [sys.executable, "-m", "pageinn.cli", "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield next(found[0] for line in process.stderr if (found := re.search(r"http://\S+", line)))
        finally:
            process.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    show_yardsticks()
    figures: dict[str, list[Figures]] = {"in process": [], "over HTTP": []}
    client = EngineClient(Engine(EngineConfig()))
    with server() as url:
        for _ in range(args.runs):
            for name, ask in (("in process", in_process(client)), ("over HTTP", over_http(url))):
                figures[name].append(asyncio.run(run(ask, args.streams)))
    print(f"{args.streams} streams{'':12}{'step ms':>10}{'all s':>9}{'first token ms':>16}")
    for name, runs in figures.items():
        step, whole, first = (median(each) for each in zip(*runs, strict=True))
        print(f"{name:22}{step * 1e3:10.2f}{whole:9.2f}{first * 1e3:16.1f}")
    steps = {name: median(each.whole for each in runs) for name, runs in figures.items()}
    loss = steps["over HTTP"] / steps["in process"] - 1
    print(f"\nlost over HTTP{loss:16.1%}   (at most {BAR:.0%})")
    return 0 if loss <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
