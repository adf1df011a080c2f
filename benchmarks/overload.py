"""Offered load against goodput: `python benchmarks/overload.py [--seconds N] [--modes predicted optimistic] ...`.

Starts a server, finds how many requests a second it can answer (its closed-loop maximum, with 32 clients), then sends
requests at random moments (Poisson) at multiples of that, whether or not earlier ones are answered. Goodput counts the
tokens of requests that met both limits: time to first token, and mean time for each further token. A request that was
refused or cut short counts zero. Prompts are real-looking text without repeats; answers end by themselves.
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
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx

TTFT_LIMIT = 5.0
TOKEN_LIMIT = 0.25
CLIENTS = 32
WORDS = ["harbour", "winter", "ledger", "copper", "signal", "garden", "planet", "engine", "letter", "river", "market"]


class Answer(NamedTuple):
    """How a request fared. seconds_per_token is None for fewer than two tokens."""

    status: int
    ttft: float
    seconds_per_token: float | None
    tokens: int

    @property
    def good(self) -> bool:
        return self.status == 200 and self.ttft <= TTFT_LIMIT and (self.seconds_per_token or 0.0) <= TOKEN_LIMIT


class Row(NamedTuple):
    mode: str
    load: float
    sent: int
    refused: int
    good: int
    goodput: float
    throughput: float
    ttft_median: float
    ttft_p95: float
    preemptions: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each load is offered (default: 60)")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 1.0, 2.0, 4.0], help="multiples of saturation")
    parser.add_argument("--modes", nargs="+", default=["predicted", "optimistic"], help="values of --admission")
    parser.add_argument("--cache", default="96MiB", help="--kv-cache-memory-bytes, small, so that memory runs out")
    parser.add_argument("--max-tokens", type=int, default=384, help="limit of each answer (default: 384)")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--plot", type=Path, help="write a plot here (needs matplotlib)")
    parser.add_argument("serve", nargs="*", help="further arguments of pageinn serve, after --")
    args = parser.parse_args()
    rows: list[Row] = []
    print(
        f"limits: first token {TTFT_LIMIT} s, {TOKEN_LIMIT} s a token; cache {args.cache}; {args.seconds:.0f} s a load"
    )
    saturation = 0.0
    for mode in args.modes:
        flags = ["--kv-cache-memory-bytes", args.cache, "--max-num-seqs", "64", "--admission", mode, *args.serve]
        with server(flags) as url:
            if not saturation:
                saturation = asyncio.run(closed_loop(url, args.seconds, args.max_tokens))
                print(f"saturation: {saturation:.2f} requests a second ({CLIENTS} clients, {mode})\n")
                print(
                    f"{'admission':<11}{'load':>5}{'sent':>6}{'refused':>8}{'good':>6}{'goodput':>9}{'tok/s':>7}"
                    f"{'TTFT p50':>9}{'p95':>7}{'preempt':>8}"
                )
            for load in args.loads:
                rows.append(asyncio.run(open_loop(url, mode, load, saturation, args.seconds, args.max_tokens)))
                show(rows[-1])
    for mode in args.modes:
        mine = [row for row in rows if row.mode == mode]
        peak = max(row.goodput for row in mine)
        print(
            f"{mode}: at {mine[-1].load:g} times saturation {100 * mine[-1].goodput / peak:.0f} % of its peak goodput"
        )
    if args.json:
        args.json.write_text(json.dumps([row._asdict() for row in rows], indent=1))
    if args.plot:
        plot(rows, args.plot)
    return 0


@contextmanager
def server(flags: list[str]) -> Iterator[str]:
    """A server of its own on a free port."""
    command = [sys.executable, "-m", "pageinn.cli", "serve", "--port", "0", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = []
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"Ready in .* on (\S+)", line):
                    break
            else:
                raise SystemExit("the server did not start: " + "".join(said))
            # Its log goes nowhere, but must be read.
            drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
            yield found.group(1)
            process.terminate()
            process.wait(60)
            drain.wait(10)
        finally:
            process.kill()


def prompt(rng: random.Random) -> list[dict[str, str]]:
    """A question of 20 to 200 words that nobody asked before."""
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(20, 200)))
    return [{"role": "user", "content": f"{rng.randrange(10**9)}: tell a story with these words: {words}."}]


async def ask(client: httpx.AsyncClient, rng: random.Random, max_tokens: int) -> Answer:
    body: dict[str, Any] = {
        "messages": prompt(rng),
        "max_tokens": max_tokens,
        "temperature": 1.0,
        "seed": rng.randrange(2**31),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began, first, last, tokens = time.perf_counter(), 0.0, 0.0, 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            said = await response.aread()
            if response.status_code not in (429, 503):
                raise SystemExit(f"the server answered {response.status_code}: {said.decode()}")
            return Answer(response.status_code, 0.0, None, 0)
        async for line in lines_of(response):
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                return Answer(503, 0.0, None, 0)
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
            elif event.get("choices") and event["choices"][0]["delta"].get("content"):
                last = time.perf_counter()
                first = first or last
    return Answer(200, first - began, (last - first) / (tokens - 1) if tokens > 1 else None, tokens)


async def lines_of(response: httpx.Response) -> AsyncIterator[bytes]:
    """Lines that end with a newline and with nothing else: httpx's own end at each separator that Unicode knows."""
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line


