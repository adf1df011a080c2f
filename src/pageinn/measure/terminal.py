"""The report for a terminal, 80 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from pageinn.measure.summary import Summary

WIDTH = 80
_BAR = 24
_EIGHTHS = " ▏▎▍▌▋▊▉█"
#: Rows of each table; --json has all.
_ROWS = 8


def report(found: Summary) -> str:
    """The whole, lines joined."""
    lines = [*_log(found["log"])]
    if "reuse" in found:
        lines += _reuse(found)
        lines += _clusters(found["clusters"])
        lines += _curve(found["curve"])
        lines += _distances(found["distances"])
        lines += _prefixes(found["prefixes"])
    lines += _provider(found["provider"]) + _engine(found["engine"])
    lines += ["", "Verdict", *_wrapped(found["verdict"]["says"])]
    lines += _gains(found["gains"], found["verdict"]["target"])
    return "\n".join(lines)


def percent(share: float | None) -> str:
    """A share in words; what has no denominator has no share."""
    return "    -  " if share is None else f"{100 * share:5.1f} %"


def count(number: float) -> str:
    """A number that fits in seven places."""
    for least, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= least:
            return f"{number / (1e3 if sign == 'k' else least):.1f}{sign}"
    return f"{number:,.0f}"


def seconds(value: float) -> str:
    """A time span in its own unit."""
    for least, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if value >= least:
            return f"{value / least:.3g} {unit}"
    return f"{value:.3g} s"


def _wrapped(sentences: Iterable[str], indent: str = "  ") -> list[str]:
    return [
        line
        for each in sentences
        for line in textwrap.wrap(each, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")
    ]


def bar(share: float, width: int = _BAR) -> str:
    """A bar of that share of the width."""
    eighths = round(8 * width * min(max(share, 0.0), 1.0))
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(width)


def spark(shares: Iterable[float]) -> str:
    """Shares as a line of bars, each from nothing to all."""
    return "".join("▁▂▃▄▅▆▇█"[min(int(8 * share), 7)] for share in shares)


def _log(log: Summary) -> list[str]:
    kinds = ", ".join(f"{rows:,} {name}" for name, rows in log["formats"].items())
    lines = _wrapped([f"{log['rows']:,} rows ({kinds}), {log['broken']:,} broken"], "")
    shown = [f"skipped {each['source']}:{each['line']}: {each['reason']}" for each in log["first_broken"]]
    lines += _wrapped(shown)
    said = [f"{log['requests']:,} requests", f"{count(log['prompt_tokens'])} prompt tokens"]
    if log["block_size"]:
        said.append(f"blocks of {log['block_size']}")
    if log["seconds"] is not None:
        said.append(f"over {seconds(log['seconds'])}")
    for name in ("tenants", "models", "sessions"):
        if log[name] > 1:
            said.append(f"{log[name]:,} {name}")
    lines += _wrapped([", ".join(said)], "")
    alone = log["length_only"]
    if alone["requests"]:
        known = f"{alone['requests']:,} requests of {count(alone['prompt_tokens'])} prompt tokens known by length only"
        known += f", over {seconds(alone['seconds'])}" if alone["seconds"] else ""
        lines += _wrapped([known], "")
    return lines + _wrapped(f"assumed: {each}" for each in log["assumed"])


def _reuse(found: Summary) -> list[str]:
    reuse, log = found["reuse"], found["log"]
    lines = ["", f"Repeated prompt tokens{'':10}{'of all':>9}{'live':>12}{'kept':>12}"]
    for name, share in (("token by token", reuse["by_token"]), ("in full blocks", reuse["aligned"])):
        parts = [
            percent(share[part] / share["tokens"] if share[part] is not None and share["tokens"] else None)
            for part in ("live", "kept")
        ]
        lines.append(f"  {name:<28}  {percent(share['share']):>9}{parts[0]:>12}{parts[1]:>12}")
    lines += _wrapped(
        [
            "live: a request that was still running had it; sharing saves its memory. "
            "kept: only keeping after the end saves it, memory and prefill."
        ]
    )
    across = reuse["across"]
    if log["tenants"] > 1:
        lines.append(f"  {'if tenants shared':<28}  {percent(across['model']['share']):>9}")
    if log["models"] > 1:
        lines.append(f"  {'if models could share too':<28}  {percent(across['all']['share']):>9}")
    below = reuse["below_one_block"]
    if below:
        lines += _wrapped([f"{below:,} prompts are below granularity: shorter than a block, so none of it can be kept"])
    most = reuse["peak_blocks"]
    if most and most["alone"]:
        saved = 1 - most["shared"] / most["alone"]
        lines += _wrapped(
            [
                f"at the peak, running requests hold {count(most['alone'])} blocks each for itself, "
                f"{count(most['shared'])} sharing equal ones ({100 * saved:.1f} % less)"
            ]
        )
    if log["tenants"] > 1:
        lines += ["", f"{'Tenant':<32}{'requests':>10}{'tokens':>10}{'repeated':>11}"]
        for each in found["tenants"][:_ROWS]:
            name = _cut(each["tenant"] or "(none)", 30)
            lines.append(
                f"  {name:<30}{count(each['requests']):>10}{count(each['tokens']):>10}{percent(each['share']):>11}"
            )
        lines += _more(found["tenants"])
    return lines


def _more(rows: Sequence[Any]) -> list[str]:
    return [f"  and {len(rows) - _ROWS} more in --json"] if len(rows) > _ROWS else []


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else "…" + text[-(width - 1) :]


def _clusters(rows: list[Summary]) -> list[str]:
    lines = ["", f"{'Cluster':<16}{'requests':>9}{'tokens':>9}{'repeated':>10}{'head':>8}{'turns':>7}  first seen"]
    for each in rows[:_ROWS]:
        name = each["name"] or ("(unnamed)" if each["head"] else "(the rest)")
        lines.append(
            f"  {name:<14}{count(each['requests']):>9}{count(each['tokens']):>9}{percent(each['share']):>10}"
            f"{count(each['head']):>8}{each['turns']:>7}  {_cut(each['first'], 19)}"
        )
        lines += _wrapped([each["usual"]] if each["usual"] else [], "    ")
    return lines + _more(rows)


def _curve(curve: Summary) -> list[str]:
    points = curve["points"]
    if not points:
        return ["", *_wrapped(["no size asked for holds the largest request"])]
    known = points[0]["bytes"] is not None
    fifo = any(point["fifo_share"] is not None for point in points)
    head = f"{'Cache, tokens':>15}" + (f"{'bytes':>11}" if known else "")
    columns = f"{'LRU':>9}{'last half':>11}"
    width = WIDTH - len(head) - len(columns) - 17 - 9 * fifo
    lines = ["", f"{head}{columns}  {'':<{width}}{'FIFO' if fifo else '':>{9 * fifo}}{'best possible':>15}"]
    for place, point in enumerate(points):
        if _same(point, points[place - 1 : place] + points[place + 1 : place + 2]):
            continue
        size = f"{gibibytes(point['bytes']):>11}" if known else ""
        best, first = (percent(point[name]) if point[name] is not None else "" for name in ("best_share", "fifo_share"))
        shares = f"{percent(point['lru_share']):>9}{percent(point['lru_warm_share']):>11}"
        drawn = f"  {bar(point['lru_share'] or 0.0, width)}{first:>{9 * fifo}}{best:>15}"
        lines.append(f"{count(point['tokens']):>15}{size}{shares}{drawn}".rstrip())
    return lines


def _same(point: Summary, beside: list[Summary]) -> bool:
    """Whether a size finds what the one below it and the one above it find, as printed, so that it says nothing."""
    names = ("lru_share", "lru_warm_share", "best_share")
    return len(beside) == 2 and all(percent(other[name]) == percent(point[name]) for other in beside for name in names)


def gibibytes(size: float) -> str:
    """Memory for a person."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def _distances(distances: Summary) -> list[str]:
    lines: list[str] = []
    for title, rows in (("Blocks used since", distances["blocks"]), ("Time since the last use", distances["seconds"])):
        total = sum(each["tokens"] for each in rows or [])
        if not total:
            continue
        lines += ["", f"{title:<28}{'share of repeated tokens':>26}"]
        for each in _together(rows):
            least = count(each["least"]) if title.startswith("Blocks") else seconds(each["least"])
            share = each["tokens"] / total
            lines.append(f"  {'from ' + least:<24}{percent(share):>10}  {bar(share)}")
    return lines


