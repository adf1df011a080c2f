"""The engines' own names for what a sample holds.

Where a name changed between versions, all are listed, the newest first. SGLang calls a preemption a retraction.
"""

from __future__ import annotations

from collections.abc import Callable

from pageinn.watch.exposition import Exposition, ScrapeError
from pageinn.watch.sample import Sample

#: Reasons that an engine gives for an answer that was not one.
_FAILED = ("abort", "error", "refused")


def sample_of(got: Exposition, time: float) -> Sample:
    """What this exposition says. Raises ScrapeError if no engine is recognised by its names."""
    engine = engine_of(got)
    return _READERS[engine](got, time)


def engine_of(got: Exposition) -> str:
    """Which engine these metrics are of. Raises ScrapeError for none that is known."""
    for engine in _READERS:
        if any(name.startswith(engine + ":") for name in got.samples):
            return engine
    raise ScrapeError("its metrics are of no engine that is known (pageinn, vLLM, SGLang, llama-server)")


def _pageinn(got: Exposition, time: float) -> Sample:
    blocks = got.by("state", "pageinn:kv_blocks")
    total = sum(blocks.values())
    facts = got.labels("pageinn:cache_config_info")
    size = _number(facts.get("block_size"))
    evicted = got.total("pageinn:evicted_blocks_total")
    return Sample(
        engine="pageinn",
        time=time,
        queries=got.total("pageinn:prefix_cache_queries_total"),
        hits=got.total("pageinn:prefix_cache_hits_total"),
        prompt_tokens=got.total("pageinn:prompt_tokens_total"),
        computed=got.total("pageinn:prompt_tokens_computed_total"),
        recomputed=got.total("pageinn:recomputed_tokens_total"),
        generated=got.total("pageinn:generation_tokens_total"),
        evicted=None if evicted is None or size is None else evicted * size,
        preemptions=got.total("pageinn:num_preemptions_total"),
        requests=got.total("pageinn:time_to_first_token_seconds_count"),
        below_granularity=got.total("pageinn:prefix_cache_below_granularity_total"),
        refused=got.by("reason", "pageinn:requests_refused_total"),
        usage=got.greatest("pageinn:kv_cache_usage_perc"),
        kept=blocks.get("kept", 0.0) / total if total else None,
        running=got.total("pageinn:num_requests_running"),
        waiting=got.total("pageinn:num_requests_waiting"),
        thrashing=got.greatest("pageinn:thrashing"),
        first_token=got.total("pageinn:time_to_first_token_seconds_sum"),
        first_tokens=got.total("pageinn:time_to_first_token_seconds_count"),
        buckets=got.buckets("pageinn:time_to_first_token_seconds"),
        facts=facts,
    )


def _vllm(got: Exposition, time: float) -> Sample:
    finished = got.by("finished_reason", "vllm:request_success_total")
    sources = got.by("source", "vllm:prompt_tokens_by_source_total")
    return Sample(
        engine="vllm",
        time=time,
        queries=got.total("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
        hits=got.total("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
        hit_rate=got.greatest("vllm:gpu_prefix_cache_hit_rate"),
        prompt_tokens=got.total("vllm:prompt_tokens_total"),
        computed=sources.get("local_compute"),
        recomputed=got.total("vllm:prompt_tokens_recomputed_total"),
        generated=got.total("vllm:generation_tokens_total"),
        preemptions=got.total("vllm:num_preemptions_total"),
        requests=sum(finished.values()) if finished else None,
        refused={reason: count for reason, count in finished.items() if reason in _FAILED},
        usage=got.greatest("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        running=got.total("vllm:num_requests_running"),
        waiting=got.total("vllm:num_requests_waiting"),
        first_token=got.total("vllm:time_to_first_token_seconds_sum"),
        first_tokens=got.total("vllm:time_to_first_token_seconds_count"),
        buckets=got.buckets("vllm:time_to_first_token_seconds"),
        facts=got.labels("vllm:cache_config_info"),
    )


def _sglang(got: Exposition, time: float) -> Sample:
    cached = got.total("sglang:cached_tokens_total")
    prompts = got.total("sglang:prompt_tokens_total")
    aborted = got.total("sglang:num_aborted_requests_total")
    capacity = got.greatest("sglang:max_total_num_tokens")
    kept = got.greatest("sglang:kv_evictable_tokens")
    used, usage = got.greatest("sglang:num_used_tokens"), got.greatest("sglang:token_usage")
    if capacity is None and used and usage:
        capacity = used / usage
    return Sample(
        engine="sglang",
        time=time,
        queries=None if cached is None else prompts,
        hits=cached,
        hit_rate=got.greatest("sglang:cache_hit_rate"),
        prompt_tokens=prompts,
        computed=None if cached is None or prompts is None else prompts - cached,
        generated=got.total("sglang:generation_tokens_total"),
        evicted=got.total("sglang:evicted_tokens_total"),
        preemptions=got.greatest("sglang:num_retracted_requests_total"),
        requests=got.total("sglang:num_requests_total", "sglang:e2e_request_latency_seconds_count"),
        refused={} if aborted is None else {"abort": aborted},
        usage=usage,
        kept=None if kept is None or not capacity else kept / capacity,
        running=got.total("sglang:num_running_reqs"),
        waiting=got.total("sglang:num_queue_reqs"),
        first_token=got.total("sglang:time_to_first_token_seconds_sum"),
        first_tokens=got.total("sglang:time_to_first_token_seconds_count"),
        buckets=got.buckets("sglang:time_to_first_token_seconds"),
        facts={**got.labels("sglang:cache_config_info"), **({"tokens": f"{capacity:.0f}"} if capacity else {})},
    )


def _llamacpp(got: Exposition, time: float) -> Sample:
    """llama-server counts the prompt tokens it computed, and neither hits nor requests."""
    return Sample(
        engine="llamacpp",
        time=time,
        computed=got.total("llamacpp:prompt_tokens_total"),
        generated=got.total("llamacpp:tokens_predicted_total"),
        usage=got.greatest("llamacpp:kv_cache_usage_ratio"),
        running=got.total("llamacpp:requests_processing"),
        waiting=got.total("llamacpp:requests_deferred"),
    )


_READERS: dict[str, Callable[[Exposition, float], Sample]] = {
    "pageinn": _pageinn,
    "vllm": _vllm,
    "sglang": _sglang,
    "llamacpp": _llamacpp,
}
#: As people call them.
TITLES = {"pageinn": "pageinn", "vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama-server"}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