def client_of(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=None, limits=httpx.Limits(max_connections=None))


async def closed_loop(url: str, seconds: float, max_tokens: int) -> float:
    """Answers a second, with each of the clients asking again as soon as it is answered; the first half is warm-up."""
    rng = random.Random(0)
    async with client_of(url) as client:
        begin = time.perf_counter() + seconds
        done = 0

        async def one() -> None:
            nonlocal done
            while time.perf_counter() < begin + seconds:
                answer = await ask(client, rng, max_tokens)
                done += answer.status == 200 and begin <= time.perf_counter() < begin + seconds

        await asyncio.gather(*(one() for _ in range(CLIENTS)))
    return done / seconds


async def open_loop(url: str, mode: str, load: float, saturation: float, seconds: float, max_tokens: int) -> Row:
    rng = random.Random(1)
    async with client_of(url) as client:
        before = await preemptions(client)
        began = time.perf_counter()
        tasks = []
        at = 0.0
        while at < seconds:
            await asyncio.sleep(max(began + at - time.perf_counter(), 0.0))
            tasks.append(asyncio.create_task(ask(client, random.Random(rng.random()), max_tokens)))
            at += rng.expovariate(load * saturation)
        answers = await asyncio.gather(*tasks)
        wall = time.perf_counter() - began
        preempted = await preemptions(client) - before
    status = Counter(answer.status for answer in answers)
    ttft = sorted(answer.ttft for answer in answers if answer.status == 200) or [float("nan")]
    return Row(
        mode,
        load,
        len(answers),
        len(answers) - status[200],
        sum(answer.good for answer in answers),
        # By the time that load was offered: what is answered after it was asked for in it.
        sum(answer.tokens for answer in answers if answer.good) / max(wall, seconds),
        sum(answer.tokens for answer in answers) / max(wall, seconds),
        median(ttft),
        ttft[int(0.95 * (len(ttft) - 1))],
        preempted,
    )


async def preemptions(client: httpx.AsyncClient) -> float:
    text = (await client.get("/metrics")).text
    return sum(
        float(line.split()[-1]) for line in text.splitlines() if re.match(r"pageinn:num_preemptions_total\b", line)
    )


def show(row: Row) -> None:
    print(
        f"{row.mode:<11}{row.load:>5g}{row.sent:>6}{row.refused:>8}{row.good:>6}{row.goodput:>9.1f}{row.throughput:>7.0f}"
        f"{row.ttft_median:>9.2f}{row.ttft_p95:>7.2f}{row.preemptions:>8.0f}",
        flush=True,
    )


def plot(rows: list[Row], path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for mode in dict.fromkeys(row.mode for row in rows):
        mine = [row for row in rows if row.mode == mode]
        axes.plot([row.load for row in mine], [row.goodput for row in mine], marker="o", label=mode)
    axes.set(
        xlabel="offered load (multiples of saturation)", ylabel="goodput (tokens/s within both limits)", ylim=(0, None)
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks([row.load for row in rows], [f"{row.load:g}" for row in rows])
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
