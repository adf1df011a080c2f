"""Seconds and memory of `pageinn measure` on a generated log of block ids.

A request has 64 blocks: a beginning of an earlier request's and new ones behind it, so that about a quarter of all
blocks are distinct.

    python benchmarks/measure.py [requests]
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BLOCKS = 64
#: Runs the command as a user does, then says how much memory it took at most.
PROGRAM = """
import resource, sys
from pageinn.cli import main
code = main(["measure", sys.argv[1]])
children = resource.getrusage(resource.RUSAGE_SELF)
print(f"cpu {children.ru_utime + children.ru_stime:.1f} s, peak {children.ru_maxrss / 2**20:.2f} GiB", file=sys.stderr)
sys.exit(code)
"""


def write_log(path: Path, requests: int) -> float:
    """Write the log; the share of distinct blocks."""
    chance = random.Random(1)
    recent: list[list[int]] = []
    distinct = 0
    with path.open("w") as log:
        for number in range(requests):
            kept = 0
            if recent and chance.random() < 0.97:
                kept = min(BLOCKS, int(chance.betavariate(3.2, 1) * BLOCKS) + 1)
            base = recent[chance.randrange(len(recent))][:kept] if kept else []
            ids = base + list(range(distinct, distinct + BLOCKS - len(base)))
            distinct += BLOCKS - len(base)
            recent.append(ids)
            if len(recent) > 20_000:
                del recent[:1000]
            told = ",".join(map(str, ids))
            log.write(f'{{"timestamp":{number * 10},"input_length":32768,"output_length":200,"hash_ids":[{told}]}}\n')
    return distinct / (requests * BLOCKS)


def main() -> None:
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "trace.jsonl"
        share = write_log(log, requests)
        print(f"{requests:,} requests of {BLOCKS} blocks, {100 * share:.1f} % of the blocks distinct")
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(log)], check=True, capture_output=True, text=True)
        print(f"wall {time.perf_counter() - start:.1f} s, {done.stderr.strip().splitlines()[-1]}")


if __name__ == "__main__":
    main()
