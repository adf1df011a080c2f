"""Flags of `pageinn serve` that shape the API, not the engine, and the file that may hold all flags."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pageinn.server.served import Served

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8000


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
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="flags and their values in YAML, such as 'port: 8000'; flags on the command line win",
    )


def as_asked(served: Served, args: argparse.Namespace) -> Served:
    """What is served, under the names and in the manner asked for."""
    given = vars(args)
    name, *aliases = given.get("served_model_name", (served.model_name,))
    return replace(
        served,
        model_name=name,
        aliases=tuple(dict.fromkeys(aliases)),
        canonical_tools=given.get("canonical_tools", False),
    )
