"""What a completion says of its prompt: the text again, and how likely each of its tokens was."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from pageinn.engine.messages import PromptLogProb
from pageinn.server.errors import ApiError
from pageinn.server.protocol import CompletionRequest
from pageinn.server.shapes import finite
from pageinn.text.tokenizer import Tokenizer


def check_prompt_fields(request: CompletionRequest) -> None:
    """Raises ApiError for fields that ask for what a prompt cannot give."""
    if request.max_tokens == 0 and not request.echo and request.prompt_logprobs is None:
        reason = "max_tokens is 0, which needs echo or prompt_logprobs"
        raise ApiError(400, reason, param="max_tokens", code="invalid_value")
    if request.prompt_logprobs is not None and request.stream:
        message = "prompt_logprobs come with a whole answer, not with stream: true; echo with logprobs does both"
        raise ApiError(400, message, param="prompt_logprobs")


def prompt_logprobs_of(request: CompletionRequest) -> int | None:
    """How many alternatives the engine is to give for each prompt token; None for no log-probabilities at all."""
    asked = [request.prompt_logprobs, request.logprobs if request.echo else None]
    return max((count for count in asked if count is not None), default=None)


class Prompts:
    """A request's prompts as an answer shows them."""

    def __init__(self, tokenizer: Tokenizer, request: CompletionRequest, tokens: Sequence[tuple[int, ...]]) -> None:
        self.tokens = tokens
        self._tokenizer = tokenizer
        self._given = request.prompt
        self._count = request.prompt_logprobs

    def text(self, place: int) -> str:
        """A prompt as it was given; one of token ids as the text that they stand for."""
        given = self._given[place]
        return given if isinstance(given, str) else self._tokenizer.decode(given)

    def offsets(self, place: int) -> list[int]:
        """At which character of its text each of a prompt's tokens begins.

        A control token takes room if the text has it written out. A space that encoding put in front takes none.
        """
        text = self.text(place)
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        starts, length = [], 0
        for token in self.tokens[place]:
            starts.append(length)
            piece = decoder.decode(self._tokenizer.token_bytes[token]) or self._name(token)
            if length == 0 and not text.startswith(piece):
                piece = piece.removeprefix(" ")
            length += len(piece) if text.startswith(piece, length) else 0
        return starts

    def _name(self, token: int) -> str:
        return "" if self._tokenizer.token_bytes[token] else self._tokenizer.token_text(token)

    def logprobs(self, entries: Sequence[PromptLogProb | None]) -> dict[str, Any]:
        """vLLM's `prompt_logprobs`: for each token, itself and the most likely ones, by id; {} if not asked for."""
        if self._count is None:
            return {}
        return {"prompt_logprobs": [None if entry is None else self._ranked(entry, self._count) for entry in entries]}

    def _ranked(self, entry: PromptLogProb, count: int) -> dict[str, Any]:
        own = {str(entry.token): self._entry(entry.token, entry.logprob, entry.rank)}
        top = enumerate(entry.top[:count], 1)
        return {**own, **{str(token): self._entry(token, value, rank) for rank, (token, value) in top}}

    def _entry(self, token: int, logprob: float, rank: int) -> dict[str, Any]:
        return {"logprob": finite(logprob), "rank": rank, "decoded_token": self._tokenizer.token_text(token)}