def _together(rows: list[Summary]) -> list[Summary]:
    """Bins by four, so that a long range fits on a screen."""
    joined: list[Summary] = []
    for place in range(0, len(rows), 2 if len(rows) > 12 else 1):
        group = rows[place : place + (2 if len(rows) > 12 else 1)]
        tokens = sum(each["tokens"] for each in group)
        if tokens:
            joined.append({"least": group[0]["least"], "tokens": tokens})
    return joined


def _prefixes(rows: list[Summary]) -> list[str]:
    if not rows:
        return []
    lines = ["", f"{'Shared prefix, tokens':>23}{'own':>9}{'requests':>10}{'saved':>10}  first seen"]
    for each in rows[:_ROWS]:
        lines.append(
            f"{each['tokens']:>23,}{count(each['own_tokens']):>9}{count(each['requests']):>10}"
            f"{count(each['saved']):>10}  {_cut(each['first'], 25)}"
        )
    return lines + _more(rows)


def _provider(said: Summary | None) -> list[str]:
    if said is None:
        return []
    lines = ["", "What the provider counted"]
    text = (
        f"{count(said['cached'])} of {count(said['prompt'])} prompt tokens of {said['requests']:,} requests were read "
        f"from its cache:{percent(said['share'])}"
    )
    if said["written"]:
        text += f"; {count(said['written'])} were written to it"
    sentences = [text]
    if said["possible"] is not None:
        sentences.append(f"of the same requests{percent(said['possible'])} of the tokens repeat an earlier prefix")
    return lines + _wrapped(sentences)


def _engine(rows: list[Summary]) -> list[str]:
    lines: list[str] = []
    for each in rows:
        name = each["engine"] + (f" ({each['tier']})" if each["tier"] else "")
        said = f"{name}: {each['samples']:,} lines"
        if each["last"] is not None:
            said += (
                f", hit rate{percent(each['first'])} at first,{percent(each['last'])} at last, "
                f"between{percent(each['lowest'])} and{percent(each['highest'])}"
            )
        if each["weighted"] is not None:
            said += f"; of all prompt tokens counted{percent(each['weighted'])} were cached"
        lines += _wrapped([said])
        if len(each["series"]) > 1:
            lines.append(f"    over time  {spark([point['rate'] for point in each['series']])}")
    return ["", "What the engine's log says", *lines] if lines else []


def _gains(gains: Summary | None, target: str) -> list[str]:
    if gains is None:
        return []
    names = {"ttft": "time to first token", "capacity": "prefill capacity", "latency": "total latency"}
    parts = [f"{names[name]} x{gains[name]:.2f}" for name in names if gains[name] is not None]
    return _wrapped([f"if all of it is kept, without queueing: {', '.join(parts)} (claimed: {names[target]})"])
