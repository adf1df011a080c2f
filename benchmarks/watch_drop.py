"""How long `pageinn watch` takes to notice that a client starts to head its prompts with a clock. In real time.

A real server answers one request after the other, some a second, all with one system prompt and a question of their own
(85 % of the tokens are found); after five minutes each prompt begins with the time to the millisecond, of which only
the hour and the minute come again (12 %). Prints the hit rates and the seconds from the first such prompt to the alarm.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import threading
import time
from datetime import datetime
from random import Random

import httpx

from pageinn.watch.exposition import metrics_url
from pageinn.watch.watcher import look

SYSTEM = "You are the assistant of a library. You answer in one sentence and name the shelf of each book. " * 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calm", type=float, default=300.0, help="seconds before the clock (300)")
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second (2)")
    args = parser.parse_args()
    serve = [sys.executable, "-m", "pageinn.cli", "serve", "--port", "0", "--kv-cache-memory-bytes", "64MiB"]
    server = subprocess.Popen(serve, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    url = next(found[1] for line in server.stderr if (found := re.search(r"Ready in .* on (http://\S+)", line)))
    # A pipe that nobody reads would stop the server once it is full.
    threading.Thread(target=server.stderr.read, daemon=True).start()
    watch = subprocess.Popen([sys.executable, "-m", "pageinn.cli", "watch", url], stdout=subprocess.PIPE, text=True)
    raised = threading.Event()
    threading.Thread(target=listen, args=(watch, raised), daemon=True).start()
    try:
        run(url, args.calm, args.rate, raised)
    finally:
        watch.terminate()
        server.terminate()
        server.communicate(timeout=60)


def listen(watch: subprocess.Popen[str], raised: threading.Event) -> None:
    assert watch.stdout is not None
    for line in watch.stdout:
        print(line, end="", flush=True)
        if " ALARM hit_rate" in line:
            raised.set()


def run(url: str, calm: float, rate: float, raised: threading.Event) -> None:
    with httpx.Client(timeout=600) as client:
        began, number, rng = time.monotonic(), 0, Random()
        edges = [look(client, metrics_url(url), 0.0)]
        changed: float | None = None
        longest = latest = 0.0
        while not raised.is_set():
            now = time.monotonic() - began
            if changed is not None:
                longest = max(longest, now - latest)
            latest = now
            if changed is None and now >= calm:
                changed = now
                edges.append(look(client, metrics_url(url), 0.0))
            clock = f"It is {datetime.now():%H:%M:%S.%f}"[:-3] + ". " if changed is not None else ""
            question = f"Question {rng.randrange(10**6)}: where are the old maps kept?"
            body = {"prompt": clock + SYSTEM + question, "max_tokens": 1, "temperature": 0}
            client.post(f"{url}/v1/completions", json=body).raise_for_status()
            number += 1
            time.sleep(max(0.0, number / rate - (time.monotonic() - began)))
        edges.append(look(client, metrics_url(url), 0.0))
    print(f"{number} requests in {time.monotonic() - began:.0f} s")
    for name, before, after in (("calm", edges[0], edges[1]), ("with the clock", edges[1], edges[-1])):
        queries = (after.queries or 0) - (before.queries or 0)
        print(f"hit rate {name}: {((after.hits or 0) - (before.hits or 0)) / queries:.1%}")
    if changed is not None:
        print(f"alarm {time.monotonic() - began - changed:.1f} s after the first clock")
        # On a machine that stood still meanwhile, that counts too.
        print(f"longest time between two requests with the clock: {longest:.1f} s")


if __name__ == "__main__":
    main()
