"""What the fixes of a report are worth, by prices and a rate that the user gives: arithmetic on its hit rates."""

from __future__ import annotations

from typing import Any, NamedTuple

from pageinn.explain.replay import Rate
from pageinn.explain.report import Report
from pageinn.explain.text_report import wrapped


class Rates(NamedTuple):
    """price: of a million prompt tokens that are computed, cached_price: of a million that are read from the cache.

    prefill: tokens a second. None: not to be said.
    """

    price: float | None = None
    cached_price: float | None = None
    prefill: float | None = None


def worth(report: Report, rates: Rates) -> dict[str, Any]:
    """What all prompts of the log cost, and how long they are prefilled, as logged and with all findings fixed."""
    sides = {"as_logged": report.now, "fixed": report.fixed}
    return {
        "cost": None if rates.price is None else {name: _cost(rate, rates) for name, rate in sides.items()},
        "prefill_seconds": None
        if rates.prefill is None
        else {name: (rate.tokens - rate.in_blocks) / rates.prefill for name, rate in sides.items()},
    }


def worth_lines(report: Report, rates: Rates) -> list[str]:
    """The same in lines of at most 80 characters."""
    found = worth(report, rates)
    lines = []
    if found["cost"] is not None:
        cost = found["cost"]
        cached = _cached_price(rates)
        lines.append(
            f"At {rates.price:g} a million prompt tokens, and {cached:g} a million cached ones, the prompts cost "
            f"{cost['as_logged']:,.4g} as logged and {cost['fixed']:,.4g} with the findings fixed."
        )
    if found["prefill_seconds"] is not None:
        took, each = found["prefill_seconds"], max(report.requests, 1)
        lines.append(
            f"At {rates.prefill:,.0f} tokens/s, prefill takes {took['as_logged']:,.3g} s as logged "
            f"({took['as_logged'] / each:,.3g} s a request) and {took['fixed']:,.3g} s with the findings fixed "
            f"({took['fixed'] / each:,.3g} s)."
        )
    return [line for sentence in lines for line in wrapped(sentence, "", "  ")]


def _cost(rate: Rate, rates: Rates) -> float:
    computed = (rate.tokens - rate.in_blocks) * (rates.price or 0.0)
    return (computed + rate.in_blocks * _cached_price(rates)) / 1e6


def _cached_price(rates: Rates) -> float:
    return (rates.price or 0.0) if rates.cached_price is None else rates.cached_price
