"""The report as one HTML file: no script, nothing fetched, plots drawn as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import log10
from typing import Any

from pageinn.measure.summary import Summary
from pageinn.measure.terminal import count, percent, seconds

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1d2733;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin:2rem 0 .5rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #dde3ea}
th:first-child,td:first-child,td.t,th.t{text-align:left}
.verdict{background:#eef6f0;border-left:4px solid #2f855a;padding:.6rem 1rem}.verdict p{margin:.2rem 0}
.note{color:#556372;font-size:.9rem}svg{width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:#445}
"""
_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 20, 15, 40


def page(found: Summary) -> str:
    """The whole document."""
    log = found["log"]
    kinds = ", ".join(f"{rows:,} {name}" for name, rows in log["formats"].items())
    parts = [
        "<h1>How much of this traffic repeats</h1>",
        f"<p>{log['rows']:,} rows ({_text(kinds)}), {log['broken']:,} broken; {log['requests']:,} requests, "
        f"{count(log['prompt_tokens'])} prompt tokens.</p>",
        '<div class="verdict">' + "".join(f"<p>{_text(each)}</p>" for each in found["verdict"]["says"]) + "</div>",
    ]
    if "reuse" in found:
        parts += _measured(found)
    parts += _said(found)
    notes = [f"skipped {each['source']}:{each['line']}: {each['reason']}" for each in log["first_broken"]]
    notes += [f"assumed: {each}" for each in log["assumed"]]
    parts += ["<h2>Read and assumed</h2>", *(f'<p class="note">{_text(each)}</p>' for each in notes)]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>pageinn measure</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _text(value: Any) -> str:
    return escape(str(value))


def _measured(found: Summary) -> list[str]:
    reuse = found["reuse"]
    rows = []
    for name, share in (("token by token", reuse["by_token"]), ("in full blocks", reuse["aligned"])):
        whole = share["tokens"] or 1
        parts = [percent(share[part] / whole if share[part] is not None else None) for part in ("live", "kept")]
        rows.append([name, percent(share["share"]), *parts])
    across = reuse["across"]
    if found["log"]["tenants"] > 1:
        rows.append(["if tenants shared", percent(across["model"]["share"]), "", ""])
    if found["log"]["models"] > 1:
        rows.append(["if models could share too", percent(across["all"]["share"]), "", ""])
    parts = ["<h2>Repeated prompt tokens</h2>", _table(["", "of all", "live", "kept"], rows)]
    parts.append(
        '<p class="note">live: a request that was still running had it; sharing saves its memory. kept: only keeping '
        "after the end saves it, memory and prefill.</p>"
    )
    if found["log"]["tenants"] > 1:
        rows = [[e["tenant"], count(e["requests"]), count(e["tokens"]), percent(e["share"])] for e in found["tenants"]]
        parts += ["<h2>Tenants</h2>", _table(["tenant", "requests", "tokens", "repeated"], rows)]
    parts += ["<h2>Hit rate by size of the cache</h2>", _curve_plot(found["curve"]["points"])]
    for title, bins, unit in (
        ("Blocks used since the last use", found["distances"]["blocks"], count),
        ("Time since the last use", found["distances"]["seconds"], seconds),
    ):
        if bins:
            labels = [unit(each["least"]) for each in bins]
            parts += [f"<h2>{title}</h2>", _bars(labels, [each["tokens"] for each in bins])]
    rows = [
        [
            each["name"] or "(unnamed)",
            count(each["requests"]),
            count(each["tokens"]),
            percent(each["share"]),
            count(each["head"]),
            each["turns"],
            each["usual"],
        ]
        for each in found["clusters"]
    ]
    heads = ["cluster", "requests", "tokens", "repeated", "head", "turns", "beside the usual"]
    parts += ["<h2>Clusters of traffic</h2>", _table(heads, rows)]
    rows = [
        [f"{e['tokens']:,}", f"{e['own_tokens']:,}", count(e["requests"]), count(e["saved"]), e["first"]]
        for e in found["prefixes"]
    ]
    parts += ["<h2>Biggest shared prefixes</h2>", _table(["tokens", "own", "requests", "saved", "first seen"], rows)]
    return parts


