"""The comparison of two logs, for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pageinn.explain.changes import Changes
from pageinn.explain.json_report import VERSION, finding_value, json_report
from pageinn.explain.report import Report
from pageinn.explain.text_report import WIDTH, counted, finding_lines, percent, wrapped
from pageinn.explain.values import clipped, masked

#: A part of the difference below this, in hit rate, is not worth a sentence.
_SMALL = 0.01


def changes_text(found: Changes, names: tuple[str, str], show_text: bool) -> list[str]:
    """Lines of at most 80 characters."""
    lines = [clipped(f"before  {names[0]}", WIDTH), clipped(f"after   {names[1]}", WIDTH), ""]
    lines += _table(found)
    lines += ["", *wrapped(verdict(found))]
    for head, findings in (("Appeared", found.appeared), ("Gone", found.gone)):
        for number, finding in enumerate(findings, 1):
            lines += ["", *([head] if number == 1 else []), *finding_lines(finding, number, show_text)]
    if found.edits:
        lines += ["", "How the prompts themselves were changed"]
        shown = clipped if show_text else masked
        for edit in found.edits:
            said = f"{edit.kind}{', ' + edit.detail if edit.detail else ''}"
            lines += wrapped(f"{edit.part}: {said}, in {counted(edit.requests, 'sampled request')}", " - ", "   ")
            if edit.earlier or edit.later:
                lines += [
                    f"   before  {shown(edit.earlier, WIDTH - 11)}",
                    f"   after   {shown(edit.later, WIDTH - 11)}",
                ]
    return lines


def changes_json(found: Changes, names: tuple[str, str], show_text: bool) -> dict[str, Any]:
    """A value for json.dumps."""

    def shown(text: str) -> str:
        return text[:500] if show_text else masked(text, limit=500)

    return {
        "version": VERSION,
        "verdict": verdict(found),
        "change": round(found.total, 6),
        "change_by_traffic": round(found.traffic, 6),
        "change_by_faults": round(found.faults, 6),
        "appeared": [finding_value(finding, show_text) for finding in found.appeared],
        "gone": [finding_value(finding, show_text) for finding in found.gone],
        "edits": [
            {**edit._asdict(), "kind": str(edit.kind), "earlier": shown(edit.earlier), "later": shown(edit.later)}
            for edit in found.edits
        ],
        "before": json_report(found.earlier, names[0], show_text),
        "after": json_report(found.later, names[1], show_text),
    }


def verdict(found: Changes) -> str:
    """Why the rate changed, in two or three sentences."""
    way = "fell" if found.total < 0 else "rose"
    if abs(found.total) < _SMALL:
        said = "The hit rate is about the same."
    else:
        said = (
            f"The hit rate {way} by {points(abs(found.total))} points: {points(found.faults, True)} by faults in the "
            f"prompts, {points(found.traffic, True)} by other traffic, which no change of the prompts alters."
        )
    if abs(found.traffic) >= _SMALL:
        said += " " + " ".join(_traffic(found.earlier, found.later))
    return said


def points(share: float, signed: bool = False) -> str:
    """A difference of shares, in hundredths."""
    return f"{100 * share:+.1f}" if signed else f"{100 * share:.1f}"


def _traffic(before: Report, after: Report) -> Iterator[str]:
    if after.turns < 0.8 * before.turns or after.turns > 1.25 * before.turns:
        word = "shorter" if after.turns < before.turns else "longer"
        yield f"Conversations are {word}: {before.turns:.1f} requests each before, {after.turns:.1f} now."
    if abs(after.new_share - before.new_share) >= _SMALL:
        more = "More" if after.new_share > before.new_share else "Less"
        was, now = percent(before.new_share), percent(after.new_share)
        yield f"{more} of the content is new in each request: {was} before, {now} now."
    if not 0.8 <= after.median_tokens / max(before.median_tokens, 1) <= 1.25:
        yield f"The median prompt has {after.median_tokens:,} tokens; it had {before.median_tokens:,}."


def _table(found: Changes) -> Iterator[str]:
    before, after = found.earlier, found.later
    rows = [
        ("requests", f"{before.requests:,}", f"{after.requests:,}"),
        ("prompt tokens", f"{before.now.tokens:,}", f"{after.now.tokens:,}"),
        ("requests to a conversation", f"{before.turns:.1f}", f"{after.turns:.1f}"),
        ("median prompt", f"{before.median_tokens:,}", f"{after.median_tokens:,}"),
        ("content new in each request", percent(before.new_share), percent(after.new_share)),
        ("hit rate as logged", percent(before.now.hit_rate), percent(after.now.hit_rate)),
        ("hit rate with faults fixed", percent(before.fixed.hit_rate), percent(after.fixed.hit_rate)),
    ]
    yield f"{'':30}{'before':>16}{'after':>16}"
    for name, was, now in rows:
        yield f"{name:30}{was:>16}{now:>16}"
