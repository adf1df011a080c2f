"""Seven questions to a server's cache: each answered yes, no or not known, with the figure and what to do next."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from pageinn.watch.engines import TITLES
from pageinn.watch.sample import Sample
from pageinn.watch.view import plain
from pageinn.watch.windows import Window

WIDTH = 80
YES, NO, UNKNOWN = "yes", "no", "not known"
#: Below this part of the cache in use, with nobody waiting, memory is not what limits a server.
ROOMY = 0.7
#: A hit rate below this, on prompts longer than this many tokens, is worth a look at the prompts.
LOW, LONG = 0.3, 200


class Answer(NamedTuple):
    """key: users, repeats, keeping, variable, fp8, preemption or tenants. next: what to do."""

    key: str
    question: str
    answer: str
    figure: str
    next: str


class Heard(NamedTuple):
    """What a log of the traffic says.

    requests: measured. repeated: share of their prompt tokens that repeat an earlier prefix, None if that is not known.
    findings: what is variable and costs reuse, costliest first; None where no prompt is known as text. fixed: the hit
    rate with all of it fixed.
    """

    requests: int
    repeated: float | None
    findings: tuple[str, ...] | None
    fixed: float | None


def checkup(samples: Sequence[Sample], log: Heard | None, keys: bool | None) -> list[Answer]:
    """samples: at least one, oldest first. keys: whether the server asks for a key, None if that is not known."""
    sample, recent = samples[-1], Window(samples)
    return [
        _users(sample),
        _repeats(sample, log),
        _keeping(sample, recent),
        _variable(sample, log),
        _fp8(sample),
        _preemption(sample),
        _tenants(sample, keys),
    ]


def capacity(sample: Sample) -> int | None:
    """Tokens that the cache holds."""
    facts = sample.facts
    if "tokens" in facts:
        return _whole(facts["tokens"])
    blocks = _whole(facts.get("num_blocks", facts.get("num_gpu_blocks", facts.get("num_pages", ""))))
    size = _whole(facts.get("block_size", facts.get("page_size", "")))
    return None if blocks is None or size is None else blocks * size


def mean_length(sample: Sample) -> float | None:
    """Tokens of prompt and answer together, over all requests so far."""
    if not sample.requests or sample.prompt_tokens is None or sample.generated is None:
        return None
    return (sample.prompt_tokens + sample.generated) / sample.requests


def fitting(sample: Sample) -> int | None:
    """Sequences of the mean length that fit."""
    tokens, mean = capacity(sample), mean_length(sample)
    return None if tokens is None or not mean else int(tokens // mean)


def lifetime_rate(sample: Sample) -> float | None:
    """Hits by queries since the start; None without queries."""
    if sample.queries is None or sample.hits is None:
        return sample.hit_rate
    return sample.hits / sample.queries if sample.queries else None


def _users(sample: Sample) -> Answer:
    question = "How many users fit on this card?"
    users, tokens, mean = fitting(sample), capacity(sample), mean_length(sample)
    if users is not None and mean is not None:
        now = f"; {sample.running or 0:.0f} are running and {sample.waiting or 0:.0f} waiting"
        figure = f"{users:,} at a mean of {mean:,.0f} tokens, in {tokens:,} tokens of cache{now}"
        return Answer("users", question, YES, figure, "pageinn plan MODEL CARD says what each lever would add")
    missing = "no request was answered yet" if tokens is not None else "the engine does not say how large its cache is"
    held = f"{tokens:,} tokens of cache; " if tokens is not None else ""
    return Answer("users", question, UNKNOWN, held + missing, "pageinn plan MODEL CARD --mean TOKENS works it out")


def _repeats(sample: Sample, log: Heard | None) -> Answer:
    question = "What share of a prompt repeats, and has anyone measured it?"
    if log is not None and log.repeated is not None:
        figure = f"{_percent(log.repeated)} of the prompt tokens of {log.requests:,} logged requests repeat a prefix"
        found = lifetime_rate(sample)
        beside = "" if found is None else f"; the server found {_percent(found)}"
        return Answer("repeats", question, YES, figure + beside, _gap(log.repeated, found))
    if log is not None:
        figure = f"the log's {log.requests:,} requests are known by length only"
        return Answer("repeats", question, UNKNOWN, figure, "log the prompts' text, or ids of their blocks")
    found = lifetime_rate(sample)
    figure = "nothing is known yet"
    if found is not None:
        figure = f"only a hit rate of {_percent(found)}, which says what was found and not what there was"
    return Answer("repeats", question, NO, figure, "pageinn measure LOG, or run this again with --log LOG")


def _gap(repeated: float, found: float | None) -> str:
    if found is None:
        return "send the traffic, then compare with what the server finds"
    if repeated - found < 0.1:
        return "nothing: the server finds what there is"
    return "the rest is lost: pageinn simulate says at which cache size it is found, pageinn explain why it misses"


def _keeping(sample: Sample, recent: Window) -> Answer:
    question = "Is keeping on, and what is the hit rate?"
    said = sample.facts.get("prefix_cache", sample.facts.get("enable_prefix_caching", "")).lower()
    rate, now = lifetime_rate(sample), recent.hit_rate
    since = "since the start" if sample.queries is not None else "by the engine's own gauge"
    figure = "no queries yet: no rate" if rate is None else f"hit rate {_percent(rate)} {since}"
    if now is not None:
        figure += f", {_percent(now)} in the last {recent.seconds:.0f} s"
    if said in ("false", "off"):
        way = "--prefix-cache keep" if sample.engine == "pageinn" else "--enable-prefix-caching"
        return Answer("keeping", question, NO, figure, f"turn it on: {way}")
    if said == "live":
        return Answer("keeping", question, NO, f"only while requests run; {figure}", "--prefix-cache keep")
    if said in ("true", "keep") or rate:
        return Answer("keeping", question, YES, figure, "pageinn watch raises an alarm when it falls")
    if sample.queries is None and sample.hit_rate is None:
        figure = f"{TITLES[sample.engine]} does not count hits"
    return Answer("keeping", question, UNKNOWN, figure, "send one prompt twice and look at usage's cached tokens")


def _variable(sample: Sample, log: Heard | None) -> Answer:
    question = "Is anything variable near the start of the prompt?"
    if log is not None and log.findings is not None:
        if not log.findings:
            figure = f"nothing in {log.requests:,} logged requests costs reuse"
            return Answer("variable", question, NO, figure, "keep it so: pageinn explain --fail-under in CI")
        fixed = "" if log.fixed is None else f"; with it fixed the hit rate would be {_percent(log.fixed)}"
        figure = "; ".join(log.findings[:3]) + fixed
        return Answer("variable", question, YES, figure, "pageinn explain LOG names the places and the fixes")
    rate, requests = lifetime_rate(sample), sample.requests
    figure = "a server's metrics do not show prompts"
    if rate is not None and requests and sample.prompt_tokens and sample.prompt_tokens / requests > LONG and rate < LOW:
        figure += f"; {_percent(rate)} of prompts of {sample.prompt_tokens / requests:,.0f} tokens would fit a yes"
    return Answer("variable", question, UNKNOWN, figure, "pageinn explain LOG, or run this again with --log LOG")


def _fp8(sample: Sample) -> Answer:
    question = "Is the cache in fp8, and if not, why not?"
    dtype = sample.facts.get("cache_dtype", sample.facts.get("kv_cache_dtype", ""))
    if dtype.startswith(("fp8", "int8")):
        return Answer("fp8", question, YES, f"cache in {dtype}", "pageinn drift says whether long answers suffer")
    users = fitting(sample)
    doubled = "" if users is None else f": {users:,} users would become about {2 * users:,}"
    usage, waiting = sample.usage, sample.waiting or 0
    held = "" if usage is None else f"{_percent(usage)} in use, {waiting:.0f} waiting"
    if sample.preemptions or (usage is not None and usage >= ROOMY):
        advice = f"it would double what fits{doubled}; test with pageinn drift, then --kv-cache-dtype fp8"
    elif usage is not None and waiting:
        advice = "no need now: requests wait with room in the cache, so that something else limits it (--max-num-seqs)"
    else:
        advice = "no need now: memory is not what limits it"
    if not dtype:
        figure = "the metrics do not say the cache's dtype" + (f"; {held}" if held else "")
        return Answer("fp8", question, UNKNOWN, figure, f"look at --kv-cache-dtype. If it is auto, {advice}")
    model = " (the model's own)" if dtype == "auto" else ""
    return Answer("fp8", question, NO, f"cache in {dtype}{model}" + (f", {held}" if held else ""), advice)


def _preemption(sample: Sample) -> Answer:
    question = "Is preemption monitored, or only latency?"
    if sample.preemptions is None:
        figure = f"{TITLES[sample.engine]} shows no count of it here"
        known = UNKNOWN if sample.engine == "sglang" else NO
        way = "SGLang's counter appears with the first retraction" if known == UNKNOWN else "watch waiting and usage"
        return Answer("preemption", question, known, figure, way)
    share = f", {_percent(sample.preemptions / sample.requests)} of requests" if sample.requests else ""
    figure = f"counted: {sample.preemptions:,.0f} since the start{share}; who is told, a server does not know"
    return Answer("preemption", question, YES, figure, "pageinn watch --emit prometheus writes the alert")


def _tenants(sample: Sample, keys: bool | None) -> Answer:
    question = "Is the cache keyed per tenant?"
    if sample.engine == "pageinn":
        if keys is None:
            figure = "the server did not say whether it asks for a key"
            return Answer("tenants", question, UNKNOWN, figure, "look whether it was started with --api-keys")
        if keys:
            return Answer("tenants", question, YES, "by the authenticated key", "public prefixes are read by all")
        figure = "everybody is one tenant: the server asks for no key"
        return Answer("tenants", question, NO, figure, "--api-keys FILE, if callers should not share a cache")
    figure = f"{TITLES[sample.engine]} shares one cache among all callers"
    if sample.engine == "llamacpp":
        return Answer("tenants", question, NO, figure, "one server per tenant, if that matters")
    figure += ", unless every request carries a salt of its own"
    return Answer("tenants", question, NO, figure, "have the gateway set cache_salt from the caller's identity")


def as_text(answers: Sequence[Answer], url: str, engine: str) -> str:
    """The answers in 80 columns."""
    lines = [f"{TITLES[engine]} at {plain(url)}"[:WIDTH]]
    for number, answer in enumerate(answers, 1):
        lines += ["", f"{number} {answer.question}"]
        lines += _wrap(answer.figure, f"  {answer.answer:<11}")
        lines += _wrap(answer.next, f"  {'next':<11}")
    return "\n".join(lines)


def _wrap(text: str, head: str) -> list[str]:
    return textwrap.wrap(
        plain(text), WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False
    )


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
