"""`pageinn watch`: a server's cache in the terminal, from cron, and for Prometheus and Grafana."""

from __future__ import annotations

import json
import os
import sys
import time
from argparse import Namespace

import httpx

from pageinn.cli.connection import KEY_VARIABLE
from pageinn.watch import history
from pageinn.watch.alarms import alarms
from pageinn.watch.exposition import TIMEOUT, ScrapeError, metrics_url
from pageinn.watch.sample import Sample, to_json
from pageinn.watch.view import RECENT, plain, screen
from pageinn.watch.watcher import Change, Watcher, look, post
from pageinn.watch.windows import last, shares

#: Exit code of --once with an alarm.
ALARM = 3
#: A sample of the history that is older than this, in seconds, says nothing about the present.
_STALE = 900.0
_HOME, _CLEAR_BELOW, _CLEAR_LINE = "\x1b[H", "\x1b[J", "\x1b[K"


def watch_command(args: Namespace) -> int:
    """Watch; returns the exit code."""
    if args.server is None and args.emit is None:
        print("pageinn: name the server to watch, for example http://127.0.0.1:8000", file=sys.stderr)
        return 2
    try:
        with httpx.Client(headers=headers(), timeout=TIMEOUT, follow_redirects=True) as client:
            if args.emit is not None:
                return _emit(args, client)
            return _once(args, client) if args.once else _live(args, client)
    except (ScrapeError, history.HistoryError) as error:
        print(f"pageinn: {error}", file=sys.stderr)
        return 1


def headers() -> dict[str, str]:
    """The key of the environment, if there is one."""
    key = os.environ.get(KEY_VARIABLE)
    return {"authorization": f"Bearer {key}"} if key else {}


def _emit(args: Namespace, client: httpx.Client) -> int:
    engine = args.engine
    if engine is None:
        engine = "pageinn" if args.server is None else look(client, metrics_url(args.server), time.time()).engine
    if args.emit == "prometheus":
        from pageinn.watch.rules import rules_text

        print(rules_text(engine), end="")
    else:
        from pageinn.watch.dashboard import dashboard

        print(json.dumps(dashboard(engine), indent=2))
    return 0


def _once(args: Namespace, client: httpx.Client) -> int:
    url = metrics_url(args.server)
    samples = [] if args.history is None else history.load(args.history, url, time.time())
    samples.append(look(client, url, time.time()))
    if len(samples) < 2 or samples[-1].time - samples[-2].time > _STALE:
        # Rates need two looks.
        time.sleep(args.interval)
        samples.append(look(client, url, time.time()))
    if args.history is not None:
        history.save(args.history, url, samples)
    raised = alarms(samples)
    if args.json:
        print(json.dumps(_report(url, samples, [alarm._asdict() for alarm in raised]), indent=2))
    else:
        print(screen(samples, {alarm.key: alarm for alarm in raised}, url))
    if raised and args.webhook is not None:
        _tell(client, args.webhook, url, Change(raised, []))
    return ALARM if raised else 0


def _report(url: str, samples: list[Sample], raised: list[dict[str, str]]) -> dict[str, object]:
    recent = last(samples, RECENT)
    sample = to_json(samples[-1])
    return {
        "url": url,
        "engine": sample.pop("engine"),
        "time": sample.pop("time"),
        "window_seconds": recent.seconds,
        "window": shares(recent),
        "sample": sample,
        "alarms": raised,
    }


def _tell(client: httpx.Client, webhook: str, url: str, change: Change) -> None:
    wrong = post(client, webhook, url, change, time.time())
    if wrong is not None:
        print(f"pageinn: {wrong}", file=sys.stderr)


def _live(args: Namespace, client: httpx.Client) -> int:
    """Until Ctrl-C. Without a terminal, alarms alone are printed, when they are raised and when they end."""
    url = metrics_url(args.server)
    watcher = Watcher([] if args.history is None else history.load(args.history, url, time.time()))
    # A server that is not there at the start is a mistake in the command line; later, it is news.
    first: Sample | None = look(client, url, time.time())
    terminal = sys.stdout.isatty()
    if terminal:
        print("\x1b[2J", end="")
    while True:
        change, error = Change([], []), None
        try:
            change = watcher.add(first or look(client, url, time.time()))
        except ScrapeError as failed:
            error = str(failed)
        first = None
        if terminal:
            _draw(screen(watcher.samples, watcher.standing, url, error))
        else:
            _log(change, error)
        if args.webhook is not None and (change.raised or change.ended):
            _tell(client, args.webhook, url, change)
        if args.history is not None:
            history.save(args.history, url, watcher.samples)
        time.sleep(args.interval)


def _draw(text: str) -> None:
    lines = text.replace("\n", _CLEAR_LINE + "\n")
    print(f"{_HOME}{lines}{_CLEAR_LINE}\n{_CLEAR_BELOW}", end="", flush=True)


def _log(change: Change, error: str | None) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
    for alarm in change.raised:
        print(f"{stamp} ALARM {alarm.key}: {plain(alarm.line)}", flush=True)
    for key in change.ended:
        print(f"{stamp} ended {key}", flush=True)
    if error is not None:
        print(f"{stamp} {plain(error)}", file=sys.stderr, flush=True)
