"""The alarms as Prometheus alert rules, in the engine's own metric names."""

from __future__ import annotations

from typing import Any, NamedTuple

import yaml

from pageinn.watch import alarms


class TenantNames(NamedTuple):
    """Counters with the label tenant, and blocks that also have the label state: in_use or kept."""

    queries: str
    hits: str
    evicted: str
    preemptions: str
    blocks: str


class Names(NamedTuple):
    """An engine's metrics as PromQL selectors; None for what it does not have.

    hit_rate: the engine's own gauge of it. requests: a counter of answered ones. short: of those below the granularity.
    by_way: preemptions, with the label way. blocks: all of the cache. by_tenant: the same by the label tenant.
    """

    queries: str | None
    hits: str | None
    hit_rate: str | None
    preemptions: str | None
    requests: str | None
    usage: str | None
    waiting: str
    running: str
    prompt_tokens: str | None
    generated: str
    recomputed: str | None
    computed: str | None
    short: str | None
    refused: str | None
    first_token: str | None
    thrashing: str | None = None
    by_way: str | None = None
    blocks: str | None = None
    by_tenant: TenantNames | None = None


NAMES = {
    "pageinn": Names(
        queries="pageinn:prefix_cache_queries_total",
        hits="pageinn:prefix_cache_hits_total",
        hit_rate=None,
        preemptions="pageinn:num_preemptions_total",
        requests="pageinn:time_to_first_token_seconds_count",
        usage="pageinn:kv_cache_usage_perc",
        waiting="pageinn:num_requests_waiting",
        running="pageinn:num_requests_running",
        prompt_tokens="pageinn:prompt_tokens_total",
        generated="pageinn:generation_tokens_total",
        recomputed="pageinn:recomputed_tokens_total",
        computed="pageinn:prompt_tokens_computed_total",
        short="pageinn:prefix_cache_below_granularity_total",
        refused="pageinn:requests_refused_total",
        first_token="pageinn:time_to_first_token_seconds",
        thrashing="pageinn:thrashing",
        by_way="pageinn:preemptions_by_way_total",
        blocks="pageinn:kv_blocks",
        by_tenant=TenantNames(
            queries="pageinn:tenant_prefix_cache_queries_total",
            hits="pageinn:tenant_prefix_cache_hits_total",
            evicted="pageinn:tenant_evicted_blocks_total",
            preemptions="pageinn:tenant_num_preemptions_total",
            blocks="pageinn:tenant_kv_blocks",
        ),
    ),
    "vllm": Names(
        queries="vllm:prefix_cache_queries_total",
        hits="vllm:prefix_cache_hits_total",
        hit_rate=None,
        preemptions="vllm:num_preemptions_total",
        requests="vllm:request_success_total",
        usage="vllm:kv_cache_usage_perc",
        waiting="vllm:num_requests_waiting",
        running="vllm:num_requests_running",
        prompt_tokens="vllm:prompt_tokens_total",
        generated="vllm:generation_tokens_total",
        recomputed=None,
        computed=None,
        short=None,
        refused='vllm:request_success_total{finished_reason=~"abort|error"}',
        first_token="vllm:time_to_first_token_seconds",
    ),
    "sglang": Names(
        queries="sglang:prompt_tokens_total",
        hits="sglang:cached_tokens_total",
        hit_rate="sglang:cache_hit_rate",
        preemptions="sglang:num_retracted_requests_total",
        requests="sglang:num_requests_total",
        usage="sglang:token_usage",
        waiting="sglang:num_queue_reqs",
        running="sglang:num_running_reqs",
        prompt_tokens="sglang:prompt_tokens_total",
        generated="sglang:generation_tokens_total",
        recomputed=None,
        computed=None,
        short=None,
        refused="sglang:num_aborted_requests_total",
        first_token="sglang:time_to_first_token_seconds",
    ),
    "llamacpp": Names(
        queries=None,
        hits=None,
        hit_rate=None,
        preemptions=None,
        requests=None,
        usage=None,
        waiting="llamacpp:requests_deferred",
        running="llamacpp:requests_processing",
        prompt_tokens="llamacpp:prompt_tokens_total",
        generated="llamacpp:tokens_predicted_total",
        recomputed=None,
        computed=None,
        short=None,
        refused=None,
        first_token=None,
    ),
}
#: Prompt tokens per second below which a hit rate is noise.
_TRAFFIC = 10


def rules_text(engine: str) -> str:
    """A rules file for Prometheus."""
    groups = {"groups": [{"name": f"pageinn-watch-{engine}", "rules": rules(engine)}]}
    head = f"# Alert rules for {engine}'s metrics, written by `pageinn watch --emit prometheus`.\n"
    text: str = yaml.dump(groups, Dumper=_Readable, sort_keys=False, width=110, allow_unicode=True)
    return head + text


