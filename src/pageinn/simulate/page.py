"""The figures of a sweep as one HTML file: no script, nothing fetched, bars drawn as SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined

from pageinn.simulate.report import (
    CACHE_HEADINGS,
    LATENCY_HEADINGS,
    Row,
    cache_cells,
    latency_cells,
    show_seconds,
    varied_and_fixed,
)


class _Plot(NamedTuple):
    """unit: the value of a full bar. bars: name, value, and the value as it is shown."""

    title: str
    unit: float
    bars: list[tuple[str, float, str]]


class _Table(NamedTuple):
    title: str
    head: list[str]
    rows: list[list[str]]


def page(rows: Sequence[Row], about: Sequence[str], goal: str) -> str:
    """The whole document."""
    varied, fixed = varied_and_fixed(rows)
    names = [", ".join(row.labels[name] for name in varied if name in row.labels) or "as it is" for row in rows]
    head = ", ".join(varied)
    told = [(name, row.figures) for name, row in zip(names, rows, strict=True) if row.figures is not None]
    plots = [_plot("Prompt tokens reused", names, [_hit_rate(row) for row in rows], lambda rate: f"{100 * rate:.1f} %")]
    tables = []
    if told:
        simulated = [name for name, _ in told]
        firsts = [figures.first.p95 if figures.first else 0.0 for _, figures in told]
        goodput = [figures.goodput for _, figures in told]
        plots.append(_plot("Seconds to the first token, p95", simulated, firsts, show_seconds))
        plots.append(_plot(f"Goodput, tokens a second ({goal})", simulated, goodput, lambda value: f"{value:,.0f}"))
        cache = [[name, *cache_cells(figures)] for name, figures in told]
        latency = [[name, *latency_cells(figures)] for name, figures in told]
        tables.append(_Table("Cache and throughput", [head, *CACHE_HEADINGS], cache))
        tables.append(_Table("Seconds to the first token, and between two", [head, *LATENCY_HEADINGS], latency))
    source = (files("pageinn.simulate") / "page.html.jinja").read_text()
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(source)
    return template.render(about=about, fixed=fixed, plots=plots, tables=tables)


def _hit_rate(row: Row) -> float:
    found = row.figures or row.reuse
    assert found is not None
    return found.hit_rate or 0.0


def _plot(title: str, names: Sequence[str], values: Sequence[float], show: Callable[[float], str]) -> _Plot:
    bars = [(_short(name), value, show(value)) for name, value in zip(names, values, strict=True)]
    return _Plot(title, max([*values, 0.0]) or 1.0, bars)


def _short(name: str) -> str:
    return name if len(name) <= 34 else f"…{name[-33:]}"
