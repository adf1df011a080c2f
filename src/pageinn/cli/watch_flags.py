"""The flags of `pageinn watch`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_watch(commands: Commands) -> None:
    """Add the command."""
    watch = commands.add_parser(
        "watch",
        help="watch a server's cache, and raise alarms",
        description="Watch the cache of a pageinn, vLLM, SGLang or llama-server by its metrics endpoint. Alarms: the "
        "hit rate fell against its own baseline, preemptions, thrash, reuse below granularity, refusals; one line "
        "each, with what to do. Exit code of --once: 0 all calm, 3 an alarm, 1 the server cannot be watched. A key, "
        "if the server wants one, in the variable PAGEINN_API_KEY.",
        allow_abbrev=False,
    )
    watch.add_argument("server", nargs="?", metavar="URL", help="the server, for example http://127.0.0.1:8000")
    watch.add_argument(
        "--interval", type=_seconds, default=5.0, metavar="SECONDS", help="between two looks (default: 5)"
    )
    watch.add_argument("--once", action="store_true", help="look, say what stands, and end; for cron")
    watch.add_argument("--json", action="store_true", help="with --once: for programs")
    watch.add_argument(
        "--history",
        type=Path,
        metavar="FILE",
        help="keep samples here between runs, so that --once has a baseline to compare with",
    )
    watch.add_argument("--webhook", metavar="URL", help="POST JSON here when an alarm is raised or ends")
    watch.add_argument("--emit", choices=["prometheus", "grafana"], help="write alert rules, or a dashboard, and end")
    watch.add_argument(
        "--engine",
        choices=["pageinn", "vllm", "sglang", "llamacpp"],
        help="with --emit: whose metrics (default: URL's, or pageinn's)",
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return value