def _said(found: Summary) -> list[str]:
    parts: list[str] = []
    said = found["provider"]
    if said:
        row = [f"{said['requests']:,}", count(said["prompt"]), count(said["cached"]), percent(said["share"])]
        row.append(percent(said["possible"]))
        heads = ["requests", "prompt tokens", "cached", "rate", "repeats an earlier prefix"]
        parts += ["<h2>What the provider counted</h2>", _table(heads, [row])]
    if found["engine"]:
        rows = [
            [f"{e['engine']} {e['tier']}", e["samples"], *(percent(e[k]) for k in ("first", "last", "weighted"))]
            for e in found["engine"]
        ]
        heads = ["engine", "lines", "at first", "at last", "of all tokens counted"]
        parts += ["<h2>What the engine's log says</h2>", _table(heads, rows)]
        for each in found["engine"]:
            if len(each["series"]) > 1:
                parts += [
                    f"<h2>{_text(each['engine'])} {_text(each['tier'])} over time</h2>",
                    _series_plot(each["series"]),
                ]
    return parts


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{_text(each)}</th>" for each in heads)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _curve_plot(points: list[Summary]) -> str:
    if not points:
        return "<p>No size asked for holds the largest request.</p>"
    low, high = log10(points[0]["tokens"]), log10(points[-1]["tokens"])
    span = (high - low) or 1.0

    def x(tokens: int) -> float:
        return _LEFT + (log10(tokens) - low) / span * (_WIDTH - _LEFT - _RIGHT)

    def y(share: float) -> float:
        return _TOP + (1 - share) * (_HEIGHT - _TOP - _BOTTOM)

    parts = []
    for tenth in range(0, 11, 2):
        parts.append(_line(_LEFT, y(tenth / 10), _WIDTH - _RIGHT, y(tenth / 10), "#e3e8ee"))
        parts.append(f'<text x="{_LEFT - 6}" y="{y(tenth / 10) + 4:.1f}" text-anchor="end">{10 * tenth} %</text>')
    for point in points[:: max(1, len(points) // 6)]:
        place = f'x="{x(point["tokens"]):.1f}" y="{_HEIGHT - _BOTTOM + 18}"'
        parts.append(f'<text {place} text-anchor="middle">{count(point["tokens"])}</text>')
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 4}" text-anchor="middle">tokens that the cache holds</text>')
    best = [(x(p["tokens"]), y(p["best_share"])) for p in points if p["best_share"] is not None]
    lru = [(x(p["tokens"]), y(p["lru_share"] or 0.0)) for p in points]
    fifo = [(x(p["tokens"]), y(p["fifo_share"])) for p in points if p["fifo_share"] is not None]
    parts += [_path(best, "#d08c2b", "6 4"), _path(fifo, "#7a8794", "2 3"), _path(lru, "#2b6cb0", "")]
    key = [("least recently used", "#2b6cb0"), ("best possible (Belady)", "#d08c2b")]
    key += [("first in, first out", "#7a8794")] if fifo else []
    for number, (name, colour) in enumerate(key):
        at = _TOP + 12 + 16 * number
        parts.append(_line(_LEFT + 10, at - 4, _LEFT + 34, at - 4, colour))
        parts.append(f'<text x="{_LEFT + 40}" y="{at}">{name}</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'


def _series_plot(points: list[Summary]) -> str:
    height = 160

    def y(share: float) -> float:
        return _TOP + (1 - min(share, 1.0)) * (height - _TOP - 25)

    step = (_WIDTH - _LEFT - _RIGHT) / (len(points) - 1)
    parts = [_line(_LEFT, y(share), _WIDTH - _RIGHT, y(share), "#e3e8ee") for share in (0.0, 0.5, 1.0)]
    parts += [
        f'<text x="{_LEFT - 6}" y="{y(share) + 4:.1f}" text-anchor="end">{100 * share:.0f} %</text>'
        for share in (0.0, 0.5, 1.0)
    ]
    parts.append(_path([(_LEFT + place * step, y(each["rate"])) for place, each in enumerate(points)], "#2b6cb0", ""))
    last = points[-1]["seconds"]
    if last is not None:
        parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{height - 6}" text-anchor="end">{seconds(last)} later</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="1.5"/>'


def _path(points: list[tuple[float, float]], colour: str, dashes: str) -> str:
    if not points:
        return ""
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="2"{dashed}/>{dots}'


def _bars(labels: list[str], values: list[int]) -> str:
    most = max(values) or 1
    total = sum(values) or 1
    step = (_WIDTH - _LEFT - _RIGHT) / len(values)
    floor = _HEIGHT - _BOTTOM
    parts = [_line(_LEFT, floor, _WIDTH - _RIGHT, floor, "#99a5b3")]
    for place, (label, value) in enumerate(zip(labels, values, strict=True)):
        height = (floor - _TOP - 14) * value / most
        left = _LEFT + place * step
        parts.append(
            f'<rect x="{left + 2:.1f}" y="{floor - height:.1f}" width="{step - 4:.1f}" height="{height:.1f}" '
            f'fill="#2b6cb0"><title>{_text(label)}: {value:,} tokens</title></rect>'
        )
        if len(values) <= 14 or place % 2 == 0:
            middle = left + step / 2
            parts.append(f'<text x="{middle:.1f}" y="{floor + 16}" text-anchor="middle">{_text(label)}</text>')
        if value >= 0.005 * total:
            parts.append(
                f'<text x="{left + step / 2:.1f}" y="{floor - height - 4:.1f}" text-anchor="middle">'
                f"{100 * value / total:.0f}%</text>"
            )
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 4}" text-anchor="middle">from</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'
