"""Preemptions and active memory of admission, beside an oracle: the same scheduler told the lengths.

Requests are resampled from traces (`--mooncake FILE`, `--claude-code FILE …`) or drawn with short prompts and long
answers, and all wait from the start: the server is saturated. Prompts share nothing, so that memory is what decides.

    python benchmarks/admission.py --requests 20000
"""

from __future__ import annotations

import argparse
import json
import math
import random
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from pageinn.memory.manager import MemoryManager, PrefixCache
from pageinn.memory.scopes import DEFAULT
from pageinn.scheduling.config import AdmissionMode, SchedulerConfig
from pageinn.scheduling.plan import Arrive, Ending, Request
from pageinn.scheduling.scheduler import Scheduler

END = 1
#: Requests that wait at any moment; more would change nothing.
WAITING = 32


class Shape(NamedTuple):
    prompt: int
    output: int


class Workload(NamedTuple):
    """num_blocks: of 16 tokens. max_tokens: what each request asks for."""

    shapes: list[Shape]
    num_blocks: int
    max_tokens: int


class Result(NamedTuple):
    preempted: float
    active: float
    steps: int
    running: float


def decode_heavy(count: int, chance: random.Random) -> list[Shape]:
    return [
        Shape(chance.randrange(20, 200), min(max(int(chance.lognormvariate(math.log(600), 0.7)), 1), 4096))
        for _ in range(count)
    ]


def mooncake(path: Path) -> list[Shape]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [Shape(row["input_length"], row["output_length"]) for row in rows]


def claude_code(paths: list[Path]) -> list[Shape]:
    def walk(value: Any) -> Iterator[Shape]:
        if isinstance(value, dict):
            if "in" in value and "out" in value:
                yield Shape(value["in"], max(value["out"], 1))
            for each in value.values():
                yield from walk(each)
        elif isinstance(value, list):
            for each in value:
                yield from walk(each)

    return [shape for path in paths for shape in walk(json.loads(path.read_text()))]


def run(workload: Workload, mode: AdmissionMode, oracle: bool, label: str) -> Result:
    config = SchedulerConfig(512, 8192, 1 << 18, admission=mode)
    memory = MemoryManager(workload.num_blocks, 16, PrefixCache.KEEP)
    scheduler = Scheduler(config, memory)
    left = {str(number): shape.output for number, shape in enumerate(workload.shapes)}
    token, total = 1000, len(workload.shapes)
    arrived = steps = measured = 0
    active = running = 0.0
    put_out: set[tuple[str, int]] = set()
    by_seat: dict[int, str] = {}
    with tqdm(total=total, desc=label, leave=False) as bar:
        while arrived < total or not scheduler.idle:
            events = []
            while arrived < total and scheduler.num_waiting + len(events) < WAITING:
                shape = workload.shapes[arrived]
                prompt = array("I", range(token, token + shape.prompt)).tobytes()
                token = (token + shape.prompt) % (1 << 31)
                most = shape.output if oracle else workload.max_tokens
                request = Request(str(arrived), prompt, DEFAULT, most, 1, frozenset([END]), oracle)
                events.append(Arrive(request))
                arrived += 1
            plan = scheduler.schedule(float(steps), events)
            put_out |= {(one.request_id, one.choice) for one in plan.preempted}
            for seated in plan.seated:
                by_seat[seated.seat] = seated.request_id
            usage = memory.usage()
            # The filling at the start and the emptying at the end are not saturation.
            if total // 20 < arrived < total:
                active += usage.in_use / usage.total
                running += scheduler.num_running
                measured += 1
            sampled = {}
            for work in plan.work:
                if work.sample:
                    name = by_seat[work.seat]
                    left[name] -= 1
                    sampled[work.seat] = 2 if left[name] > 0 or oracle else END
            ended = [outcome for outcome in scheduler.commit(plan, sampled) if outcome.ending is not None]
            assert all(outcome.ending in (Ending.STOP, Ending.LENGTH) for outcome in ended)
            bar.update(len(ended))
            steps += 1
    assert memory.usage().in_use == 0
    return Result(scheduler.counters.preemptions / total, active / measured, steps, running / measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--mooncake", type=Path)
    parser.add_argument("--claude-code", type=Path, nargs="*", default=[])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--modes", nargs="*", default=["predicted"])
    args = parser.parse_args()
    chance = random.Random(1)
    workloads = {"decode-heavy": Workload(decode_heavy(args.requests, chance), 3000, 4096)}
    if args.mooncake:
        workloads["mooncake"] = Workload(chance.choices(mooncake(args.mooncake), k=args.requests), 40_000, 4096)
    if args.claude_code:
        workloads["claude_code"] = Workload(
            chance.choices(claude_code(args.claude_code), k=args.requests), 80_000, 8192
        )
    print(f"{'':14}{'admission':12}{'preempted':>10}{'active':>8}{'of oracle':>10}{'running':>9}{'steps':>9}")
    for name, workload in workloads.items():
        if args.only and name not in args.only:
            continue
        oracle = run(workload, AdmissionMode.PREDICTED, True, f"{name}, oracle")
        rows = {"oracle": oracle}
        for mode in args.modes:
            rows[mode] = run(workload, AdmissionMode(mode), False, f"{name}, {mode}")
        for mode, row in rows.items():
            print(
                f"{name:14}{mode:12}{row.preempted:10.2%}{row.active:8.1%}{row.active / oracle.active:10.1%}"
                f"{row.running:9.1f}{row.steps:9}",
                flush=True,
            )


if __name__ == "__main__":
    main()
