"""Which requests are refused before they reach the scheduler."""

from __future__ import annotations

from collections.abc import Sequence, Set

from pageinn.engine.messages import GenerationRequest, RefusedError, SamplingParams

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_PENALTY = 2.0
MAX_BIAS = 100.0
#: Beyond these a logit would leave the range of float32.
REPETITION_PENALTIES = (0.01, 100.0)
_SEEDS = range(-(1 << 63), 1 << 64)


def check_request(request: GenerationRequest, vocab_size: int, eos_ids: Set[int]) -> None:
    """Raise RefusedError, naming the field, for values that have no meaning."""
    if not request.prompt:
        raise RefusedError("the prompt is empty; give at least one token", "prompt")
    _in_vocabulary("prompt", request.prompt, vocab_size)
    if request.queue_timeout is not None and not 0 < request.queue_timeout < float("inf"):
        raise RefusedError(f"queue_timeout is {request.queue_timeout}; it must be above 0", "queue_timeout")
    sampling = request.sampling
    check_sampling(sampling)
    _in_vocabulary("logit_bias", [token for token, _ in sampling.logit_bias], vocab_size)
    _in_vocabulary("stop_token_ids", sampling.stop_token_ids, vocab_size)
    if sampling.min_tokens and len(eos_ids | set(sampling.stop_token_ids)) >= vocab_size:
        raise RefusedError("min_tokens holds back every token there is; give fewer stop_token_ids", "min_tokens")


def check_sampling(sampling: SamplingParams) -> None:
    """Raise RefusedError, naming the field, for parameters out of range."""
    _between("max_tokens", sampling.max_tokens, 0, None)
    _between("n", sampling.n, 1, MAX_CHOICES)
    _between("temperature", sampling.temperature, 0.0, 1e4)
    _between("top_p", sampling.top_p, 0.0, 1.0)
    if sampling.top_p == 0.0:
        raise RefusedError("top_p is 0; it must be above 0", "top_p")
    _between("top_k", sampling.top_k, 0, (1 << 31) - 1)
    _between("min_p", sampling.min_p, 0.0, 1.0)
    if sampling.logprobs is not None:
        _between("logprobs", sampling.logprobs, 0, MAX_LOGPROBS)
    if sampling.prompt_logprobs is not None:
        _between("prompt_logprobs", sampling.prompt_logprobs, 0, MAX_LOGPROBS)
    _between("presence_penalty", sampling.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
    _between("frequency_penalty", sampling.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
    _between("repetition_penalty", sampling.repetition_penalty, *REPETITION_PENALTIES)
    for token, bias in sampling.logit_bias:
        _between("logit_bias", bias, -MAX_BIAS, MAX_BIAS, f" of token {token}")
    if len({token for token, _ in sampling.logit_bias}) < len(sampling.logit_bias):
        raise RefusedError("logit_bias names a token twice", "logit_bias")
    _between("min_tokens", sampling.min_tokens, 0, None)
    if sampling.min_tokens > sampling.max_tokens:
        raise RefusedError(
            f"min_tokens is {sampling.min_tokens} and max_tokens {sampling.max_tokens}; it must not be more",
            "min_tokens",
        )
    if sampling.json_schema is not None and sampling.ignore_eos:
        raise RefusedError("ignore_eos and a schema are given: an answer that is complete has to end", "ignore_eos")
    if sampling.seed is not None and sampling.seed not in _SEEDS:
        raise RefusedError("seed does not fit in 64 bits", "seed")
    if "" in sampling.stop:
        raise RefusedError("a stop string is empty", "stop")


def _between(name: str, value: float, least: float, most: float | None, which: str = "") -> None:
    # Written so that NaN is refused too.
    if not (value >= least and (most is None or value <= most)):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise RefusedError(f"{name}{which} is {value}; it must be {limits}", name)


def _in_vocabulary(name: str, tokens: Sequence[int], vocab_size: int) -> None:
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_size):
        raise RefusedError(f"{name}: token ids must lie in 0..{vocab_size - 1}", name)
