"""What the dashboard costs: `python benchmarks/dashboard.py steps [--pairs N] [--figures FILE]`, or `page`.

steps: CPU time of the whole process per step of the default model, with the dashboard and the metrics on and off. On:
counters are published each step, misses are recorded, two hours of samples are kept and searched for alarms, one viewer
asks for the state once a round, which is about a second, and every fifth time for the metrics too. Off: none of that. A
round is the same amount of work each time; a pair is six of each kind, interleaved, and gives a ratio. With --figures,
pairs are added to those of former runs.

page: a pool of 100,000 blocks, filled with conversations: what a view of it takes of the step loop, what the state
takes to make, and the longest frame of a Chromium that shows it, at a desk and on a phone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import subprocess
import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import uvicorn
from fastapi import FastAPI
from prometheus_client import generate_latest
from starlette.responses import Response

from pageinn.cli.loading import load
from pageinn.engine.messages import GenerationRequest, SamplingParams, TakenView
from pageinn.memory.manager import MemoryManager
from pageinn.memory.scopes import Scope
from pageinn.memory.shares import Share
from pageinn.memory.tokens import pack
from pageinn.server.dashboard.branches import branches
from pageinn.server.dashboard.feed import Feed
from pageinn.server.dashboard.floor import floor_plan
from pageinn.server.dashboard.history import INTERVAL, KEPT, sample_of
from pageinn.server.dashboard.routes import add_dashboard
from pageinn.server.generation import Run, pieces
from pageinn.server.metrics import registry_of
from pageinn.server.misses import recorder_of
from pageinn.server.run import address_of, bind
from pageinn.server.served import Served

REQUESTS, PROMPT, TOKENS = 4, 64, 76
#: Rounds of each kind in a pair; the machine's own ups and downs last longer than one.
ROUNDS = 6
#: Student's 0.975 quantiles for 1 to 30 degrees of freedom.
T = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120]
T += [2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042]
VIEWER = """
import httpx, sys
with httpx.Client() as client:
    for number, _ in enumerate(sys.stdin):
        client.get(sys.argv[1] + "/dashboard/state").raise_for_status()
        if number % 5 == 0:
            client.get(sys.argv[1] + "/metrics").raise_for_status()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["steps", "page"])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--figures", type=Path, help="a file of pairs, one JSON line each")
    parser.add_argument(
        "--shots", type=Path, help="page: where pictures of it are written, the beginning of their path"
    )
    args = parser.parse_args()
    if args.what == "page":
        page(args.shots)
        return 0
    found = asyncio.run(steps(args.pairs))
    if args.figures is not None:
        with args.figures.open("a") as file:
            file.writelines(json.dumps(pair) + "\n" for pair in found)
        found = [json.loads(line) for line in args.figures.read_text().splitlines()]
    say(found)
    return 0


# --- the cost of a step ---


async def steps(pairs: int) -> list[list[float]]:
    """Milliseconds of CPU time per step: [on, off] of each pair."""
    served, _ = load(Namespace(threads=2))
    core = served.client._core
    on = replace(served, misses=recorder_of(served))
    feed = Feed(on)
    now = time.time()
    for number in range(int(KEPT / INTERVAL)):
        feed.history.add(sample_of(core.stats(), now - KEPT + INTERVAL * number, {}))
    sock = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(application(feed, on), log_level="warning", access_log=False))
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    viewer = subprocess.Popen([sys.executable, "-c", VIEWER, address_of(sock)], stdin=subprocess.PIPE, text=True)
    assert viewer.stdin is not None
    counted = core.stats
    found = []
    await one_round(served, 0)
    for number in range(pairs):
        spent, done = [0.0, 0.0], [0, 0]
        for turn in range(2 * ROUNDS):
            off = (number + turn) % 2
            frozen = counted()
            core.stats = (lambda frozen=frozen: frozen) if off else counted  # type: ignore[method-assign]
            before, began = frozen.steps, time.process_time()
            async with contextlib.nullcontext() if off else feed.recording():
                if not off:
                    viewer.stdin.write("look\n")
                    viewer.stdin.flush()
                await one_round(served if off else on, 2 * ROUNDS * number + turn + 1)
            spent[off] += time.process_time() - began
            done[off] += counted().steps - before
        pair = [1e3 * seconds / steps for seconds, steps in zip(spent, done, strict=True)]
        print(f"pair {number + 1}: {pair[0]:.2f} ms a step with, {pair[1]:.2f} without", file=sys.stderr, flush=True)
        found.append(pair)
    viewer.kill()
    server.should_exit = True
    await serving
    core.stats = counted  # type: ignore[method-assign]
    await served.client.drain()
    return found


def application(feed: Feed, served: Served) -> FastAPI:
    app, registry = FastAPI(), registry_of(served)
    add_dashboard(app, feed)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry))

    return app


