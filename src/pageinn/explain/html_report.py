"""The report as one HTML page that loads nothing else."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment

from pageinn.explain.changes import Changes
from pageinn.explain.changes_report import changes_json
from pageinn.explain.json_report import json_report
from pageinn.explain.report import Report
from pageinn.explain.text_report import counted, percent, title

_PAGE = Path(__file__).with_name("report.html.jinja")


def html_report(report: Report, name: str, show_text: bool) -> str:
    """The page of one log."""
    return _page(name, json_report(report, name, show_text), report, None)


def html_changes(found: Changes, names: tuple[str, str], show_text: bool) -> str:
    """The page of a comparison, with the later log's findings."""
    later = json_report(found.later, names[1], show_text)
    return _page(f"{names[0]} and {names[1]}", later, found.later, changes_json(found, names, show_text))


def _page(name: str, log: dict[str, object], report: Report, compared: dict[str, object] | None) -> str:
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["percent"] = percent
    page = environment.from_string(_PAGE.read_text(encoding="utf-8"))
    titles = [title(finding) for finding in report.findings]
    parts = [str(finding.part) for finding in report.findings]
    return page.render(name=name, log=log, titles=titles, parts=parts, compared=compared, counted=counted)
