"""Logs made from real prompts, clean or with a fault injected."""

from __future__ import annotations

import json
import random
import uuid
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pageinn.traffic.record import Chat, Record, Text

DATA = Path(__file__).parent.parent / "data"
START = datetime(2026, 3, 14, 9, 26, 53)


class Row(NamedTuple):
    session: str
    input: str
    output: str


@cache
def rows() -> list[Row]:
    """The agent requests of tests/data/miniswe, in time order."""
    lines = (DATA / "miniswe" / "inputs.jsonl").read_text().splitlines()
    return [Row(row["session_id"], row["input"], row["output"]) for row in map(json.loads, lines)]


@cache
def instructions() -> str:
    """What all the agents are told: about 1,100 tokens."""
    text = rows()[0].input
    return text[text.index("<instructions>") : text.index("</instructions>") + len("</instructions>")] + "\n"


@cache
def tasks() -> list[str]:
    """The texts of the sessions' tasks."""
    return list(dict.fromkeys(row.input[: row.input.index("<instructions>")].strip() for row in rows()))


@cache
def outputs() -> list[str]:
    """What tools answered, each once."""
    found: dict[str, None] = {}
    for row in rows():
        tail = row.input[row.input.index("</instructions>") + len("</instructions>") :]
        found.update(dict.fromkeys("<returncode>" + part for part in tail.split("<returncode>")[1:]))
    return list(found)


@cache
def answers() -> list[str]:
    """What the agents said."""
    return [row.output for row in rows()]


@cache
def tools() -> list[dict[str, Any]]:
    """Real tool schemas in OpenAI's shape."""
    lines = (DATA / "gemini_cli" / "tools.jsonl").read_text().splitlines()
    return [openai_tool(json.loads(line)) for line in lines]


def openai_tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = {"name": tool["name"], "description": tool["description"], "parameters": tool["parametersJsonSchema"]}
    return {"type": "function", "function": function}


def text_log(texts: list[str], step: float = 1.0, session: str = "") -> list[Record]:
    """Prompts `step` seconds apart."""
    return [Record("log", k + 1, Text(text), time=k * step, session=session) for k, text in enumerate(texts)]


def chat_log(chats: list[Chat], step: float = 1.0, sessions: list[str] | None = None) -> list[Record]:
    """Conversations `step` seconds apart."""
    names = sessions or [""] * len(chats)
    return [Record("log", k + 1, chat, time=k * step, session=names[k]) for k, chat in enumerate(chats)]


def conversation(rng: random.Random, turns: int, system: str | None = None, with_tools: bool = False) -> list[Chat]:
    """The requests of one agent: what was said before each turn, the answer to it and its result appended."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": system if system is not None else instructions()},
        {"role": "user", "content": f"{rng.choice(tasks())}\n(case {rng.randrange(10**9)})"},
    ]
    chats = []
    for _ in range(turns):
        chats.append(Chat(list(messages), tools() if with_tools else [], {}))
        messages.append({"role": "assistant", "content": rng.choice(answers()) + f"\n# step {rng.randrange(10**9)}"})
        messages.append({"role": "user", "content": rng.choice(outputs())})
    return chats


def clock(k: int, seconds: float = 1.0) -> datetime:
    """The time `k` steps after the start."""
    return START + timedelta(seconds=k * seconds)


def uuid_of(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