async def one_round(served: Served, number: int) -> None:
    """The same work each time: as many prompts at once, none of them known, as many tokens."""
    chance = random.Random(number)
    sampling = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True)

    async def ask(place: int) -> None:
        prompt = tuple(chance.randrange(1000, 40_000) for _ in range(PROMPT))
        name = f"{number}-{place}"
        run = Run(name, [GenerationRequest(name, prompt, sampling)], n=1, stream=True, include_usage=False)
        async for _ in pieces(served, run):
            pass

    await asyncio.gather(*(ask(place) for place in range(REQUESTS)))


def say(pairs: list[list[float]]) -> None:
    logs = [math.log(on / off) for on, off in pairs]
    middle, count = mean(logs), len(logs)
    print(f"{count} pairs; ms of CPU time a step: {mean(on for on, _ in pairs):.2f} with, ", end="")
    print(f"{mean(off for _, off in pairs):.2f} without")
    if count > 1:
        half = T[min(count - 1, len(T)) - 1] * stdev(logs) / math.sqrt(count)
        low, high = math.exp(middle - half), math.exp(middle + half)
        print(f"ratio {math.exp(middle):.4f}, 95 % interval {low:.4f} to {high:.4f}")


# --- a large pool on the page ---


def page(shots: Path | None) -> None:
    memory = filled(100_000)
    view, took = timed(memory.view)
    print(f"{view.usage}, {len(view.tree.parents):,} prefixes, {len(view.private)} running sequences")
    print(f"view, in the step loop: {1e3 * took:.1f} ms")
    for name, make in (("floor", lambda: floor_plan(view)), ("branches", lambda: branches(view, bytes(32), 64))):
        print(f"{name}: {1e3 * timed(make)[1]:.1f} ms")
    served, _ = load(Namespace(threads=1, kv_cache_memory_bytes=32 << 20))

    feed = Feed(served)

    async def take() -> TakenView:
        return TakenView(*timed(memory.view))

    feed._snapshots._take = take
    asyncio.run(shown(feed, served, shots))


async def shown(feed: Feed, served: Served, shots: Path | None) -> None:
    sock = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(application(feed, served), log_level="warning", access_log=False))
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    await feed.body()
    await asyncio.sleep(1.0)
    began = time.perf_counter()
    body = await feed.body()
    print(f"state: {1e3 * (time.perf_counter() - began):.1f} ms, {len(body) / 1024:.0f} KiB under gzip", flush=True)
    more = [] if shots is None else [str(shots)]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", BROWSER, address_of(sock), *more)
    await process.wait()
    server.should_exit = True
    await serving
    await served.client.drain()


BROWSER = """
import sys
from playwright.sync_api import sync_playwright
FRAMES = '''() => new Promise((done) => {
  const gaps = [], tasks = [];
  let last = performance.now();
  const end = last + 10000;
  const note = (list) => tasks.push(...list.getEntries().map((entry) => entry.duration));
  new PerformanceObserver(note).observe({type: "longtask"});
  const frame = (now) => {
    gaps.push(now - last);
    last = now;
    now < end ? requestAnimationFrame(frame) : done({gaps, tasks});
  };
  requestAnimationFrame(frame);
})'''
with sync_playwright() as started:
    browser = started.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
    for width in (1280, 390):
        ratio = 1 if width > 500 else 2
        page = browser.new_context(viewport={"width": width, "height": 900}, device_scale_factor=ratio).new_page()
        page.goto(sys.argv[1])
        page.wait_for_selector("#floor-legend li")
        page.wait_for_timeout(3000)
        found = page.evaluate(FRAMES)
        gaps, tasks = sorted(found["gaps"]), found["tasks"]
        print(f"{width} px: {len(gaps)} frames in 10 s, the longest {gaps[-1]:.0f} ms, the median "
              f"{gaps[len(gaps) // 2]:.0f} ms; {len(tasks)} tasks of 50 ms or more, "
              f"the longest {max(tasks, default=0):.0f} ms", flush=True)
        if len(sys.argv) > 2:
            page.screenshot(path=f"{sys.argv[2]}-{width}.png", full_page=True)
    browser.close()
"""


def timed(make: Any) -> tuple[Any, float]:
    began = time.perf_counter()
    return make(), time.perf_counter() - began


def filled(num_blocks: int) -> MemoryManager:
    """Conversations of five tenants over shared system prompts until the pool is full; forty still run."""
    chance, memory = random.Random(0), MemoryManager(num_blocks)
    tenants = [f"tenant-{number}" for number in range(5)]
    memory.configure_shares({tenant: Share() for tenant in tenants})
    systems = [[chance.randrange(40_000) for _ in range(640)] for _ in range(15)]
    running = 0
    while memory.pool.num_free > 200 or running < 40:
        system = chance.choice(systems)
        tokens = [*system]
        for _ in range(chance.randrange(1, 6)):
            tokens += [chance.randrange(40_000) for _ in range(chance.randrange(20, 200))]
            sequence = memory.admit(Scope(chance.choice(tenants)), pack(tokens))
            memory.settle_moves(memory.drain_moves())
            memory.mark_stored(sequence, len(tokens))
            if memory.pool.num_free < 3000 and running < 40:
                running += 1
            else:
                memory.release(sequence)
    return memory


if __name__ == "__main__":
    sys.exit(main())
