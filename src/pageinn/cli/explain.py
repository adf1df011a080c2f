"""`pageinn explain`: why prefixes miss."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from pageinn.explain.analysis import Explained, explain
from pageinn.explain.changes import changes
from pageinn.explain.changes_report import changes_json, changes_text
from pageinn.explain.each_request import each_json, each_request, each_text
from pageinn.explain.fixed_log import body, fixed_records
from pageinn.explain.html_report import html_changes, html_report
from pageinn.explain.json_report import json_report
from pageinn.explain.log import Progress
from pageinn.explain.rendering import Rendering
from pageinn.explain.replay import replay
from pageinn.explain.text_report import percent, text_report
from pageinn.explain.units import Units
from pageinn.explain.worth import Rates, worth, worth_lines
from pageinn.model.config import ModelError
from pageinn.text.template import TemplateError
from pageinn.text.tokenizer import TokenizerError
from pageinn.traffic import ReadError, ReadReport, Record, open_renderer, read

#: The exit code where the hit rate is below --fail-under.
BELOW = 3


def explain_command(args: Namespace) -> int:
    """Explain a log, or compare two; returns the exit code: 1 for what cannot be read, 2 for wrong usage."""
    usage = _usage(args)
    if usage:
        print(f"pageinn: {usage}", file=sys.stderr)
        return 2
    try:
        later = _compare(args) if args.before else _explain(args)
    except BrokenPipeError:
        raise
    except (ReadError, ModelError, TokenizerError, TemplateError, OSError) as error:
        print(f"pageinn: {error}", file=sys.stderr)
        return 1
    rate = later.report.now.hit_rate
    if args.fail_under is not None and rate < args.fail_under:
        print(f"pageinn: the hit rate {percent(rate)} is below {percent(args.fail_under)}", file=sys.stderr)
        return BELOW
    return 0


def _usage(args: Namespace) -> str:
    if bool(args.before) != bool(args.after):
        return "--before and --after go together"
    if bool(args.logs) == bool(args.before):
        return "name a log, or two with --before and --after"
    if args.before and (args.fix or args.requests):
        return "--fix and --requests take one log, without --before and --after"
    if args.before and (args.price is not None or args.prefill_rate is not None):
        return "--price and --prefill-rate take one log, without --before and --after"
    if args.cached_price is not None and args.price is None:
        return "--cached-price needs --price"
    return ""


def _explain(args: Namespace) -> Explained:
    rendering = Rendering(open_renderer(args.model))
    found = _explained(args, args.logs, rendering)
    name = _named(args.logs)
    if args.html:
        args.html.write_text(html_report(found.report, name, args.show_text), encoding="utf-8")
    value, lines = json_report(found.report, name, args.show_text), text_report(found.report, name, args.show_text)
    if args.price is not None or args.prefill_rate is not None:
        rates = Rates(args.price, args.cached_price, args.prefill_rate)
        value["worth"] = worth(found.report, rates)
        lines += ["", *worth_lines(found.report, rates)]
    if args.requests:
        each = list(each_request(found, rendering))
        value["each_request"] = each_json(each)
        lines += ["", *each_text(each)]
    _print(args, value, lines)
    if args.fix:
        _write_fixed(args, found, rendering)
    return found


def _compare(args: Namespace) -> Explained:
    units, rendering = Units(), Rendering(open_renderer(args.model))
    earlier, later = (_explained(args, logs, rendering, units) for logs in (args.before, args.after))
    names = _named(args.before), _named(args.after)
    found = changes(earlier, later)
    if args.html:
        args.html.write_text(html_changes(found, names, args.show_text), encoding="utf-8")
    _print(args, changes_json(found, names, args.show_text), changes_text(found, names, args.show_text))
    return later


def _explained(args: Namespace, logs: Sequence[str], rendering: Rendering, units: Units | None = None) -> Explained:
    reading = read(logs, args.format)
    with progress_bars() as progress:
        found = explain(reading, rendering, args.block_size, progress, units, args.share_tenants)
    say_read(reading.report)
    if not found.log.records:
        raise ReadError(f"{_named(logs)}: no request's prompt is known as text, so there is nothing to explain")
    return found


def _named(logs: Sequence[str]) -> str:
    return logs[0] if len(logs) == 1 else f"{logs[0]} and {len(logs) - 1} more"


def say_read(report: ReadReport) -> None:
    """What was skipped while reading, on stderr."""
    if report.broken:
        for line in report.lines():
            print(f"pageinn: {line}", file=sys.stderr)


def _print(args: Namespace, value: object, lines: Sequence[str]) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False) if args.json else "\n".join(lines))


def _write_fixed(args: Namespace, found: Explained, rendering: Rendering) -> None:
    records = list(fixed_records(found))
    with Path(args.fix).open("w", encoding="utf-8") as file:
        _write(records, file)
    packed = []
    for record in records:
        pieces = rendering.pieces(record)
        packed.append(rendering.pack("".join(piece.text for piece in pieces or ()), record))
    rate = replay(packed, args.block_size, found.log.scopes)[1].hit_rate
    print(f"pageinn: wrote {args.fix}: {len(records):,} requests, hit rate {percent(rate)}", file=sys.stderr)


def _write(records: Sequence[Record], file: TextIO) -> None:
    for record in records:
        file.write(json.dumps(body(record), ensure_ascii=False) + "\n")


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """One bar a stage, where stderr is a terminal."""
    bars: dict[str, tqdm] = {}

    def step(stage: str, count: int) -> None:
        if stage not in bars:
            for bar in bars.values():
                bar.close()
            bars[stage] = tqdm(desc=stage, unit="", disable=None, leave=False, file=sys.stderr)
        bars[stage].update(count)

    try:
        yield step
    finally:
        for bar in bars.values():
            bar.close()
