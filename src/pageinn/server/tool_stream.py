"""Answers of /v1/chat/completions that may hold tool calls."""

from __future__ import annotations

import uuid
from typing import Any

from pageinn.engine.messages import Delta, FinishReason
from pageinn.server.chat import ChatShape
from pageinn.server.generation import Answer
from pageinn.text.tokenizer import Tokenizer
from pageinn.text.tool_calls import OPEN, ToolCall, ToolCallParser

TOOL_CALLS = "tool_calls"


class ToolChatShape(ChatShape):
    """The chat form with the answer's calls taken out of its text.

    In a stream, text flows on until a call may have begun; a call follows whole, in one delta.
    begun: the prompt ended with the opening tag of a call.
    """

    _no_words = None

    def __init__(self, tokenizer: Tokenizer, logprobs: bool, begun: bool) -> None:
        super().__init__(tokenizer, logprobs)
        self._before = OPEN if begun else ""
        self._parsers: dict[int, ToolCallParser] = {}
        self._calls: dict[int, int] = {}

    def whole(self, choice: int, answer: Answer) -> dict[str, Any]:
        """A complete choice."""
        said = super().whole(choice, answer)
        text, calls = _apart(ToolCallParser().feed(self._before + answer.text, last=True))
        if calls:
            said["message"] |= {"content": text or None, "tool_calls": [_call(call) for call in calls]}
            said["finish_reason"] = _reason(answer.finish_reason)
        return said

    def piece(self, choice: int, delta: Delta) -> dict[str, Any] | None:
        """A piece of a choice; None if nothing has become certain."""
        before = "" if choice in self._parsers else self._before
        parser = self._parsers.setdefault(choice, ToolCallParser())
        text, calls = _apart(parser.feed(before + delta.text, last=delta.finish_reason is not None))
        message: dict[str, Any] = {"content": text} if text else {}
        made = self._calls.get(choice, 0)
        if calls:
            message["tool_calls"] = [{"index": made + i, **_call(call)} for i, call in enumerate(calls)]
            self._calls[choice] = made + len(calls)
        reason = _reason(delta.finish_reason) if self._calls.get(choice) else delta.finish_reason
        return self._piece(choice, delta, message, reason)


def _apart(found: list[str | ToolCall]) -> tuple[str, list[ToolCall]]:
    text = "".join(item for item in found if isinstance(item, str))
    return text, [item for item in found if isinstance(item, ToolCall)]


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}


def _reason(reason: FinishReason | None) -> str | None:
    """Why an answer with calls ended: to have them made, unless it was cut short."""
    return TOOL_CALLS if reason is FinishReason.STOP else reason
