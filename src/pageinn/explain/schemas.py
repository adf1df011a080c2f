"""JSON in prompts: the same value written in another order, and lists of tools."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from pageinn.explain.kinds import Kind

_DECODER = json.JSONDecoder()
_OPENING = re.compile(r"(?:^|(?<=[\s>:=\[,(`]))[{\[]")
#: Places tried for the beginning of the JSON around a difference, from the outermost.
_TRIES = 50


class Json(NamedTuple):
    """A JSON value in a text: text[start:end]."""

    start: int
    end: int
    value: Any


def enclosing(text: str, place: int) -> Json | None:
    """The outermost JSON object or array that `place` lies in."""
    starts = [match.start() for match in _OPENING.finditer(text, 0, place)]
    for start in starts[:_TRIES]:
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if end > place:
            return Json(start, end, value)
    return None


def same_value(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal but for the order of their objects' keys. Arrays keep their order."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


class Tool(NamedTuple):
    """A tool as it is written in a prompt."""

    name: str
    text: str

    def same_as(self, other: Tool) -> bool:
        """Whether both mean the same."""
        if self.text == other.text:
            return True
        try:
            return same_value(json.loads(self.text), json.loads(other.text))
        except (ValueError, RecursionError):
            return False


class Tools(NamedTuple):
    """How two lists of tools differ; None of kind if their parts are to be compared one by one."""

    kind: Kind | None
    detail: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def compare_tools(earlier: Sequence[Tool], later: Sequence[Tool]) -> Tools:
    """What differs between two lists of tools, as lists: the order, the keys' order, or which tools there are."""
    before, after = {tool.name: tool for tool in earlier}, {tool.name: tool for tool in later}
    added = tuple(name for name in after if name not in before)
    removed = tuple(name for name in before if name not in after)
    if added or removed:
        said = [f"added {listed(added)}"] if added else []
        said += [f"removed {listed(removed)}"] if removed else []
        return Tools(Kind.TOOLS, "; ".join(said), added, removed)
    same = all(before[name].same_as(after[name]) for name in after)
    if [tool.name for tool in earlier] != [tool.name for tool in later]:
        return Tools(Kind.TOOL_ORDER, "same meaning, other order" if same else "other order, and schemas changed")
    if same and list(earlier) != list(later):
        return Tools(Kind.KEY_ORDER, "same meaning, other order")
    return Tools(None, "")


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more."""
    shown = ", ".join(names[:4])
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown
