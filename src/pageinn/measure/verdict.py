"""What the figures mean, in plain words, against what such traffic usually shows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pageinn.measure.collect import Collected, Settings
from pageinn.measure.families import Cluster
from pageinn.measure.paths import per_request

TARGETS = ("ttft", "capacity", "latency")
#: What share of prompt tokens usually repeats in traffic of this kind, in words.
USUAL = {
    "few-shot": "about 95 %",
    "agent loop": "about 90 %",
    "chat": "over 90 % by turn 6 to 8",
    "coding": "high",
    "retrieval": "5 to 15 %",
}
_BANDS = {"few-shot": (0.9, 1.0), "agent loop": (0.8, 1.0), "coding": (0.8, 1.0), "retrieval": (0.05, 0.15)}


#: What more must repeat across tenants to be worth a sentence.
_WORTH_SHARING = 0.1


class Gains(NamedTuple):
    """What keeping everything that repeats would be worth, as factors (1.0 is nothing).

    ttft: mean prefill time before, through after. capacity: prompt tokens over those still computed. latency: mean
    seconds from arrival to the last token before, through after; None where answers are unknown.
    """

    ttft: float
    capacity: float
    latency: float | None


def gains(log: Collected, settings: Settings) -> Gains | None:
    """By the stated rates, nothing queued; the last token of a prompt is always computed."""
    paths = log.paths
    if paths is None or not paths.tokens.sum():
        return None
    repeated = np.minimum(per_request(paths, paths.segments.tokens), np.maximum(paths.tokens - 1, 0))
    before = paths.tokens.sum() / settings.prefill_rate
    after = (paths.tokens - repeated).sum() / settings.prefill_rate
    prefill = float(before / after)
    outputs = log.columns.outputs
    known = outputs >= 0
    latency = None
    if known.any():
        decode = outputs[known].sum() / settings.decode_rate
        first = paths.tokens[known].sum() / settings.prefill_rate
        then = (paths.tokens - repeated)[known].sum() / settings.prefill_rate
        latency = float((first + decode) / (then + decode))
    return Gains(prefill, prefill, latency)


def verdict(share: float | None, claimed: Gains | None, target: str, settings: Settings, counters: bool) -> list[str]:
    """Sentences. counters: whether an engine or a provider said something of its own cache."""
    if share is None and counters:
        return ["The log holds no prompts, so what could be reused is not known; what its engine counted is above."]
    if share is None or claimed is None:
        return ["The log says nothing of what its prompts hold, so nothing of reuse can be claimed."]
    return [_advice(share), _claim(claimed, target, settings)]


def between_tenants(share: float, together: float) -> list[str]:
    """A sentence where tenants that share nothing compute much of the same."""
    if together - share < _WORTH_SHARING:
        return []
    return [
        f"If tenants shared what is equal, it would be {100 * together:.1f} %: a head that all of them send belongs in "
        "a public prefix."
    ]


def _advice(share: float) -> str:
    percent = f"{100 * share:.1f} % of prompt tokens repeat an earlier prefix: "
    if share >= 0.8:
        return percent + "keeping prefixes is transformational."
    if share >= 0.4:
        return percent + "keeping prefixes is the biggest lever there is."
    if share >= 0.15:
        return percent + "keeping prefixes helps; explain what breaks them before buying memory."
    return percent + "spend the effort on the decode loop."


def _claim(claimed: Gains, target: str, settings: Settings) -> str:
    if target == "ttft":
        return f"Claimed: without queueing, the time to first token is divided by {claimed.ttft:.2f}."
    if target == "capacity":
        return f"Claimed: the same prefill serves {claimed.capacity:.2f} times as many prompt tokens."
    if claimed.latency is None:
        return "Nothing can be claimed of total latency: the log does not say how long answers are."
    saved = 100 * (1 - 1 / claimed.latency)
    return (
        f"Claimed: total latency falls by {saved:.1f} %, with prefill at {settings.prefill_rate:,.0f} tokens/s and "
        f"decoding at {settings.decode_rate:,.0f}."
    )


def beside_the_usual(cluster: Cluster) -> str:
    """One sentence on a cluster that has a name; "" for one that has none."""
    if not cluster.name:
        return ""
    share = cluster.repeated / cluster.tokens if cluster.tokens else 0.0
    band = _BANDS.get(cluster.name)
    if cluster.name == "chat" and cluster.turns >= 6:
        band = (0.8, 1.0)
    if band is None:
        return f"usual for {cluster.name}: {USUAL[cluster.name]}"
    low, high = band
    where = "as usual" if low <= share <= high else "below the usual" if share < low else "above the usual"
    return f"{where} for {cluster.name} ({USUAL[cluster.name]})"
