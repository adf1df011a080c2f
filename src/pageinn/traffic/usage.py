"""What providers say of their caches, brought to one meaning.

OpenAI's prompt_tokens include the cached ones; Anthropic's input_tokens do not.
"""

from __future__ import annotations

from typing import Any

from pageinn.traffic.fields import count_of
from pageinn.traffic.record import Reported


def reported(usage: Any) -> Reported | None:
    """What a `usage` object says; None where it says nothing of a cache. Raises BadRowError for a malformed count."""
    if not isinstance(usage, dict):
        return None
    if "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage:
        return _anthropic(usage)
    total = usage.get("prompt_tokens", usage.get("input_tokens"))
    if total is None:
        return None
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else usage.get("prompt_cache_hit_tokens")
    if cached is None:
        return None
    return Reported(count_of(total, "prompt_tokens"), count_of(cached, "cached_tokens"), 0)


def _anthropic(usage: dict[str, Any]) -> Reported:
    read = count_of(usage.get("cache_read_input_tokens") or 0, "cache_read_input_tokens")
    written = count_of(usage.get("cache_creation_input_tokens") or 0, "cache_creation_input_tokens")
    if "prompt_tokens" in usage:
        # A proxy that speaks OpenAI's words and keeps Anthropic's beside them: its total has the cached ones in it.
        return Reported(count_of(usage["prompt_tokens"], "prompt_tokens"), read, written)
    return Reported(count_of(usage.get("input_tokens") or 0, "input_tokens") + read + written, read, written)


def output_tokens(usage: Any) -> int | None:
    """How many tokens the answer had, where `usage` says so."""
    if not isinstance(usage, dict):
        return None
    value = usage.get("completion_tokens", usage.get("output_tokens"))
    return None if value is None else count_of(value, "completion_tokens")
