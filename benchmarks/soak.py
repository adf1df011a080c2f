"""Everything that can go wrong, for long: `python benchmarks/soak.py [--requests N] [--seed S]`.

The real scheduler and memory manager without kernels, over a pool that is far too small: prompts that share beginnings,
several choices, tenants, random aborts, queue deadlines and full queues, stores to the host that fail, resets of the
cache, and restarts (the process dies: what ran is asked again). All books are walked every few hundred steps. At the
end nothing may be in use, on the device or on the host.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import replace

from tqdm import tqdm

from pageinn.memory.manager import MemoryManager
from pageinn.memory.moves import MoveKind
from pageinn.memory.scopes import DEFAULT, PUBLIC, Scope
from pageinn.memory.tokens import pack
from pageinn.scheduling.config import AdmissionMode, SchedulerConfig
from pageinn.scheduling.plan import Abort, Arrive, Ending, Event, Outcome, Request, Stop
from pageinn.scheduling.scheduler import Scheduler

BLOCKS, HOST_BLOCKS, BLOCK = 96, 64, 4
EOS = 3
CHECK_EVERY = 300
RESTART_EVERY = 20_000
SCOPES = [DEFAULT, DEFAULT, DEFAULT, Scope("default", "salt"), Scope("other"), PUBLIC]


class Soak:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.heads = [self._tokens(self.rng.randrange(1, 80)) for _ in range(20)]
        self.open: dict[str, Request] = {}
        self.live: dict[str, set[int]] = {}
        self.endings: Counter[str] = Counter()
        self.again: list[Request] = []
        self.sent = self.steps = self.failed = self.moved = self.preemptions = self.swapped = 0
        self.start()

    def start(self) -> None:
        """A fresh process: an empty cache; what was open is asked again."""
        if self.steps:
            self.preemptions += self.scheduler.counters.preemptions
            self.swapped += self.scheduler.counters.swaps
        self.again += self.open.values()
        self.open = {}
        self.memory = MemoryManager(BLOCKS, BLOCK, host_blocks=HOST_BLOCKS)
        limits = SchedulerConfig(
            max_num_seqs=12,
            max_num_batched_tokens=48,
            max_model_len=300,
            admission=self.rng.choice(list(AdmissionMode)),
            max_queued_requests=60,
            max_queued_tokens=3000,
        )
        self.scheduler = Scheduler(limits, self.memory)

    def run(self, requests: int) -> None:
        with tqdm(total=requests, unit="request", disable=not sys.stderr.isatty()) as bar:
            while self.sent < requests or not self.scheduler.idle:
                before = self.sent
                self.step(requests)
                bar.update(self.sent - before)
        self.step(requests)

    def step(self, requests: int) -> None:
        self.steps += 1
        if self.steps % RESTART_EVERY == 0:
            self.start()
        plan = self.scheduler.schedule(self.steps * 0.05, self.events(requests))
        stores = [place for place, move in enumerate(plan.moves) if move.kind is MoveKind.STORE]
        failed = [place for place in stores if self.rng.random() < 0.1]
        self.moved += len(stores)
        self.failed += len(failed)
        sampled = {work.seat: self.token() for work in plan.work if work.sample}
        for outcome in [*plan.ended, *self.scheduler.commit(plan, sampled, failed)]:
            self.note(outcome)
        if self.rng.random() < 1e-3:
            self.memory.reset()
        if self.steps % CHECK_EVERY == 0:
            self.memory.check()

    def events(self, requests: int) -> list[Event]:
        events: list[Event] = []
        for _ in range(self.arriving() if self.sent < requests else 0):
            request = self.again.pop() if self.again else self.request()
            if request.request_id in self.open or self.scheduler.refusal(request) is not None:
                self.endings["refused"] += 1
                continue
            self.open[request.request_id] = request
            self.live[request.request_id] = set(range(request.n))
            events.append(Arrive(request))
        for name in list(self.open):
            if self.rng.random() < 0.002:
                events.append(Abort(name))
                self.endings["aborted"] += 1
                del self.open[name]
            elif self.rng.random() < 0.001:
                choice = self.rng.randrange(self.open[name].n)
                events.append(Stop(name, choice))
                self.gone(name, choice)
        return events

    def arriving(self) -> int:
        """Bursts: mostly a few, sometimes far more than there is room for."""
        return self.rng.randrange(60) if self.rng.random() < 0.01 else self.rng.random() < 0.15

    def request(self) -> Request:
        self.sent += 1
        head = self.rng.choice(self.heads)
        prompt = head[: self.rng.randrange(len(head) + 1)] + self._tokens(self.rng.randrange(1, 30))
        made = Request(
            str(self.sent),
            pack(prompt),
            self.rng.choice(SCOPES),
            self.rng.randrange(1, 60),
            n=self.rng.choice([1, 1, 1, 2, 4]),
            eos_ids=frozenset([EOS]),
            ignore_eos=self.rng.random() < 0.3,
        )
        return replace(made, queue_timeout=self.rng.uniform(0.1, 30.0)) if self.rng.random() < 0.2 else made

    def token(self) -> int:
        return EOS if self.rng.random() < 0.03 else self.rng.randrange(4, 12)

    def note(self, outcome: Outcome) -> None:
        if outcome.ending is not None:
            self.endings[outcome.ending] += 1
            self.gone(outcome.request_id, outcome.choice)

    def gone(self, name: str, choice: int) -> None:
        """A choice has ended; with its last one, the request has."""
        self.live[name].discard(choice)
        if not self.live[name]:
            self.open.pop(name, None)

    def _tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(4, 7) for _ in range(count)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000, metavar="N", help="how many (default: 100,000)")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    args = parser.parse_args()
    soak, began = Soak(args.seed), time.perf_counter()
    soak.run(args.requests)
    memory = soak.memory
    memory.check()
    usage, host = memory.usage(), memory.host_usage()
    print(f"{soak.sent:,} requests in {soak.steps:,} steps, {time.perf_counter() - began:.0f} s")
    print("endings: " + ", ".join(f"{name} {count:,}" for name, count in sorted(soak.endings.items())))
    print(
        f"preempted {soak.preemptions + soak.scheduler.counters.preemptions:,}, of them swapped "
        f"{soak.swapped + soak.scheduler.counters.swaps:,}; {soak.moved:,} blocks stored on the host, "
        f"{soak.failed:,} failed"
    )
    print(f"in use at the end: {usage.in_use} blocks, {host.held} host slots")
    memory.reset()
    memory.check()
    clean = usage.in_use == host.held == 0 and memory.usage().free == BLOCKS and memory.host_usage().free == HOST_BLOCKS
    print("clean" if clean else "NOT CLEAN")
    return 0 if clean and Ending.STOP in soak.endings else 1


if __name__ == "__main__":
    sys.exit(main())
