"""kill -9 an engine while it writes blocks to disk, again and again; every answer afterwards has to be right.

Each round starts an engine on the same folder in a process of its own, kills it at a random moment, and then asks a
fresh engine what the killed one had been asked, compared to the bit with an engine that keeps nothing.

    python benchmarks/disk_kills.py [--kills 50] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests/engine"), str(ROOT / "tests/model")]

from engine_runs import alone, engine_of, request, run, tokens  # noqa: E402
from tiny import write_tiny_llama  # noqa: E402

from pageinn.engine.engine import Engine  # noqa: E402
from pageinn.engine.messages import GenerationRequest, SamplingParams  # noqa: E402

SAMPLED = SamplingParams(max_tokens=12, temperature=0.8, seed=7, logprobs=2, ignore_eos=True)
#: Small, so that eviction is part of what is interrupted.
BOUND = 8 << 20
KINDS = 40


def prompts(seed: int) -> list[GenerationRequest]:
    rng = random.Random(seed)
    return [request(f"{seed} {index}", tokens(rng, 200), SAMPLED) for index in range(4)]


def engine(model: Path, path: Path) -> Engine:
    started = engine_of(model, 400, disk_cache=path, disk_cache_bytes=BOUND)
    # A tiny model computes faster than a disk is asked: load all the same.
    started.core.scheduler.rates.recompute = lambda start, end: end - start  # type: ignore[method-assign]
    return started


def work(model: Path, path: Path, seed: int) -> None:
    started, rng = engine(model, path), random.Random(seed)
    print("working", flush=True)
    while True:
        run(started, prompts(rng.randrange(KINDS)))
        started.core.scheduler.memory.reset()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(Path(args.work[0]), Path(args.work[1]), int(args.work[2]))
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        model, path = write_tiny_llama(Path(folder) / "tiny.gguf", seed=1), Path(folder) / "cache"
        plain = engine_of(model, 400).config
        expected = {seed: alone(plain, prompts(seed)) for seed in range(KINDS)}
        hits = errors = compared = 0
        for kill in range(args.kills):
            command = [sys.executable, __file__, "--work", str(model), str(path), str(rng.random()).split(".")[1]]
            worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert worker.stdout is not None
            assert worker.stdout.readline() == "working\n"
            time.sleep(rng.uniform(0.0, 1.0))
            worker.kill()
            worker.wait()
            after = engine(model, path)
            for seed in rng.sample(range(KINDS), 10):
                for key, answer in run(after, prompts(seed)).items():
                    assert answer.bits == expected[seed][key].bits, f"kill {kill}: {key} is wrong"
                    compared += 1
            after.core.scheduler.memory.check()
            stats = after.core.stats().disk
            assert stats is not None
            hits, errors = hits + stats.hits, errors + stats.errors
            after.close()
        print(f"{args.kills} kills, {compared} answers compared, all right; {hits} tokens loaded, {errors} errors")


if __name__ == "__main__":
    main()
