"""Figures of a sweep for people, 80 columns wide, and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pageinn.simulate.rules import Reuse
from pageinn.simulate.sweep import Figures, Quantiles

#: Longer names of rows are numbered.
_NAME_WIDTH = 16
CACHE_HEADINGS = ["hits", "active", "kept", "preempted", "moved", "tok/s", "goodput"]
LATENCY_HEADINGS = ["first p50", "p95", "p99", "between p50", "p95", "p99"]


class Row(NamedTuple):
    """One combination of settings. labels: setting to value, as shown. reuse: where only a rule was applied."""

    labels: dict[str, str]
    figures: Figures | None
    reuse: Reuse | None


def as_text(rows: Sequence[Row], about: Sequence[str], goal: str) -> str:
    """What was simulated, what was assumed, and the figures in tables."""
    varied, fixed = varied_and_fixed(rows)
    lines = [*about, *([f"settings: {', '.join(f'{name} {value}' for name, value in fixed.items())}"] if fixed else [])]
    names = _names(rows, varied)
    if names.legend:
        lines += ["", *names.legend]
    simulated = [row for row in rows if row.figures is not None]
    if simulated:
        lines += ["", *_cache_table(rows, names, goal), "", *_latency_table(rows, names)]
    if len(simulated) < len(rows):
        lines += ["", *_reuse_table(rows, names)]
    return "\n".join(wrapped for line in lines for wrapped in _wrap(line))


def as_json(rows: Sequence[Row], about: Sequence[str]) -> dict[str, Any]:
    """The same for programs; the keys are documented in docs/simulate.md."""
    return {"about": list(about), "rows": [{"settings": row.labels, **_figures(row)} for row in rows]}


def _figures(row: Row) -> dict[str, Any]:
    if row.figures is None:
        assert row.reuse is not None
        return {
            "prompt_tokens": row.reuse.prompt_tokens,
            "cached_tokens": row.reuse.cached_tokens,
            "hit_rate": row.reuse.hit_rate,
        }
    figures = row.figures
    return {
        "served": figures.served,
        "refused": figures.refused,
        "hit_rate": figures.hit_rate,
        "time_to_first_token": _named(figures.first),
        "time_between_tokens": _named(figures.between),
        "preemptions": figures.preemptions,
        "moved_bytes": figures.moved_bytes,
        "goodput": figures.goodput,
        "throughput": figures.throughput,
        "active_share": figures.active,
        "kept_share": figures.kept,
        "seconds": figures.seconds,
    }


def _named(quantiles: Quantiles | None) -> dict[str, float] | None:
    return None if quantiles is None else quantiles._asdict()


def varied_and_fixed(rows: Sequence[Row]) -> tuple[list[str], dict[str, str]]:
    """Settings that differ between rows, and those that do not."""
    names = list(dict.fromkeys(name for row in rows for name in row.labels))
    values = {name: {row.labels[name] for row in rows if name in row.labels} for name in names}
    varied = [name for name in names if len(values[name]) > 1]
    return varied, {name: min(values[name]) for name in names if name not in varied}


class _Names(NamedTuple):
    """How rows are called in the tables: a heading, one name for each row, and what the names stand for."""

    heading: str
    of: list[str]
    legend: list[str]


def _names(rows: Sequence[Row], varied: Sequence[str]) -> _Names:
    """By the settings that vary where that is short, else by number."""
    settings = [[row.labels[name] for name in varied if name in row.labels] for row in rows]
    shown = [", ".join(values) for values in settings]
    heading = ", ".join(varied)
    if max(map(len, [heading, *shown])) <= _NAME_WIDTH:
        return _Names(heading, shown, [])
    numbers = [f"#{number}" for number in range(1, len(rows) + 1)]
    legend = [
        f"{number}: {', '.join(f'{name} {row.labels[name]}' for name in varied if name in row.labels)}"
        for number, row in zip(numbers, rows, strict=True)
    ]
    return _Names("", numbers, legend)


def _table(names: _Names, headings: Sequence[str], cells: Sequence[list[str] | None]) -> list[str]:
    """A line for each row that has cells."""
    told = [(name, row) for name, row in zip(names.of, cells, strict=True) if row is not None]
    left = max(len(names.heading), *(len(name) for name, _ in told))
    widths = [max(len(heading), *(len(row[i]) for _, row in told)) for i, heading in enumerate(headings)]
    return [
        "  ".join([name.ljust(left), *(value.rjust(width) for value, width in zip(row, widths, strict=True))]).rstrip()
        for name, row in [(names.heading, list(headings)), *told]
    ]


def _cache_table(rows: Sequence[Row], names: _Names, goal: str) -> list[str]:
    cells = [None if row.figures is None else cache_cells(row.figures) for row in rows]
    return [
        f"prompt tokens reused, shares of the pool, throughput (goodput: {goal})",
        *_table(names, CACHE_HEADINGS, cells),
    ]


def cache_cells(figures: Figures) -> list[str]:
    """A row of shares and throughput."""
    return [
        _percent(figures.hit_rate),
        _percent(figures.active),
        _percent(figures.kept),
        f"{figures.preemptions:,}",
        _bytes(figures.moved_bytes),
        f"{figures.throughput:,.0f}",
        f"{figures.goodput:,.0f}",
    ]


def _latency_table(rows: Sequence[Row], names: _Names) -> list[str]:
    cells = [None if row.figures is None else latency_cells(row.figures) for row in rows]
    return ["seconds to the first token, and between two tokens", *_table(names, LATENCY_HEADINGS, cells)]


def latency_cells(figures: Figures) -> list[str]:
    """A row of times."""
    return [*_seconds(figures.first), *_seconds(figures.between)]


def _reuse_table(rows: Sequence[Row], names: _Names) -> list[str]:
    cells: list[list[str]] = []
    for row in rows:
        found = row.figures or row.reuse
        assert found is not None
        cells.append([_percent(found.hit_rate), "rule only" if row.figures is None else "simulated"])
    return ["prompt tokens reused", *_table(names, ["hits", "by"], cells)]


def _seconds(quantiles: Quantiles | None) -> list[str]:
    if quantiles is None:
        return ["-"] * 3
    return [show_seconds(value) for value in quantiles]


def show_seconds(value: float) -> str:
    """A time that may be one token's or a long queue's."""
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _bytes(size: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return "0" if not size else f"{size / 1e3:.1f} kB"


def _wrap(line: str) -> list[str]:
    """A line of text in pieces of at most 80 columns."""
    pieces = []
    while len(line) > 80:
        cut = line.rfind(" ", 0, 81)
        if cut <= 0:
            break
        pieces.append(line[:cut])
        line = "  " + line[cut + 1 :]
    return [*pieces, line]
