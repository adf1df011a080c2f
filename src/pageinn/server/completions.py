"""Answers of /v1/completions."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from pageinn.engine.messages import Delta, PromptLogProb, TokenLogProb
from pageinn.server.echo import Prompts
from pageinn.server.generation import Answer
from pageinn.server.protocol import CompletionRequest
from pageinn.server.shapes import finite
from pageinn.text.tokenizer import Tokenizer


class CompletionShape:
    """The legacy completions' form, with log-probabilities as four parallel lists."""

    whole_object = "text_completion"
    piece_object = "text_completion"

    def __init__(self, tokenizer: Tokenizer, request: CompletionRequest, prompts: Sequence[tuple[int, ...]]) -> None:
        self._tokenizer = tokenizer
        self._logprobs = request.logprobs
        self._echo = request.echo
        self._n = request.n
        self._prompts = Prompts(tokenizer, request, prompts)
        self._begun: set[int] = set()
        self._offsets: dict[int, _Offsets] = {}

    def whole(self, choice: int, answer: Answer) -> dict[str, Any]:
        """A complete choice."""
        whole = self._choice(choice, answer.text, answer.logprobs, answer.finish_reason, answer.prompt_logprobs)
        return {**whole, **self._prompts.logprobs(answer.prompt_logprobs)}

    def piece(self, choice: int, delta: Delta) -> dict[str, Any] | None:
        """A piece of a choice; None if no text, log-probability or end has come."""
        begins = self._echo and choice not in self._begun
        if not (begins or delta.text or delta.finish_reason or (self._logprobs is not None and delta.logprobs)):
            return None
        return self._choice(choice, delta.text, delta.logprobs, delta.finish_reason, delta.prompt_logprobs)

    def _choice(
        self,
        choice: int,
        text: str,
        logprobs: Sequence[TokenLogProb],
        finish_reason: str | None,
        prompt_logprobs: Sequence[PromptLogProb | None],
    ) -> dict[str, Any]:
        begins = self._echo and choice not in self._begun
        self._begun.add(choice)
        lists = None if self._logprobs is None else self._lists(choice, logprobs, prompt_logprobs if begins else ())
        return {
            "index": choice,
            "text": self._prompts.text(choice // self._n) + text if begins else text,
            "logprobs": lists,
            "finish_reason": finish_reason,
        }

    def _lists(
        self, choice: int, logprobs: Sequence[TokenLogProb], prompt: Sequence[PromptLogProb | None]
    ) -> dict[str, Any]:
        """Four parallel lists; the first token of a prompt has no probability."""
        place = choice // self._n
        if choice not in self._offsets:
            self._offsets[choice] = _Offsets(self._tokenizer, len(self._prompts.text(place)) if self._echo else 0)
        offsets = self._offsets[choice]
        entries = [*prompt, *logprobs]
        before = self._prompts.offsets(place) if prompt else []
        tokens = [*(self._prompts.tokens[place] if prompt else ()), *(entry.token for entry in logprobs)]
        return {
            "tokens": [self._name(token) for token in tokens],
            "token_logprobs": [None if entry is None else finite(entry.logprob) for entry in entries],
            "top_logprobs": [None if entry is None else self._top(entry) for entry in entries],
            "text_offset": [*before, *(offsets.next(entry.token) for entry in logprobs)],
        }

    def _top(self, entry: TokenLogProb | PromptLogProb) -> dict[str, float]:
        """The most likely tokens, and the chosen one if it is none of them."""
        top = {self._name(token): finite(logprob) for token, logprob in entry.top[: self._logprobs]}
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
    """At which character of the text each token of the answer begins. before: characters that stand before it."""

    def __init__(self, tokenizer: Tokenizer, before: int) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._length = before

    def next(self, token: int) -> int:
        start = self._length
        self._length += len(self._decoder.decode(self._token_bytes[token]))
        return start
