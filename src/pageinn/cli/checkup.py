"""`pageinn checkup`: seven questions to a server's cache."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace

import httpx

from pageinn.cli.watch import headers
from pageinn.watch.checkup import Heard, as_text, checkup
from pageinn.watch.exposition import TIMEOUT, ScrapeError, metrics_url
from pageinn.watch.watcher import look


def checkup_command(args: Namespace) -> int:
    """Ask and answer; returns the exit code: 1 for a server or log that cannot be read."""
    url = metrics_url(args.server)
    try:
        heard = _hear(args) if args.log else None
        with httpx.Client(headers=headers(), timeout=TIMEOUT, follow_redirects=True) as client:
            samples = [look(client, url, time.time())]
            time.sleep(args.interval)
            samples.append(look(client, url, time.time()))
        answers = checkup(samples, heard, _asks_for_a_key(url))
    except ScrapeError as error:
        print(f"pageinn: {error}", file=sys.stderr)
        return 1
    except LogError as error:
        print(f"pageinn: {error}", file=sys.stderr)
        return 1
    engine = samples[-1].engine
    if args.json:
        print(json.dumps({"url": url, "engine": engine, "answers": [one._asdict() for one in answers]}, indent=2))
    else:
        print(as_text(answers, url, engine))
    return 0


class LogError(RuntimeError):
    """The log cannot be read; one line that names it."""


def _asks_for_a_key(url: str) -> bool | None:
    """Whether the API refuses who brings none; None if it does not answer."""
    try:
        got = httpx.get(f"{url.removesuffix('/metrics')}/v1/models", timeout=TIMEOUT)
    except httpx.TransportError:
        return None
    if got.status_code in (401, 403):
        return True
    return False if got.status_code == 200 else None


def _hear(args: Namespace) -> Heard:
    """Measure the log, and explain it where its prompts are known as text. Raises LogError."""
    from pageinn.explain.analysis import explain
    from pageinn.explain.rendering import Rendering
    from pageinn.explain.text_report import title
    from pageinn.measure.collect import MeasureError, Settings, collect
    from pageinn.measure.reuse import shares
    from pageinn.model.config import ModelError
    from pageinn.text.template import TemplateError
    from pageinn.text.tokenizer import TokenizerError
    from pageinn.traffic import ReadError, open_renderer, read

    try:
        reading = read(args.log, args.format, ordered=False)
        log = collect(iter(reading), open_renderer(args.model), Settings(), reading.report)
        found = explain(read(args.log, args.format), Rendering(open_renderer(args.model)))
    except (MeasureError, ReadError, ModelError, TemplateError, TokenizerError, OSError) as error:
        raise LogError(str(error)) from error
    if reading.report.broken:
        print(f"pageinn: {reading.report.broken} rows of the log were broken and are skipped", file=sys.stderr)
    texts = bool(found.log.records)
    findings = tuple(f"{title(one)} in {one.part}, {one.requests:,} requests" for one in found.report.findings)
    paths = log.paths
    if paths is None or not paths.requests:
        return Heard(len(log.lengths), None, findings if texts else None, None)
    by_token, _ = shares(paths, log.clock)
    return Heard(
        paths.requests,
        by_token.share,
        findings if texts else None,
        found.report.fixed.hit_rate if texts and findings else None,
    )
