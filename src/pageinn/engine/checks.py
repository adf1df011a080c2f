"""Which requests are refused before they reach the scheduler."""

from __future__ import annotations

from pageinn.engine.messages import GenerationRequest, RefusedError, SamplingParams

MAX_CHOICES = 128
MAX_LOGPROBS = 20
_SEEDS = range(-(1 << 63), 1 << 64)


def check_request(request: GenerationRequest, vocab_size: int) -> None:
    """Raise RefusedError, naming the field, for values that have no meaning."""
    if not request.prompt:
        raise RefusedError("the prompt is empty; give at least one token", "prompt")
    if not (min(request.prompt) >= 0 and max(request.prompt) < vocab_size):
        raise RefusedError(f"token ids must lie in 0..{vocab_size - 1}", "prompt")
    check_sampling(request.sampling)


def check_sampling(sampling: SamplingParams) -> None:
    """Raise RefusedError, naming the field, for parameters out of range."""
    _between("max_tokens", sampling.max_tokens, 1, None)
    _between("n", sampling.n, 1, MAX_CHOICES)
    _between("temperature", sampling.temperature, 0.0, 1e4)
    _between("top_p", sampling.top_p, 0.0, 1.0)
    if sampling.top_p == 0.0:
        raise RefusedError("top_p is 0; it must be above 0", "top_p")
    _between("top_k", sampling.top_k, 0, (1 << 31) - 1)
    _between("min_p", sampling.min_p, 0.0, 1.0)
    if sampling.logprobs is not None:
        _between("logprobs", sampling.logprobs, 0, MAX_LOGPROBS)
    if sampling.seed is not None and sampling.seed not in _SEEDS:
        raise RefusedError("seed does not fit in 64 bits", "seed")
    if "" in sampling.stop:
        raise RefusedError("a stop string is empty", "stop")


def _between(name: str, value: float, least: float, most: float | None) -> None:
    # Written so that NaN is refused too.
    if not (value >= least and (most is None or value <= most)):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise RefusedError(f"{name} is {value}; it must be {limits}", name)
