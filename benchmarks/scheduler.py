"""What the scheduler itself costs: milliseconds of processor time that schedule and commit take together in a step.

python benchmarks/scheduler.py

Scheduler and memory manager as they are, no model. In an ample pool only seats are short; in a tight one memory is, so
that running choices are forecast and preempted and waiting ones looked at in vain.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from array import array

from pageinn.memory.manager import MemoryManager
from pageinn.memory.scopes import DEFAULT
from pageinn.scheduling.config import AdmissionMode, SchedulerConfig
from pageinn.scheduling.plan import Arrive, Event, Request
from pageinn.scheduling.scheduler import Scheduler

END = 1
#: One in so many tokens ends its answer, so that requests come and go.
MEAN_LENGTH = 500
WARM_UP = 100
#: Blocks of the pool for each seat. A choice holds 23 in the mean, and 94 at its limit.
POOLS = {"ample": 100, "tight": 20}


def request(number: int) -> Request:
    first = number * 1000 + 5
    prompt = array("I", range(first, first + 100 + number % 16)).tobytes()
    return Request(str(number), prompt, DEFAULT, 1400, 1, frozenset([END]))


def measure(running: int, waiting: int, steps: int, mode: AdmissionMode, blocks_each: int = 100) -> list[float]:
    """Milliseconds of each step after the first ones, sorted."""
    config = SchedulerConfig(running, max(8192, running), 1 << 14, admission=mode)
    scheduler = Scheduler(config, MemoryManager(running * blocks_each, 16))
    chance = random.Random(1)
    events: list[Event] = [Arrive(request(number)) for number in range(running + waiting)]
    following = len(events)
    taken = []
    for step in range(steps):
        began = time.process_time()
        plan = scheduler.schedule(step * 0.05, events)
        planned = time.process_time()
        sampled = {work.seat: END if chance.random() < 1 / MEAN_LENGTH else 7 for work in plan.work if work.sample}
        committing = time.process_time()
        outcomes = scheduler.commit(plan, sampled)
        if step >= WARM_UP:
            taken.append((time.process_time() - committing + planned - began) * 1e3)
        ended = sum(outcome.ending is not None for outcome in outcomes)
        events = [Arrive(request(number)) for number in range(following, following + ended)]
        following += ended
    return sorted(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    args = parser.parse_args()
    # As the server does: what is there before the first request is not looked through for garbage again, and the rest
    # seldom.
    gc.freeze()
    gc.set_threshold(10_000)
    print(f"{'seats':>8}{'waiting':>9}  {'pool':7}{'admission':12}{'median ms':>10}{'p99 ms':>9}")
    for pool, blocks_each in POOLS.items():
        for seats, waiting in ((64, 5), (64, 5000), (1000, 5), (1000, 5000)):
            for mode in AdmissionMode:
                # What the run before left behind, in cycles, is not in this one's way.
                gc.collect()
                taken = measure(seats, waiting, args.steps, mode, blocks_each)
                median, worst = taken[len(taken) // 2], taken[len(taken) * 99 // 100]
                print(f"{seats:8}{waiting:9}  {pool:7}{mode:12}{median:10.3f}{worst:9.3f}", flush=True)


if __name__ == "__main__":
    main()