class _Readable(yaml.SafeDumper):  # type: ignore[misc]
    """Writes PromQL as a block of lines, as people do."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _text)


def rules(engine: str) -> list[dict[str, Any]]:
    """The alert rules; an engine has those that its metrics allow."""
    names = NAMES[engine]
    found = [
        _hit_rate(names),
        _preemptions(names),
        _thrash(names),
        _short(names),
        _refusals(names),
        _queue(names),
    ]
    return [rule for rule in found if rule is not None]


def hit_rate(names: Names, window: str, offset: str = "") -> str:
    """PromQL of the hit rate per server over a window."""
    back = f" offset {offset}" if offset else ""
    return f"{_by(f'rate({names.hits}[{window}]{back})')} / {_by(f'rate({names.queries}[{window}]{back})')}"


def _by(expression: str) -> str:
    return f"sum by (job, instance) ({expression})"


def _increase(selector: str | None) -> str:
    return _by(f"increase({selector}[{alarms.EVENTS:.0f}s])")


def _hit_rate(names: Names) -> dict[str, Any] | None:
    if names.hits is None or names.queries is None:
        return None
    now, before = hit_rate(names, "1m"), hit_rate(names, "1h", "5m")
    expression = (
        f"({now})\n  < {alarms.FALLEN} * ({before})\n"
        f"and ({now})\n  < ({before}) - {alarms.POINTS}\n"
        f"and {_by(f'rate({names.queries}[1m])')} > {_TRAFFIC}"
    )
    return _rule(
        "PrefixCacheHitRateFallen",
        expression,
        "15s",
        "hit rate {{ $value | humanizePercentage }}, far below the hour before",
        "Something variable may head the prompts, or a deploy changed them. Compare: "
        "pageinn explain --before OLD.jsonl --after NEW.jsonl",
    )


def _preemptions(names: Names) -> dict[str, Any] | None:
    if names.preemptions is None:
        return None
    count = _increase(names.preemptions)
    return _rule(
        "Preemptions",
        f"{count} >= {alarms.PREEMPTIONS}\nand {count} >= {alarms.PREEMPTED} * {_increase(names.requests)}",
        "1m",
        "{{ $value | humanize }} preemptions in five minutes",
        "Admit fewer at once, or give the cache more memory (fp8, a larger share).",
    )


def _thrash(names: Names) -> dict[str, Any] | None:
    if names.preemptions is None or names.usage is None:
        return None
    full = f"max by (job, instance) (max_over_time({names.usage}[{alarms.EVENTS:.0f}s])) >= {alarms.FULL}"
    count = _increase(names.preemptions)
    ways = [
        f"{count} >= {alarms.PREEMPTIONS} and {count} >= {alarms.PER_REQUEST} * {_increase(names.requests)} and {full}"
    ]
    if names.recomputed is not None:
        again = _increase(names.recomputed)
        both = f"({_increase(names.computed)} + {again})"
        ways.append(f"{again} > {alarms.AGAIN} * {both} and {full}")
    if names.thrashing is not None:
        ways.append(f"max by (job, instance) ({names.thrashing}) > 0")
    return _rule(
        "CacheThrash",
        "\nor ".join(f"({way})" for way in ways),
        "1m",
        "work is thrown away as fast as it is done",
        "Halve the sequences at once until it stops, then plan: pageinn plan.",
    )


def _short(names: Names) -> dict[str, Any] | None:
    if names.short is None:
        return None
    short, requests = _increase(names.short), _increase(names.requests)
    return _rule(
        "ReuseBelowGranularity",
        f"{short} >= {alarms.SHORT} * {requests}\nand {requests} >= {alarms.SHORT_OF}",
        "5m",
        "most requests are shorter than one block",
        "Not a broken cache: prompts this short have nothing to share. Check --block-size.",
        severity="info",
    )


def _refusals(names: Names) -> dict[str, Any] | None:
    if names.refused is None:
        return None
    count = _increase(names.refused)
    return _rule(
        "RequestsRefused",
        f"{count} >= {alarms.REFUSALS}\nand {count} >= {alarms.REFUSED} * ({_increase(names.requests)} + {count})",
        "1m",
        "{{ $value | humanize }} requests refused or failed in five minutes",
        "Add capacity or lower the load; pageinn plan says how many fit.",
    )


def _queue(names: Names) -> dict[str, Any]:
    return _rule(
        "RequestsWaiting",
        f"min_over_time({names.waiting}[5m]) > 0",
        "5m",
        "requests have been waiting for ten minutes without a pause",
        "The server is full: add capacity, or see with pageinn plan what fp8 and sharing would fit.",
        severity="info",
    )


def _rule(
    name: str, expression: str, lasting: str, summary: str, description: str, severity: str = "warning"
) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expression,
        "for": lasting,
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "description": description},
    }
