"""The report as JSON. docs/explain.md describes it; a change of meaning gets a new version."""

from __future__ import annotations

from typing import Any

from pageinn.explain.replay import Rate
from pageinn.explain.report import Finding, Report
from pageinn.explain.values import masked

VERSION = 1


def json_report(report: Report, name: str, show_text: bool) -> dict[str, Any]:
    """A value for json.dumps: the same log and flags give the same value."""
    return {
        "version": VERSION,
        "log": name,
        "requests": report.requests,
        "families": [size for size in report.families if size > 1],
        "prompt_tokens": report.now.tokens,
        "median_prompt_tokens": report.median_tokens,
        "block_size": report.block_size,
        "assumed": list(report.assumed),
        "hit_rate": _rate(report.now),
        "hit_rate_fixed": _rate(report.fixed),
        "new_share": round(report.new_share, 6),
        "turns": round(report.turns, 3),
        "masked": not show_text,
        "findings": [finding_value(finding, show_text) for finding in report.findings],
        "notes": [note._asdict() for note in report.notes],
    }


def finding_value(finding: Finding, show_text: bool) -> dict[str, Any]:
    """One finding."""

    def shown(text: str) -> str:
        return text if show_text else masked(text, limit=500)

    return {
        "kind": str(finding.kind),
        "detail": finding.detail,
        "part": finding.part._asdict(),
        "position": finding.position._asdict(),
        "requests": finding.requests,
        "parted": finding.times,
        "values": finding.values,
        "tokens": finding.tokens,
        "hit_rate_before": _rate(finding.before),
        "hit_rate_after": _rate(finding.after),
        "fix": finding.fix,
        "written_by_fix": finding.written,
        "tools_added": list(finding.added),
        "tools_removed": list(finding.removed),
        "example": {
            "earlier_request": finding.example.earlier_request,
            "later_request": finding.example.later_request,
            "earlier": shown(finding.example.earlier),
            "later": shown(finding.example.later),
        },
        "shares": [{"text": shown(share.text), "requests": share.requests} for share in finding.shares],
    }


def _rate(rate: Rate) -> float:
    return round(rate.hit_rate, 6)
