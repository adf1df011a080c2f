"""A figure of the plan: its value, the formula with its numbers in it, and what was assumed."""

from __future__ import annotations

from typing import NamedTuple

GIB, MIB = 2**30, 2**20


class PlanError(ValueError):
    """What is asked cannot be planned; the message is one line that names the input and the way out."""


class Figure(NamedTuple):
    """key: its name for --explain and JSON, which does not change. value: None where there is none, and text says why.

    unit: "bytes", "seconds", "tokens", "users", "per second", "share", "ratio" or "count".
    """

    key: str
    label: str
    value: float | None
    unit: str
    formula: str
    assumptions: tuple[str, ...] = ()
    none: str = "never"

    @property
    def text(self) -> str:
        """The value for a person."""
        return self.none if self.value is None else show(self.value, self.unit)


def show(value: float, unit: str) -> str:
    """A value with its unit."""
    if unit == "bytes":
        return show_bytes(value)
    if unit == "seconds":
        return show_seconds(value)
    if unit == "share":
        return f"{100 * value:.1f} %"
    if unit == "ratio":
        return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
    if unit == "tokens" and value == 1:
        return "1 token"
    text = f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.1f}"
    return {"tokens": f"{text} tokens", "per second": f"{text} tokens/s"}.get(unit, text)


def show_bytes(value: float) -> str:
    """Binary units, and decimal ones beside them where the two differ visibly."""
    if value >= GIB / 10:
        return f"{value / GIB:,.4g} GiB ({value / 1e9:,.4g} GB)" if value < 1000 * GIB else f"{value / GIB:,.0f} GiB"
    if value >= MIB:
        return f"{value / MIB:.4g} MiB"
    return f"{value:,.0f} bytes"


def show_seconds(value: float) -> str:
    """Milliseconds up to ten seconds."""
    return f"{value * 1e3:,.1f} ms" if value < 10 else f"{value:,.1f} s"
