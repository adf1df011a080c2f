"""Flags of `pageinn serve` that shape the API, not the engine, and the file that may hold all flags."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pageinn.cli.numbers import above_zero, positive

if TYPE_CHECKING:
    from pageinn.server.served import Served

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8000

#: What may wait at a server whose operator does not say: who runs a model alone may queue what he likes.
DEFAULT_QUEUE = {"max_queued_requests": 1024, "max_queued_tokens": 1 << 20}


def add_serving(parser: argparse.ArgumentParser) -> None:
    """The group "API"."""
    group = parser.add_argument_group("API")
    group.add_argument(
        "--served-model-name",
        nargs="+",
        metavar="NAME",
        help="the names that requests may use for the model; answers carry the first (default: the model's own)",
    )
    group.add_argument(
        "--canonical-tools",
        action=argparse.BooleanOptionalAction,
        help="write the keys of tool schemas in one order, so that a client that shuffles them still finds its prompt "
        "in the cache; arrays keep their order (default: as the client wrote them)",
    )
    group.add_argument(
        "--show-prompt-text",
        action=argparse.BooleanOptionalAction,
        help="show admins what differs in prompts; without it, its form alone, letters as x and digits as 0",
    )
    group.add_argument(
        "--prompt-heads",
        type=Path,
        metavar="FILE",
        help="keep here what prompts begin with, so that the log says after a restart whether that has changed "
        "(default: in the folder of --disk-cache, where there is one)",
    )
    _add_queue(parser)
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="flags and their values in YAML, such as 'port: 8000'; flags on the command line win",
    )


def _add_queue(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("queue")
    group.add_argument(
        "--max-queued-requests",
        type=positive,
        metavar="N",
        help="requests that may wait for their start; one more gets status 429 with Retry-After "
        f"(default: {DEFAULT_QUEUE['max_queued_requests']})",
    )
    group.add_argument(
        "--max-queued-tokens",
        type=positive,
        metavar="N",
        help="tokens that their prompts may have together; a prompt that finds nobody waiting is always taken in "
        f"(default: {DEFAULT_QUEUE['max_queued_tokens']})",
    )
    group.add_argument(
        "--queue-timeout",
        type=above_zero,
        metavar="SECONDS",
        help="a request that has not started by then gets status 503 with Retry-After; requests may ask for another "
        "by their field queue_timeout (default: they wait)",
    )


def as_asked(served: Served, args: argparse.Namespace) -> Served:
    """What is served, under the names and in the manner asked for."""
    given = vars(args)
    folder: Path | None = given.get("disk_cache")
    name, *aliases = given.get("served_model_name", (served.model_name,))
    return replace(
        served,
        model_name=name,
        aliases=tuple(dict.fromkeys(aliases)),
        canonical_tools=given.get("canonical_tools", False),
        show_prompt_text=given.get("show_prompt_text", False),
        prompt_heads=given.get("prompt_heads", folder and folder / "prompt-heads.json"),
    )
