"""What each lever does to the workloads of benchmarks/peers: `python benchmarks/levers.py [--runs N] [--pairs N]`.

One engine for each setting, in process, all taken through the same requests in turn; a ratio is the seconds without the
lever over those with it, in the same run. Keeping is then measured on prompts that share nothing, by how much it loses
there: two engines take the same requests, a step each in turn, so that the machine's pace is the same for both. Ends
with status 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple
from unittest import mock

from pageinn.engine.config import EngineConfig
from pageinn.engine.engine import Engine
from pageinn.engine.messages import GenerationRequest, SamplingParams
from pageinn.kernels.cpu import CpuBackend
from pageinn.memory.questions import PrefixCache
from peers.workloads import WORKLOADS, Client, Step, workload

#: As long as the model's longest sequence: a block that holds it is what reserving whole lengths means.
WHOLE = 8192
SETTINGS = {
    "keep": EngineConfig(seed=0),
    "live": EngineConfig(seed=0, prefix_cache=PrefixCache.LIVE),
    "off": EngineConfig(seed=0, prefix_cache=PrefixCache.OFF),
    "fp8": EngineConfig(seed=0, kv_cache_dtype="fp8"),
    "apart": EngineConfig(seed=0),
    "whole": EngineConfig(seed=0, prefix_cache=PrefixCache.OFF, block_size=WHOLE),
}
#: The setting without a lever, and the one with it.
LEVERS = {
    "keeping, against nothing shared": ("off", "keep"),
    "keeping, against sharing while in use": ("live", "keep"),
    "fp8 cache, against bfloat16": ("keep", "fp8"),
    "shared prefixes read once, against apart": ("apart", "keep"),
    "paging, against whole lengths reserved": ("whole", "off"),
}
#: Real turns depend on what was answered, so a setting may answer another way; these are the same for all.
SAME = [name for name in WORKLOADS if name != "turns"]
FEWSHOT_BAR, LOSS_BAR, PAIRS = 6.4, 0.01, 10
#: Student's t for the 95 % interval of n values, by n - 1: what scipy.stats.t.ppf(0.975, n - 1) gives.
T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


class Loss(NamedTuple):
    """By how much keeping is slower, as a share: the mean over pairs and its 95 % interval."""

    mean: float
    low: float
    high: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="*", choices=SAME, default=SAME, metavar="NAME")
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS), metavar="NAME")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="of each (default: 3)")
    parser.add_argument("--pairs", type=int, choices=(0, *range(2, PAIRS + 1)), default=PAIRS, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all seconds here")
    args = parser.parse_args()
    wanted = dict.fromkeys([*(args.settings if args.workloads else ()), *(("off", "keep") if args.pairs else ())])
    engines = {name: opened(name) for name in wanted}
    seconds: dict[str, dict[str, list[float]]] = {}
    for run in range(1, args.runs + 1):
        for name in args.workloads:
            for setting in args.settings:
                taken = drive(engines[setting], workload(name, run))
                seconds.setdefault(name, {}).setdefault(setting, []).append(taken)
                print(f"run {run} {name} {setting}: {taken:.2f} s", file=sys.stderr, flush=True)
    show(seconds)
    missed = missed_bar(seconds)
    pairs = interleaved(engines, args.pairs)
    if pairs:
        found = loss(pairs)
        print(
            f"keeping where nothing is shared: {100 * found.mean:+.2f} % time, 95 % interval {100 * found.low:+.2f} to "
            f"{100 * found.high:+.2f} %\n({len(pairs)} pairs; asked: upper end under {100 * LOSS_BAR:.0f} %)"
        )
        missed |= found.high >= LOSS_BAR
    if args.json:
        args.json.write_text(json.dumps({"seconds": seconds, "pairs": pairs}, indent=1))
    return int(missed)


def opened(setting: str) -> Engine:
    backend = functools.partial(CpuBackend, share_prefixes=setting != "apart")
    with mock.patch("pageinn.engine.engine.CpuBackend", backend):
        engine = Engine(SETTINGS[setting])
    engine.generate([tuple(range(1000, 1300))], SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))
    return engine


class Drive:
    """An engine answering clients, each of which asks again as soon as it is answered; caches are cold at first."""

    def __init__(self, engine: Engine, clients: Sequence[Client]) -> None:
        self.seconds = 0.0
        self._core = engine.core
        self._core.reset_prefix_cache()
        steps = [[step for step in client if isinstance(step, Step)] for client in clients]
        self._waiting = {f"{place}": waiting for place, waiting in enumerate(steps)}
        for name in self._waiting:
            self._submit(name)

    def step(self) -> bool:
        """One step, whose time is counted. False once all clients are answered."""
        began = time.perf_counter()
        for delta in self._core.step():
            if delta.finish_reason is not None and self._waiting[delta.request_id]:
                self._submit(delta.request_id)
        self.seconds += time.perf_counter() - began
        return not self._core.idle

    def _submit(self, name: str) -> None:
        step = self._waiting[name].pop(0)
        sampling = SamplingParams(max_tokens=step.max_tokens, temperature=0.0, ignore_eos=True)
        self._core.submit(GenerationRequest(name, step.prompt, sampling))


def drive(engine: Engine, clients: Sequence[Client]) -> float:
    """Seconds until all clients are answered."""
    driven = Drive(engine, clients)
    while driven.step():
        pass
    return driven.seconds


def interleaved(engines: dict[str, Engine], count: int) -> list[tuple[float, float]]:
    """(seconds off, seconds keeping) on `none`, a step of each in turn; which of the two goes first alternates."""
    pairs = []
    for pair in range(count):
        driven = {setting: Drive(engines[setting], workload("none", 1000 + pair)) for setting in ("off", "keep")}
        order = [driven[setting] for setting in (("off", "keep") if pair % 2 else ("keep", "off"))]
        while order:
            order = [each for each in order if each.step()]
        pairs.append((driven["off"].seconds, driven["keep"].seconds))
        print(f"pair {pair + 1}: off {pairs[-1][0]:.2f} s, keep {pairs[-1][1]:.2f} s", file=sys.stderr, flush=True)
    return pairs


def loss(pairs: Sequence[tuple[float, float]]) -> Loss:
    found = [keep / off - 1 for off, keep in pairs]
    half = T[len(found) - 1] * stdev(found) / math.sqrt(len(found))
    return Loss(mean(found), mean(found) - half, mean(found) + half)


def ratios(seconds: dict[str, list[float]], lever: str) -> list[float]:
    without, with_it = LEVERS[lever]
    return [a / b for a, b in zip(seconds.get(without, ()), seconds.get(with_it, ()), strict=False)]


def show(seconds: dict[str, dict[str, list[float]]]) -> None:
    for lever, (without, with_it) in LEVERS.items():
        rows = [(name, found) for name, by_setting in seconds.items() if (found := ratios(by_setting, lever))]
        if rows:
            print(f"{lever} ({without} / {with_it})")
            for name, found in rows:
                print(
                    f"  {name:<10}{median(found):>8.2f} times  ({min(found):.2f}-{max(found):.2f}, {len(found)} runs)"
                )


def missed_bar(seconds: dict[str, dict[str, list[float]]]) -> bool:
    found = ratios(seconds.get("fewshot", {}), "keeping, against nothing shared")
    if not found:
        return False
    print(f"keeping on fewshot: {median(found):.2f} times the throughput (asked: {FEWSHOT_BAR})")
    return median(found) < FEWSHOT_BAR


if __name__ == "__main__":
    sys.exit(main())
