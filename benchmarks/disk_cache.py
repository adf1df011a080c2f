"""What the disk cache costs while it writes, and what it saves after a restart, with the default model.

First the same requests with and without a disk cache, in turns: seconds of a step with prompts in it, of one that only
decodes, and of handing blocks to the writer. Then, for prompts of growing length, the time to the first token with an
empty cache and after a restart on a folder that holds the prompt.

    python benchmarks/disk_cache.py [--path DIR] [--rounds 3]
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from pageinn.engine.config import EngineConfig
from pageinn.engine.engine import Engine
from pageinn.engine.messages import GenerationRequest, SamplingParams

LENGTHS = (512, 1024, 2048, 4096)


class Steps(NamedTuple):
    prefill: list[float]
    decode: list[float]
    behind: list[float]


def prompt(seed: int, length: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(20, 40_000) for _ in range(length))


def drive(engine: Engine, seed: int) -> Steps:
    """Eight requests of 512 tokens that answer with 64, all of it new."""
    core, steps = engine.core, Steps([], [], [])
    sampling = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
    for index in range(8):
        core.submit(GenerationRequest(f"{seed} {index}", prompt(100 * seed + index, 512), sampling))
    copy_out = core.write_behind

    def timed(computed: int | None = None) -> None:
        began = time.perf_counter()
        copy_out(computed)
        steps.behind.append(time.perf_counter() - began)

    core.write_behind = timed  # type: ignore[method-assign]
    while not core.idle:
        before = core.stats().prompt_tokens_computed
        began = time.perf_counter()
        core.step()
        seconds = time.perf_counter() - began
        (steps.prefill if core.stats().prompt_tokens_computed > before else steps.decode).append(seconds)
    core.write_behind = copy_out  # type: ignore[method-assign]
    return steps


def overhead(path: Path, rounds: int) -> None:
    plain, cached = Engine(EngineConfig()), Engine(EngineConfig(disk_cache=path))
    found: dict[str, list[Steps]] = {"without": [], "with": []}
    for seed in range(rounds):
        for name, engine in (("without", plain), ("with", cached)):
            found[name].append(drive(engine, seed))
    print("| disk cache | prefill step ms | decode step ms | decode step ms, 99 % | handing over ms | most |")
    print("|---|---|---|---|---|---|")
    for name, runs in found.items():
        prefill = [1e3 * each for run in runs for each in run.prefill]
        decode = [1e3 * each for run in runs for each in run.decode]
        behind = [1e3 * each for run in runs for each in run.behind]
        late = statistics.quantiles(decode, n=100)[98]
        middle, usual = statistics.median(prefill), statistics.median(decode)
        handing = f"{statistics.fmean(behind):.2f} | {max(behind):.2f}"
        print(f"| {name} | {middle:.1f} | {usual:.2f} | {late:.2f} | {handing} |")
    cached.close()
    print(cached.core.stats().disk)


def first_token(engine: Engine, tokens: tuple[int, ...]) -> tuple[float, int]:
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    began = time.perf_counter()
    [[answer]] = engine.generate([tokens], sampling)
    return time.perf_counter() - began, answer.cached_tokens


def restarts(path: Path) -> None:
    shutil.rmtree(path)
    engine = Engine(EngineConfig(disk_cache=path))
    fresh = {length: first_token(engine, prompt(length, length))[0] for length in LENGTHS}
    engine.close()
    engine = Engine(EngineConfig(disk_cache=path))
    first_token(engine, prompt(1, 64))
    print("\n| prompt tokens | first token, computed s | after a restart s | of them from disk |")
    print("|---|---|---|---|")
    for length in LENGTHS:
        seconds, tokens = first_token(engine, prompt(length, length))
        print(f"| {length} | {fresh[length]:.2f} | {seconds:.3f} | {tokens} |")
    engine.close()
    print(engine.core.stats().disk)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", type=Path, default=None, help="a folder on the disk in question")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.path) as folder:
        overhead(Path(folder) / "cache", args.rounds)
        restarts(Path(folder) / "cache")


if __name__ == "__main__":
    main()
