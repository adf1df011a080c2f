"""The report for a terminal of 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from pageinn.explain.report import Finding, Report
from pageinn.explain.values import clipped, masked

WIDTH = 80
_INDENT = "   "


def text_report(report: Report, name: str, show_text: bool) -> list[str]:
    """Lines of at most 80 characters. show_text: show what differs; without it, its form."""
    lines = [clipped(name, WIDTH), ""]
    lines += _head(report)
    for number, finding in enumerate(report.findings, 1):
        lines += ["", *finding_lines(finding, number, show_text)]
    if not report.findings:
        lines += ["", "Nothing to fix: where prompts part, they part for good."]
    if report.notes:
        lines += ["", "Not to be blamed"]
        for note in report.notes:
            lines += wrapped(f"{counted(note.requests, 'request')}: {note.text}", " - ", "   ")
    said = [f"assumed: {sentence}" for sentence in report.assumed]
    if report.findings and not show_text:
        said.append("text is masked, letters as x and digits as 0; --show-text shows it")
    lines += ["", *(line for sentence in said for line in wrapped(sentence, "", "  "))] if said else []
    return lines


def percent(share: float) -> str:
    """A share, as 93.1 %."""
    return f"{100 * share:.1f} %"


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    """A paragraph in lines of at most 80 characters."""
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def title(finding: Finding) -> str:
    """A finding in a few words."""
    if finding.kind == "clock":
        return f"clock, to the {finding.detail}"
    return f"{finding.kind}: {finding.detail}" if finding.detail not in ("", str(finding.kind), "day") else finding.kind


def _head(report: Report) -> Iterator[str]:
    families = sum(size > 1 for size in report.families)
    alone = sum(size == 1 for size in report.families)
    groups = counted(families, "family", "families") + (f" and {alone:,} alone" if alone else "")
    yield from wrapped(
        f"{counted(report.requests, 'request')} in {groups}, {report.now.tokens:,} prompt tokens "
        f"(median {report.median_tokens:,})"
    )
    yield f"hit rate {percent(report.now.hit_rate):>8}   as logged: {report.block_size}-token blocks, nothing evicted"
    if report.findings:
        fixes = counted(len(report.findings), "finding")
        yield f"         {percent(report.fixed.hit_rate):>8}   with the {fixes} below fixed"
    yield f"         {percent(report.new_share):>8}   of the content is new in each request, fixed or not"


def finding_lines(finding: Finding, number: int, show_text: bool) -> Iterator[str]:
    """One finding, with its place, its cost, what differs and the fix."""
    rates = f"{percent(finding.before.hit_rate)} -> {percent(finding.after.hit_rate)}"
    head = textwrap.wrap(f"{number}. {title(finding)}", WIDTH - len(rates) - 2, subsequent_indent=_INDENT)
    yield head[0] + rates.rjust(WIDTH - len(head[0]))
    yield from head[1:]
    at = finding.position
    place = f"{finding.part}, line {at.line}, column {at.column}: token {at.tokens:,} of {at.of:,}"
    yield from wrapped(f"{place} ({finding.example.later_request})", _INDENT, _INDENT)
    verb = "computes" if finding.requests == 1 else "compute"
    cost = (
        f"{counted(finding.requests, 'request')} {verb} {counted(finding.tokens, 'token')} again, about "
        f"{finding.tokens // max(finding.requests, 1):,} each; parted {counted(finding.times, 'time')}, over "
        f"{counted(finding.values, 'value')}"
    )
    yield from wrapped(cost, _INDENT, _INDENT)
    shown = clipped if show_text else masked
    if finding.added or finding.removed:
        pass
    elif finding.kind == "variant flag" or not finding.example.earlier:
        for share in finding.shares:
            yield f"{_INDENT}{share.requests:>8,} x  {shown(share.text, WIDTH - 15) or '(absent)'}"
    else:
        yield f"{_INDENT}earlier  {shown(finding.example.earlier, WIDTH - 12)}"
        yield f"{_INDENT}later    {shown(finding.example.later, WIDTH - 12)}"
    yield from wrapped(finding.fix, f"{_INDENT}fix      ", _INDENT + " " * 9)
    if not finding.written:
        yield from wrapped("Not written by --fix: it would change what the model is told.", _INDENT, _INDENT)
