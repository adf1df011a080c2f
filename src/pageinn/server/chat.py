"""Answers of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pageinn.engine.messages import Delta, TokenLogProb
from pageinn.server.generation import Answer
from pageinn.server.shapes import finite
from pageinn.text.tokenizer import Tokenizer


class ChatShape:
    """The chat form: a message, or deltas of one, the first of which names the role."""

    whole_object = "chat.completion"
    piece_object = "chat.completion.chunk"
    #: The content of a first delta that has none. It is sent all the same: clients want to meet choice 0 first.
    _no_words: str | None = ""

    def __init__(self, tokenizer: Tokenizer, logprobs: bool) -> None:
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._begun: set[int] = set()

    def whole(self, choice: int, answer: Answer) -> dict[str, Any]:
        """A complete choice."""
        return {
            "index": choice,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": self._entries(answer.logprobs),
            "finish_reason": answer.finish_reason,
        }

    def piece(self, choice: int, delta: Delta) -> dict[str, Any] | None:
        """A piece of a choice; None if no text, log-probability or end has come."""
        return self._piece(choice, delta, {"content": delta.text} if delta.text else {}, delta.finish_reason)

    def _piece(
        self, choice: int, delta: Delta, message: dict[str, Any], finish_reason: str | None
    ) -> dict[str, Any] | None:
        first = choice not in self._begun
        if not (first or message or finish_reason or (self._logprobs and delta.logprobs)):
            return None
        if first:
            self._begun.add(choice)
            message = {"role": "assistant", "content": self._no_words, **message}
        return {
            "index": choice,
            "delta": message,
            "logprobs": self._entries(delta.logprobs),
            "finish_reason": finish_reason,
        }

    def _entries(self, logprobs: Sequence[TokenLogProb]) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        return {"content": [self._entry(entry) for entry in logprobs], "refusal": None}

    def _entry(self, entry: TokenLogProb) -> dict[str, Any]:
        top = [self._token(token, logprob) for token, logprob in entry.top]
        return {**self._token(entry.token, entry.logprob), "top_logprobs": top}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        exact = self._tokenizer.token_bytes[token]
        return {
            "token": self._tokenizer.token_text(token),
            "logprob": finite(logprob),
            "bytes": list(exact) if exact else None,
        }
