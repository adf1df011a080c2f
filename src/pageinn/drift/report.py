"""What a comparison found, for a person and for a program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

from pageinn.drift.forced import Trace
from pageinn.drift.free import Parting
from pageinn.drift.trend import Bucket, Kind, Trend, Verdict, buckets, trend, verdict


class Subject(NamedTuple):
    """What was compared. texts: how many; longest: tokens of the longest; calls: of the reference's own answers."""

    model: str
    weights: str
    reference: str
    texts: int
    longest: int
    answer_tokens: int
    calls: int
    interrupted: bool


class Found(NamedTuple):
    """One dtype's share. capacity: tokens in the same bytes, bfloat16 being 1. partings: one per prompt, or None."""

    dtype: str
    capacity: float
    positions: int
    kl: float
    gain: float
    agreement: float
    saturated: int
    buckets: list[Bucket]
    trend: Trend | None
    verdict: Verdict
    partings: list[Parting] | None


def found(dtype: str, capacity: float, trace: Trace, partings: list[Parting] | None) -> Found:
    """Summarise a trace."""
    curve = trend(trace)
    return Found(
        dtype=dtype,
        capacity=capacity,
        positions=len(trace.kl),
        kl=float(trace.kl.mean()),
        gain=float(trace.gain.mean()),
        agreement=float(trace.agree.mean()),
        saturated=trace.saturated,
        buckets=buckets(trace),
        trend=curve,
        verdict=verdict(trace, curve),
        partings=partings,
    )


def as_text(subject: Subject, rows: Sequence[Found]) -> str:
    """Tables of at most 80 columns."""
    of = "a text" if subject.texts == 1 else f"{subject.texts} texts"
    lines = [f"{subject.model}, {subject.weights} weights, against a cache in {subject.reference}"]
    lines += [f"{rows[0].positions:,} positions of {of} of up to {subject.longest:,} tokens"]
    lines += ["cut short: what follows is what there was until then"] if subject.interrupted else []
    tables: list[tuple[str, Callable[[Bucket | Found], str]]] = [
        ("KL divergence, nats", lambda each: f"{each.kl:.2e}"),
        ("log-likelihood, nats", lambda each: f"{each.gain:+.4f}"),
        ("same first choice, %", lambda each: f"{100 * each.agreement:.1f}"),
    ]
    for title, show in tables:
        lines += ["", *_table(title, show, rows)]
    lines += ["", f"{'':10}{'tokens in':>10}{'KL, for each doubling':>26}{'saturated':>11}"]
    lines += [f"{'dtype':10}{'the same':>10}{'of the position (95 %)':>26}{'values':>11}"]
    for row in rows:
        lines.append(f"{row.dtype:10}{row.capacity:>9.3f}x{_show_trend(row.trend):>26}{row.saturated:>11}")
    lines += ["", "Verdict", *(f"{row.dtype:10}{row.verdict.words}" for row in rows)]
    if any(row.partings for row in rows):
        lines += ["", *_free(subject, rows)]
    return "\n".join(lines)


def _table(title: str, show: Callable[[Bucket | Found], str], rows: Sequence[Found]) -> list[str]:
    lines = [f"{title:20}" + "".join(f"{row.dtype:>10}" for row in rows)]
    for number, bucket in enumerate(rows[0].buckets):
        label = f"{bucket.begin:,} to {bucket.end - 1:,}"
        lines.append(f"{label:20}" + "".join(f"{show(row.buckets[number]):>10}" for row in rows))
    return [*lines, f"{'all':20}" + "".join(f"{show(row):>10}" for row in rows)]


def _show_trend(curve: Trend | None) -> str:
    return "-" if curve is None else f"x {curve.per_doubling:.3f} [{curve.low:.3f}, {curve.high:.3f}]"


def _free(subject: Subject, rows: Sequence[Found]) -> list[str]:
    lines = [
        f"Greedy answers of up to {subject.answer_tokens} tokens",
        f"{'dtype':10}{'same':>12}{'part after, median':>22}{'tool calls that parse':>25}",
        f"{subject.reference:10}{'':>12}{'':>22}{subject.calls:>25}",
    ]
    for row in rows:
        if row.partings is None:
            lines.append(f"{row.dtype:10}{'not run':>12}")
            continue
        parted = [each.at for each in row.partings if each.at is not None]
        same = f"{len(row.partings) - len(parted)} of {len(row.partings)}"
        after = f"{median(parted):.0f} tokens" if parted else "-"
        lines.append(f"{row.dtype:10}{same:>12}{after:>22}{sum(each.calls for each in row.partings):>25}")
    return lines


def as_json(subject: Subject, rows: Sequence[Found]) -> dict[str, Any]:
    """For programs; docs/quantised-cache.md says what the fields mean. Infinite numbers are null."""
    return {**subject._asdict(), "dtypes": [_row_json(row) for row in rows]}


def _row_json(row: Found) -> dict[str, Any]:
    return {
        **{name: _number(getattr(row, name)) for name in ("dtype", "capacity", "positions", "kl", "gain", "agreement")},
        "saturated": row.saturated,
        "buckets": [{name: _number(value) for name, value in each._asdict().items()} for each in row.buckets],
        "trend": None if row.trend is None else row.trend._asdict(),
        "verdict": {"kind": row.verdict.kind.value, "position": row.verdict.position, "words": row.verdict.words},
        "answers": None if row.partings is None else [each._asdict() for each in row.partings],
    }


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def fails(rows: Sequence[Found], limit: Kind | None) -> bool:
    """Whether a verdict is as bad as `limit`, or worse. What is too short to tell has not been shown to be better."""
    kinds = list(Kind)
    return limit is not None and any(
        row.verdict.kind is Kind.TOO_SHORT or kinds.index(row.verdict.kind) >= kinds.index(limit) for row in rows
    )
