"""Recompute a prompt or move it: between the card, the host's memory and a disk."""

from __future__ import annotations

from pageinn.catalogue.compute import prefill_attention_flops, rule_flops
from pageinn.catalogue.memory import sequence_bytes, token_bytes, weight_format
from pageinn.plan.figures import Figure
from pageinn.plan.inputs import Inputs

#: Lengths among which the break-even is looked for.
_LONGEST = 2**24


def prefill_seconds(asked: Inputs, tokens: int) -> float:
    """The linear layers, by the rule of two FLOPs per active parameter and token."""
    return rule_flops(asked.shape, tokens) / asked.line.flops


def attention_seconds(asked: Inputs, tokens: int) -> float:
    """Causal attention's own FLOPs."""
    return prefill_attention_flops(asked.shape, tokens) / asked.line.attention_flops


def transfer_figures(asked: Inputs) -> list[Figure]:
    """For one prompt: seconds to compute and to move it, and their ratio."""
    card, tokens = asked.accelerator, asked.moved
    size = sequence_bytes(asked.shape, tokens, asked.store, asked.tp)
    move = size / card.link
    linear, attention = prefill_seconds(asked, tokens), attention_seconds(asked, tokens)
    rate = asked.line.flops
    flops = rule_flops(asked.shape, tokens)
    pairs = prefill_attention_flops(asked.shape, tokens)
    peak = _peak(asked)
    return [
        Figure(
            "move",
            f"move {tokens:,} tokens one way",
            move,
            "seconds",
            f"{size:,.0f} bytes / {card.link / 1e9:g} GB/s",
            (f"{card.link_name}, one way, at its nominal rate; each accelerator over its own link",),
        ),
        Figure(
            "prefill",
            "compute them: linear layers",
            linear,
            "seconds",
            f"2 x {asked.shape.active_parameters:,} active parameters x {tokens} tokens = {flops:.4g} FLOPs, "
            f"/ {rate / 1e12:g} TFLOP/s in {weight_format(asked.weights).compute}",
            (peak, "the usual rule: the embedding counts as if it were multiplied"),
        ),
        Figure(
            "prefill_attention",
            "and causal attention",
            attention,
            "seconds",
            f"{pairs:.4g} FLOPs (each query with the keys it sees) / {asked.line.attention_flops / 1e12:g} TFLOP/s",
            (peak,),
        ),
        Figure("one_way", "recompute / move, one way", linear / move, "ratio", "linear layers / one way"),
        Figure("out_and_back", "recompute / move, out and back", linear / (2 * move), "ratio", "linear layers / both"),
        Figure(
            "memory_by_link",
            "card's memory / host link",
            card.bandwidth / card.link,
            "ratio",
            f"{card.bandwidth / 1e9:g} GB/s / {card.link / 1e9:g} GB/s",
        ),
        *tier_figures(asked),
    ]


def tier_figures(asked: Inputs) -> list[Figure]:
    """From how many tokens reading a prefix back beats computing it again."""
    found = [_tier(asked, "host", "the host's memory", asked.accelerator.link)]
    found.append(_tier(asked, "disk", "disk", min(asked.disk, asked.accelerator.link)))
    if asked.host is not None:
        token = token_bytes(asked.shape, asked.store, asked.tp)
        found.append(
            Figure(
                "host_tokens",
                "tokens that the host keeps",
                asked.host // token,
                "tokens",
                f"{asked.host:,} bytes / {token:,.0f} bytes per token",
            )
        )
    return found


def _tier(asked: Inputs, key: str, label: str, rate: float) -> Figure:
    tokens = break_even(asked, rate)
    return Figure(
        f"{key}_from",
        f"{label} beats recomputing from",
        tokens,
        "tokens",
        f"the smallest prefix whose bytes / {rate / 1e9:g} GB/s take less than its linear layers and attention",
        (_peak(asked), "the transfer is not overlapped with anything"),
    )


def break_even(asked: Inputs, rate: float) -> int | None:
    """The smallest prefix that is read faster than computed; None if none is.

    Bytes grow no faster than tokens and FLOPs no slower, so that once reading wins it keeps winning.
    """

    def wins(tokens: int) -> bool:
        read = sequence_bytes(asked.shape, tokens, asked.store, asked.tp) / rate
        return read < prefill_seconds(asked, tokens) + attention_seconds(asked, tokens)

    if not wins(_LONGEST):
        return None
    low, high = 0, _LONGEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if wins(middle) else (middle, high)
    return high


def _peak(asked: Inputs) -> str:
    if asked.flops_share == 1:
        return "at the card's peak, which no engine reaches (--flops-share takes what yours does)"
    return f"at {asked.flops_share:.0%} of the card's peak"
