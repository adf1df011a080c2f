"""What a request changes of its logits before a token is drawn: a function of the choice's own tokens and nothing else.

A choice's controls live as long as the choice, through preemption and forks, and learn each token once, when it is
sampled; whatever else the engine does, they are the same at the same token. The order is vLLM's: what the grammar
forbids, what min_tokens forbids, logit_bias, repetition penalty, frequency and presence penalty; then temperature.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pageinn.engine.messages import SamplingParams
from pageinn.kernels.backend import F32

_FORBIDDEN = np.float32(-np.inf)


class Grammar(Protocol):
    """Where one answer stands in a grammar."""

    error: str | None

    def allowed(self) -> NDArray[np.bool_]:
        """Which tokens may come next: bool [vocabulary], never all False."""

    def push(self, token: int) -> None:
        """Take the next token."""


class Controls:
    """One choice's controls. prompt: its token ids. end_ids: what min_tokens holds back."""

    def __init__(
        self, sampling: SamplingParams, prompt: tuple[int, ...], end_ids: Set[int], grammar: Grammar | None = None
    ) -> None:
        self.grammar = grammar
        self._end_ids = np.array(sorted(end_ids), np.int64)
        self._min_tokens = sampling.min_tokens
        self._generated = 0
        self._bias_ids = np.array([token for token, _ in sampling.logit_bias], np.int64)
        self._bias = np.array([bias for _, bias in sampling.logit_bias], np.float32)
        self._penalties = _Penalties(sampling, prompt) if _penalised(sampling) else None

    @property
    def error(self) -> str | None:
        """Why the answer cannot go on, or None."""
        return None if self.grammar is None else self.grammar.error

    def apply(self, logits: F32) -> None:
        """Change one row of logits [V] in place."""
        if self.grammar is not None:
            allowed = self.grammar.allowed()
            logits[: len(allowed)][~allowed] = _FORBIDDEN
            logits[len(allowed) :] = _FORBIDDEN
        if self._generated < self._min_tokens:
            self._hold_back(logits)
        if len(self._bias):
            logits[self._bias_ids] += self._bias
        if self._penalties is not None:
            self._penalties.apply(logits)

    def push(self, token: int) -> None:
        """Learn the token that was drawn."""
        self._generated += 1
        if self._penalties is not None:
            self._penalties.push(token)
        if self.grammar is not None:
            self.grammar.push(token)

    def _hold_back(self, logits: F32) -> None:
        held = logits[self._end_ids]
        logits[self._end_ids] = _FORBIDDEN
        if self.grammar is not None and logits.max() == _FORBIDDEN:
            # A complete answer has nothing else to say: the grammar outranks min_tokens.
            logits[self._end_ids] = held


class _Penalties:
    """The tokens of a choice and how often each was generated, in arrays that grow."""

    def __init__(self, sampling: SamplingParams, prompt: tuple[int, ...]) -> None:
        self._repetition = sampling.repetition_penalty
        self._frequency = sampling.frequency_penalty
        self._presence = sampling.presence_penalty
        # Only the repetition penalty looks at the prompt.
        seen = dict.fromkeys(prompt) if self._repetition != 1.0 else {}
        self._place = {token: place for place, token in enumerate(seen)}
        self._ids = np.array([*seen, *[0] * 64], np.int64)
        self._counts = np.zeros(len(self._ids), np.float32)

    def push(self, token: int) -> None:
        """Count one generated token."""
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        self._counts[place] += 1

    def apply(self, logits: F32) -> None:
        """Divide or multiply what was seen (Keskar et al. 2019, arXiv:1909.05858), subtract for what was generated."""
        known = len(self._place)
        ids, counts = self._ids[:known], self._counts[:known]
        values = logits[ids]
        if self._repetition != 1.0:
            values = np.where(values > 0, values / self._repetition, values * self._repetition)
        values -= self._frequency * counts
        values -= self._presence * (counts > 0).astype(np.float32)
        logits[ids] = values


def _penalised(sampling: SamplingParams) -> bool:
    return (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty) != (1.0, 0.0, 0.0)


def controls_of(
    sampling: SamplingParams, prompt: tuple[int, ...], eos_ids: Set[int], grammar: Grammar | None = None
) -> Controls | None:
    """The controls of one choice, or None for a request that asks for none: such a row costs nothing."""
    if grammar is None and not sampling.min_tokens and not sampling.logit_bias and not _penalised(sampling):
        return None
    return Controls(sampling, prompt, eos_ids | set(sampling.stop_token_ids), grammar)
