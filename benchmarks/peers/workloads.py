"""The requests: classes of reuse that servers meet, in sizes that fit a model of 135 M parameters on two cores.

All but `turns` are token ids, so that every server computes the same. Ids are drawn for each workload and run anew, so
that nothing that an earlier run left in a cache helps a later one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

#: Ids below are special tokens and single bytes, ids from TOP on are not in every vocabulary of this size.
BOTTOM, TOP = 300, 49000

REAL_TEXTS = Path(__file__).parents[2] / "tests" / "data" / "miniswe" / "inputs.jsonl"

Tokens = tuple[int, ...]


class Step(NamedTuple):
    """One request of a client, sent when the one before it is answered."""

    prompt: Tokens
    max_tokens: int


class Turn(NamedTuple):
    """One message of a conversation that keeps the server's own answers. system: only in the first."""

    system: str | None
    user: str
    max_tokens: int


Client = list[Step] | list[Turn]


def workload(name: str, run: int) -> list[Client]:
    """The clients of a workload, who all start at once."""
    return WORKLOADS[name](random.Random(f"{name} {run}"))


def drawn(rng: random.Random, count: int) -> Tokens:
    return tuple(rng.randrange(BOTTOM, TOP) for _ in range(count))


def single(rng: random.Random) -> list[Client]:
    """One user, 128 tokens in and 128 out, twice."""
    return [[Step(drawn(rng, 128), 128) for _ in range(2)]]


def none(rng: random.Random) -> list[Client]:
    """Nothing shared: 16 prompts of 512 by 8 clients, 64 out."""
    return [[Step(drawn(rng, 512), 64) for _ in range(2)] for _ in range(8)]


def fewshot(rng: random.Random) -> list[Client]:
    """One header of 1,536, 64 items of 64, by 8 clients, 8 out."""
    head = drawn(rng, 1536)
    return [[Step(head + drawn(rng, 64), 8) for _ in range(8)] for _ in range(8)]


def agent(rng: random.Random) -> list[Client]:
    """Four agents of 8 steps share tools of 1,024; each one's scratchpad grows by 96 a step; 32 out."""
    head = drawn(rng, 1024)
    clients: list[Client] = []
    for _ in range(4):
        pads = [drawn(rng, 64), *(drawn(rng, 96) for _ in range(7))]
        clients.append([Step(head + sum(pads[: step + 1], ()), 32) for step in range(8)])
    return clients


def chat(rng: random.Random) -> list[Client]:
    """Eight conversations of 6 turns share 256; a turn adds a question of 48 and the last answer, 48 too; 48 out."""
    head = drawn(rng, 256)
    clients: list[Client] = []
    for _ in range(8):
        said = [drawn(rng, 48) for _ in range(11)]
        clients.append([Step(head + sum(said[: 2 * turn + 1], ()), 48) for turn in range(6)])
    return clients


def decode(rng: random.Random) -> list[Client]:
    """Short prompts of 32, 16 at once, long answers of 192."""
    return [[Step(drawn(rng, 32), 192)] for _ in range(16)]


def longctx(rng: random.Random) -> list[Client]:
    """Eight users share a document of 4,096 and ask 32 each, 96 out."""
    head = drawn(rng, 4096)
    return [[Step(head + drawn(rng, 32), 96)] for _ in range(8)]


def rag(rng: random.Random) -> list[Client]:
    """A system prompt of 96, distinct passages of 900; 24 by 8 clients, 32 out."""
    head = drawn(rng, 96)
    return [[Step(head + drawn(rng, 900), 32) for _ in range(3)] for _ in range(8)]


def turns(rng: random.Random) -> list[Client]:
    """Eight conversations of 5 turns over real texts, each server's own answers kept, 48 out.

    The system prompt is the task that a coding agent was given, a user's message the next 400 characters of a file
    or listing that it read (tests/data/miniswe). A number at the start keeps runs apart.
    """
    texts = [json.loads(line)["input"] for line in REAL_TEXTS.read_text().splitlines()]
    system = f"Session {rng.randrange(10**6)}. " + texts[0][:2400]
    read = "".join(texts[1:])
    clients: list[Client] = []
    for _ in range(8):
        start = rng.randrange(len(read) - 2000)
        pieces = [read[start + 400 * turn : start + 400 * (turn + 1)] for turn in range(5)]
        clients.append(
            [
                Turn(system if turn == 0 else None, f"What does this say?\n{piece}", 48)
                for turn, piece in enumerate(pieces)
            ]
        )
    return clients


WORKLOADS: dict[str, Callable[[random.Random], list[Client]]] = {
    one.__name__: one for one in (single, none, fewshot, agent, chat, decode, longctx, rag, turns)
}
