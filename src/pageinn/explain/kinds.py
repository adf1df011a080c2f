"""What can differ where prompts part, and what to do about it."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What differs. All but TEXT are faults if long equal content follows."""

    CLOCK = "clock"
    DATE = "date"
    ID = "id"
    USER = "user name"
    COUNTER = "counter"
    FLAG = "variant flag"
    KEY_ORDER = "key order"
    TOOL_ORDER = "tool order"
    TOOLS = "tools added or removed"
    ORDER = "order of lines"
    WHITESPACE = "whitespace"
    HISTORY = "edited history"
    OTHER = "other"
    #: Content of its own: another question, another document, an answer. Legitimate.
    TEXT = "content"


#: Kinds whose value is moved behind what is stable; the rest is brought to one form, or cannot be rewritten.
MOVED = frozenset({Kind.CLOCK, Kind.DATE, Kind.ID, Kind.USER, Kind.COUNTER, Kind.FLAG, Kind.OTHER})
#: Kinds that a rewritten log may change without changing what a model is told.
WRITTEN = MOVED | {Kind.KEY_ORDER, Kind.TOOL_ORDER, Kind.WHITESPACE}

_FIXES = {
    Kind.CLOCK: "Write the time behind what stays the same (the end of the last message), or only as finely as needed.",
    Kind.DATE: "Write the date behind what stays the same (the end of the last message).",
    Kind.ID: "Drop the id from the prompt, or write it behind what stays the same.",
    Kind.USER: "Name the user behind what all users share, in the first user message or later.",
    Kind.COUNTER: "Drop the counter, or write it behind what stays the same.",
    Kind.FLAG: "Move the switch behind what stays the same, or send each variant to a replica of its own.",
    Kind.KEY_ORDER: "Serialise JSON with its keys in one order (json.dumps(..., sort_keys=True)).",
    Kind.TOOL_ORDER: "List the tools in one order, for example by name.",
    Kind.TOOLS: "Declare all tools from the first request on, or announce later ones in a message.",
    Kind.ORDER: "Keep examples and sections in one order, or shuffle them behind what stays the same.",
    Kind.WHITESPACE: "Build the text in one place, with one kind of line end and no trailing spaces.",
    Kind.HISTORY: "Append to the conversation only; if it must be cut, cut rarely and much at a time.",
    Kind.OTHER: "Move what varies behind what stays the same.",
    Kind.TEXT: "Put what all requests share first, and what each brings of its own behind it.",
}
_TEMPLATE_DATE = (
    "The chat template writes the date: pass a fixed date to the template, or change the template to write it last."
)


def fix_for(kind: Kind, part_kind: str) -> str:
    """The fix in one sentence."""
    return _TEMPLATE_DATE if part_kind == "template" and kind in (Kind.DATE, Kind.CLOCK) else _FIXES[kind]
