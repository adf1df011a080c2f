"""Preemptions and residency by admission mode: `python benchmarks/admission.py [--requests N] [--workloads ...]`.

The real scheduler and memory manager on a virtual clock (pageinn.simulate). Lengths are drawn from real traces, or
prompts are short and answers log-normal around 600; nothing is shared. Requests come at random (Poisson) at the rate at
which the pool is just kept busy: that at which the oracle answers the first 2,000 when they are there at once. The
oracle is the same scheduler, told how long each answer gets.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from pageinn.catalogue.accelerators import find_accelerator
from pageinn.catalogue.compute import Roofline
from pageinn.catalogue.models import find_model
from pageinn.memory.manager import MemoryManager
from pageinn.scheduling.config import AdmissionMode, SchedulerConfig
from pageinn.scheduling.scheduler import Scheduler
from pageinn.simulate.jobs import BlockTokens, Job, job, told
from pageinn.simulate.machine import RooflineMachine
from pageinn.simulate.run import Result, simulate

DATA = Path(__file__).parent / "data" / "lengths.json"
BLOCK = 16
#: The pool holds about so many requests of the mean length.
RESIDENTS = 64
LIMIT = 4096
SAMPLE = 2000
#: At most this share of requests may be preempted, and at least this share of the oracle's residency is asked for.
MOST_PREEMPTED = 0.01
LEAST_RESIDENCY = {"mooncake": 0.95, "claude_code": 0.95, "decode-heavy": 0.85}


class Length(NamedTuple):
    prompt: int
    output: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000, metavar="N", help="of each workload (default: 20,000)")
    parser.add_argument("--workloads", nargs="+", default=list(LEAST_RESIDENCY), choices=list(LEAST_RESIDENCY))
    parser.add_argument("--modes", nargs="+", default=list(AdmissionMode), choices=list(AdmissionMode))
    args = parser.parse_args()
    met = True
    print(f"{'workload':<13}{'admission':<12}{'rate/s':>7}{'active':>8}{'of oracle':>10}{'preempted':>10}{'steps':>9}")
    for workload in args.workloads:
        met &= show(workload, args.requests, args.modes)
    return 0 if met else 1


def show(workload: str, count: int, modes: list[str]) -> bool:
    """Print a workload's rows; whether the default mode meets what is asked for."""
    lengths = drawn(workload, count)
    blocks = int(RESIDENTS * mean(-(-(one.prompt + one.output / 2) // BLOCK) for one in lengths))
    longest = max(one.prompt for one in lengths) + LIMIT
    first = lengths[:SAMPLE]
    rate = len(first) / run(AdmissionMode.PREDICTED, map(told, jobs(first, math.inf)), blocks, longest).seconds
    rows = {"oracle": run(AdmissionMode.PREDICTED, map(told, jobs(lengths, rate)), blocks, longest)}
    print_row(workload, "oracle", rate, rows["oracle"], rows["oracle"], count)
    for mode in map(AdmissionMode, modes):
        rows[mode] = run(mode, jobs(lengths, rate), blocks, longest)
        print_row(workload, mode, rate, rows[mode], rows["oracle"], count)
    default = rows.get(AdmissionMode.PREDICTED)
    if default is None:
        return True
    residency = default.active_share / rows["oracle"].active_share
    return residency >= LEAST_RESIDENCY[workload] and default.counters.preemptions <= MOST_PREEMPTED * count


def print_row(workload: str, mode: str, rate: float, found: Result, oracle: Result, count: int) -> None:
    print(
        f"{workload:<13}{mode:<12}{rate:>7.2f}{100 * found.active_share:>6.1f} %"
        f"{100 * found.active_share / oracle.active_share:>8.1f} %{100 * found.counters.preemptions / count:>8.2f} %"
        f"{found.steps:>9,}",
        flush=True,
    )


def drawn(workload: str, count: int) -> list[Length]:
    rng = random.Random(workload)
    if workload == "decode-heavy":
        outputs = (min(max(round(rng.lognormvariate(math.log(600), 0.6)), 1), LIMIT) for _ in range(count))
        return [Length(rng.randint(20, 200), output) for output in outputs]
    sample = json.loads(DATA.read_text())[workload]["lengths"]
    return [Length(prompt, max(min(output, LIMIT), 1)) for prompt, output in rng.choices(sample, k=count)]


def jobs(lengths: list[Length], rate: float) -> Iterator[Job]:
    """Requests that come at random, so many a second; all at once if that is infinite."""
    rng, tokens, now = random.Random(0), BlockTokens(), 0.0
    for number, one in enumerate(lengths):
        now += rng.expovariate(1.0) / rate
        yield job(number, now, tokens.fresh(one.prompt), one.output, LIMIT)


def run(mode: AdmissionMode, arriving: Iterable[Job], blocks: int, longest: int) -> Result:
    line = Roofline(find_model("llama-3.1-8b"), find_accelerator("h100"), "bfloat16", "bfloat16", 1, 0.5, 0.7)
    limits = SchedulerConfig(max_num_seqs=512, max_num_batched_tokens=4096, max_model_len=longest, admission=mode)
    return simulate(arriving, Scheduler(limits, MemoryManager(blocks, BLOCK)), RooflineMachine(line, BLOCK, 0.002))


if __name__ == "__main__":
    sys.exit(main())
