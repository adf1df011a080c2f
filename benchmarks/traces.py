"""Real traces as prompts for the memory manager, resampled: more sessions than were recorded, at the recorded pace.

A prompt is a list of numbers, one for each of the trace's own blocks, and is replayed with a block size of one: what
the manager counts in tokens are then blocks of the trace.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

Prompt = list[int]
#: Numbers of blocks that a copy of a session has for itself.
_OWN = 1_000_000
#: Characters that stand for a block of 16 tokens of English text and code.
_CHARACTERS = 64


class Timed(NamedTuple):
    """A prompt and when it arrives, in seconds."""

    at: float
    prompt: Prompt


def mooncake(folder: Path, copies: int) -> list[Prompt]:
    """Conversations (blocks of 512 tokens), each moved in time; the block that all of them begin with stays common."""
    rng = random.Random(1)
    rows = [json.loads(line) for line in (folder / "mooncake/conversation_500.jsonl").read_text().splitlines()]
    length = rows[-1]["timestamp"] / 1e3 * copies / 2
    timed = []
    for copy in range(copies):
        moved: dict[int, float] = {}
        for row in rows:
            head, *rest = row["hash_ids"]
            begins = moved.setdefault(rest[0] if rest else -1, rng.uniform(0, length))
            timed.append(Timed(begins + row["timestamp"] / 1e3, [head, *(_own(copy, block) for block in rest)]))
    return _in_order(timed)


def claude_code(folder: Path, sessions: int) -> list[Prompt]:
    """Coding sessions with their sub-agents (blocks of 64 tokens), one begun every two minutes on average.

    Sessions of one trace share its tools and system prompt and nothing else.
    """
    rng = random.Random(2)
    traces = [json.loads(path.read_text()) for path in sorted((folder / "claude_code").glob("trace_*.json"))]
    timed, begins = [], 0.0
    for session in range(sessions):
        begins += rng.expovariate(1 / 120)
        which = rng.randrange(len(traces))
        for at, blocks, shared in _requests(traces[which]):
            own = [_own(session + len(traces), block) for block in blocks[shared:]]
            timed.append(Timed(begins + at, [*(_own(which, block) for block in blocks[:shared]), *own]))
    return _in_order(timed)


def _requests(trace: dict[str, Any]) -> list[tuple[float, Prompt, int]]:
    """When, which blocks, and how many of them are tools and system prompt; a sub-agent's requests among the others."""
    shared = (trace["tool_tokens"] + trace["system_tokens"]) // 64
    found = []
    for entry in trace["requests"]:
        if "hash_ids" in entry:
            found.append((entry["t"], entry["hash_ids"], shared))
        else:
            found += [(entry["t"] + at, blocks, own) for at, blocks, own in _requests(entry)]
    return found


def miniswe(folder: Path, sessions: int) -> list[Prompt]:
    """Software-engineering agents (blocks of 64 characters), one begun a second: many at once."""
    rng = random.Random(3)
    recorded = []
    for path in sorted((folder / "miniswe").glob("*.jsonl")):
        rows = sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda row: row["timestamp"])
        recorded.append([((row["timestamp"] - rows[0]["timestamp"]) / 1e6, row["input"]) for row in rows])
    timed, begins = [], 0.0
    numbers: dict[tuple[int, str], int] = {}
    for session in range(sessions):
        begins += rng.expovariate(1.0)
        for at, text in rng.choice(recorded):
            prompt, before = [], -1 - session
            for end in range(_CHARACTERS, len(text) + 1, _CHARACTERS):
                before = numbers.setdefault((before, text[end - _CHARACTERS : end]), len(numbers))
                prompt.append(before)
            timed.append(Timed(begins + at, prompt))
    return _in_order(timed)


def with_unshared(prompts: list[Prompt], each: int, blocks: int) -> list[Prompt]:
    """After each prompt, `each` others of so many blocks that never come again."""
    number, mixed = 3_000_000_000, []
    for prompt in prompts:
        mixed.append(prompt)
        for _ in range(each):
            mixed.append(list(range(number, number + blocks)))
            number += blocks
    return mixed


def _own(copy: int, block: int) -> int:
    return _OWN * (1 + copy) + block


def _in_order(timed: Iterable[Timed]) -> list[Prompt]:
    return [prompt for _, prompt in sorted(timed)]
