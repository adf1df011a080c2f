"""From sampled tokens to the pieces of text that a client sees."""

from __future__ import annotations

from pageinn.engine.grammar import Grammars
from pageinn.engine.logits import controls_of
from pageinn.engine.messages import (
    Busy,
    BusyReason,
    Delta,
    FinishReason,
    GenerationRequest,
    PromptLogProb,
    Sources,
    TokenLogProb,
)
from pageinn.engine.stats import Stats
from pageinn.scheduling.plan import Ending, Outcome
from pageinn.text.detokenizer import Detokenizer
from pageinn.text.tokenizer import Tokenizer

_REASONS = {
    Ending.STOP: FinishReason.STOP,
    Ending.LENGTH: FinishReason.LENGTH,
    Ending.POOL: FinishReason.LENGTH,
}
_BUSY = {
    Ending.QUEUED_REQUESTS: BusyReason.QUEUED_REQUESTS,
    Ending.QUEUED_TOKENS: BusyReason.QUEUED_TOKENS,
    Ending.QUEUE_TIMEOUT: BusyReason.QUEUE_TIMEOUT,
}
_WHY_BUSY = {
    BusyReason.QUEUED_REQUESTS: "as many requests wait as may wait",
    BusyReason.QUEUED_TOKENS: "as many tokens of prompts wait as may wait",
    BusyReason.QUEUE_TIMEOUT: "the request has waited for its start as long as it may",
}
_OUTGREW = "the answer outgrew the KV cache; start the server with more --kv-cache-memory-bytes"


class Stream:
    """One request's choices: their text so far, and when things happened (seconds of one clock)."""

    def __init__(
        self, request: GenerationRequest, seed: int, tokenizer: Tokenizer, grammars: Grammars, now: float
    ) -> None:
        self.request = request
        self.seed = seed
        self.arrival = now
        self.sources: Sources | None = None
        self.unfinished = set(range(request.sampling.n))
        sampling = request.sampling
        schema = sampling.json_schema
        starts = [None if schema is None else grammars.start(schema) for _ in self.unfinished]
        self.controls = [controls_of(sampling, request.prompt, tokenizer.eos_ids, start) for start in starts]
        self._texts = [Detokenizer(tokenizer, sampling.stop) for _ in self.unfinished]
        self._generated: list[list[int]] = [[] for _ in self.unfinished]
        self._last: dict[int, float] = {}
        self._prompt_logprobs: list[PromptLogProb | None] = [] if sampling.prompt_logprobs is None else [None]
        self._unheard = set(self.unfinished)

    def tokens(self, choice: int) -> list[int]:
        """A choice's prompt and what it has generated."""
        return [*self.request.prompt, *self._generated[choice]]

    def to_score(self, choice: int) -> tuple[int, ...]:
        """The prompt, if log-probabilities of its own tokens are still wanted; the first choice computes them."""
        done = len(self._prompt_logprobs)
        return self.request.prompt if choice == 0 and 0 < done < len(self.request.prompt) else ()

    def score(self, start: int, tokens: list[PromptLogProb]) -> None:
        """Take in log-probabilities from a position on; what a preemption made compute again is there already."""
        self._prompt_logprobs += tokens[len(self._prompt_logprobs) - start :]

    def turned_away(self, outcome: Outcome, stats: Stats) -> Delta:
        """The delta of a choice that never started. Its request counts once, and among no finished ones."""
        assert outcome.ending is not None
        assert outcome.retry_after is not None
        busy = Busy(_BUSY[outcome.ending], outcome.retry_after)
        if outcome.choice == 0:
            stats.refused[busy.reason.value] = stats.refused.get(busy.reason.value, 0) + 1
        self.unfinished.discard(outcome.choice)
        error = f"the server is busy: {_WHY_BUSY[busy.reason]}; try again in {busy.retry_after} s"
        name = self.request.request_id
        return Delta(name, outcome.choice, "", (), (), 0, FinishReason.ERROR, error, busy=busy)

    def push(self, outcome: Outcome, logprob: TokenLogProb | None, now: float, stats: Stats) -> Delta:
        """The delta that an outcome makes. A stop string ends the choice even if the scheduler did not."""
        text, reason = "", _REASONS[outcome.ending] if outcome.ending else None
        error = _OUTGREW if outcome.ending is Ending.POOL else None
        texts = self._texts[outcome.choice]
        silent = self.request.sampling.max_tokens == 0
        if silent and outcome.token is not None:
            reason = FinishReason.LENGTH
        elif outcome.token is not None:
            self._time(outcome.choice, now, stats)
            stats.generation_tokens += 1
            generated = self._generated[outcome.choice]
            generated.append(outcome.token)
            controls = self.controls[outcome.choice]
            if controls is not None:
                controls.push(outcome.token)
            if outcome.ending is not Ending.STOP:
                piece = texts.push([outcome.token], len(generated) > self.request.sampling.min_tokens)
                text = piece.text
                if piece.stopped:
                    reason = FinishReason.STOP
            if controls is not None and controls.error is not None:
                reason, error = FinishReason.ERROR, controls.error
        if reason is not None:
            text += texts.finish()
            self._finish(outcome.choice, reason, now, stats)
        prompt_logprobs = tuple(self._prompt_logprobs) if outcome.choice in self._unheard else ()
        self._unheard.discard(outcome.choice)
        return Delta(
            request_id=self.request.request_id,
            index=outcome.choice,
            text=text,
            tokens=() if outcome.token is None or silent else (outcome.token,),
            logprobs=() if logprob is None or silent else (logprob,),
            cached_tokens=outcome.cached_tokens,
            finish_reason=reason,
            error=error,
            prompt_logprobs=prompt_logprobs,
            retained_tokens=outcome.retained_tokens,
            sources=self.sources,
        )

    def _time(self, choice: int, now: float, stats: Stats) -> None:
        if choice in self._last:
            stats.time_per_output_token.observe(now - self._last[choice])
        elif not self._last:
            stats.time_to_first_token.observe(now - self.arrival)
        self._last[choice] = now

    def _finish(self, choice: int, reason: FinishReason, now: float, stats: Stats) -> None:
        self.unfinished.discard(choice)
        stats.finished[reason.value] = stats.finished.get(reason.value, 0) + 1
        if not self.unfinished:
            stats.request_latency.observe(now - self.arrival)
