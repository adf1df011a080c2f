"""What a request says of the cache: what not to read, what not to write, and what to keep for how long.

Breakpoints have the shape of Anthropic's API, {"type": "ephemeral", "ttl": "5m"}, on text parts of messages or on the
request itself, where it means the whole prompt.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pageinn.memory.retention import Retain
from pageinn.server.strict import Strict
from pageinn.text.tokenizer import Tokenizer

#: As many as Anthropic's API takes.
MAX_BREAKPOINTS = 4
SECONDS = {"5m": 300.0, "1h": 3600.0}
#: Stands after a breakpoint's text in a second rendering: what both begin with ends at the breakpoint.
MARK = "\ue000"


class CacheControl(Strict):
    """A prefix that ends here is to be kept for that long after its last use."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"

    @property
    def seconds(self) -> float:
        """The time in seconds."""
        return SECONDS[self.ttl]


class Breakpoint(NamedTuple):
    """After which part of which message a prefix to keep ends."""

    message: int
    part: int
    seconds: float


class CacheUse(NamedTuple):
    """What a request does with the cache."""

    read: bool
    write: bool
    retain: tuple[Retain, ...]


def without_control(content: Any) -> Any:
    """A message's content as a template takes it."""
    if not isinstance(content, list):
        return content
    return [{"type": part["type"], "text": part["text"]} for part in content]


def marked(turns: list[dict[str, Any]], point: Breakpoint) -> list[dict[str, Any]]:
    """The messages with a mark after a breakpoint's text."""
    content = list(turns[point.message]["content"])
    content[point.part] = {**content[point.part], "text": content[point.part]["text"] + MARK}
    return [*turns[: point.message], {**turns[point.message], "content": content}, *turns[point.message + 1 :]]


def tokens_before(tokenizer: Tokenizer, text: str, other: str, tokens: tuple[int, ...]) -> int:
    """How many of a text's tokens lie in what it has in common with another text's beginning."""
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if text[low:middle] == other[low:middle] else (low, middle - 1)
    common = tokenizer.encode(text[:low], add_special=False)
    count = 0
    while count < min(len(common), len(tokens)) and common[count] == tokens[count]:
        count += 1
    return count
