"""10,000 agent prompts of about 6,000 tokens, resampled from real ones, explained: seconds of wall clock and of CPU.

    python benchmarks/explain.py [--model GGUF] [--requests N] [--write FILE] [--read FILE]

Sessions of growing prompts: a task and instructions of tests/data/miniswe, then turns cut from its tool outputs and
answers at random places, the numbers in some lines changed. A clock to the minute heads every prompt.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from pageinn.explain.analysis import explain
from pageinn.explain.rendering import Rendering
from pageinn.explain.text_report import text_report
from pageinn.traffic import Record, Text, open_renderer, read

DATA = Path(__file__).parent.parent / "tests" / "data" / "miniswe" / "inputs.jsonl"
LONGEST = 21_000


def lines_of() -> tuple[list[str], str, list[str]]:
    """The tasks, the instructions, and all lines that tools and agents wrote."""
    rows = [json.loads(line) for line in DATA.read_text().splitlines()]
    first = rows[0]["input"]
    start, end = first.index("<instructions>"), first.index("</instructions>") + len("</instructions>")
    tasks = list(dict.fromkeys(row["input"].split("<instructions>")[0] for row in rows))
    said: list[str] = []
    for row in rows:
        said += row["input"].split("</instructions>")[1].splitlines(keepends=True)
        said += row["output"].splitlines(keepends=True)
    return tasks, first[start:end], said


def prompts(count: int, seed: int = 7) -> Iterator[str]:
    rng = random.Random(seed)
    tasks, instructions, said = lines_of()
    sessions: list[str] = []
    for number in range(count):
        if len(sessions) < 40:
            sessions.append(
                f"{instructions}{rng.choice(tasks)}\nrun {rng.randrange(10**6)}\n" + turn(rng, said, 11_000)
            )
        k = rng.randrange(len(sessions))
        sessions[k] += turn(rng, said, rng.randrange(300, 3000))
        yield f"Current time: 2026-03-14 {number // 60 // 60 % 24:02}:{number // 60 % 60:02}\n{sessions[k]}"
        if len(sessions[k]) > LONGEST:
            del sessions[k]


def turn(rng: random.Random, said: list[str], length: int) -> str:
    start = rng.randrange(len(said))
    lines: list[str] = []
    while sum(map(len, lines)) < length:
        line = said[(start + len(lines)) % len(said)]
        lines.append(re.sub(r"\d", lambda _: str(rng.randrange(10)), line) if rng.random() < 0.3 else line)
    return "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--write", type=Path, help="only write the log there, as completion bodies")
    parser.add_argument("--read", type=Path, help="explain this log instead")
    args = parser.parse_args()
    if args.write:
        rows = (json.dumps({"prompt": text}) for text in prompts(args.requests))
        args.write.write_text("\n".join(rows) + "\n")
        return
    made = (Record("made", k, Text(text), time=float(k)) for k, text in enumerate(prompts(args.requests), 1))
    records = read([args.read]) if args.read else iter(list(made))
    begin, cpu = time.perf_counter(), time.process_time()
    found = explain(records, Rendering(open_renderer(args.model)))
    wall, used = time.perf_counter() - begin, time.process_time() - cpu
    print("\n".join(text_report(found.report, "resampled agent prompts", show_text=True)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\n{found.report.requests:,} prompts, {found.report.now.tokens:,} tokens")
    print(f"{wall:.1f} s, {used:.1f} s of CPU in one process, {peak:,.0f} MiB at most, the log itself included")


if __name__ == "__main__":
    main()
