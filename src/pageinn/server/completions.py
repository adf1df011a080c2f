"""Answers of /v1/completions."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from pageinn.engine.messages import Delta, TokenLogProb
from pageinn.server.generation import Answer
from pageinn.server.shapes import finite
from pageinn.text.tokenizer import Tokenizer


class CompletionShape:
    """The legacy completions' form, with log-probabilities as four parallel lists."""

    whole_object = "text_completion"
    piece_object = "text_completion"

    def __init__(self, tokenizer: Tokenizer, logprobs: int | None) -> None:
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._offsets: dict[int, _Offsets] = {}

    def whole(self, choice: int, answer: Answer) -> dict[str, Any]:
        """A complete choice."""
        return self._choice(choice, answer.text, answer.logprobs, answer.finish_reason)

    def piece(self, choice: int, delta: Delta) -> dict[str, Any] | None:
        """A piece of a choice; None if no text, log-probability or end has come."""
        if not (delta.text or delta.finish_reason or (self._logprobs is not None and delta.logprobs)):
            return None
        return self._choice(choice, delta.text, delta.logprobs, delta.finish_reason)

    def _choice(
        self, choice: int, text: str, logprobs: Sequence[TokenLogProb], finish_reason: str | None
    ) -> dict[str, Any]:
        return {
            "index": choice,
            "text": text,
            "logprobs": None if self._logprobs is None else self._lists(choice, logprobs),
            "finish_reason": finish_reason,
        }

    def _lists(self, choice: int, logprobs: Sequence[TokenLogProb]) -> dict[str, Any]:
        offsets = self._offsets.setdefault(choice, _Offsets(self._tokenizer))
        return {
            "tokens": [self._name(entry.token) for entry in logprobs],
            "token_logprobs": [finite(entry.logprob) for entry in logprobs],
            "top_logprobs": [self._top(entry) for entry in logprobs],
            "text_offset": [offsets.next(entry.token) for entry in logprobs],
        }

    def _top(self, entry: TokenLogProb) -> dict[str, float]:
        """The most likely tokens, and the chosen one if it is none of them."""
        top = {self._name(token): finite(logprob) for token, logprob in entry.top}
        top.setdefault(self._name(entry.token), finite(entry.logprob))
        return top

    def _name(self, token: int) -> str:
        """A token as a key that no other token shares: half characters show their bytes, as OpenAI had it."""
        exact = self._tokenizer.token_bytes[token]
        try:
            return exact.decode() if exact else self._tokenizer.token_text(token)
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in exact)


class _Offsets:
    """At which character of the answer each token begins."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._length = 0

    def next(self, token: int) -> int:
        start = self._length
        self._length += len(self._decoder.decode(self._token_bytes[token]))
        return start
