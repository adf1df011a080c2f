"""Flags of `pageinn serve` that shape the API, not the engine."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pageinn.server.served import Served


def add_serving(parser: argparse.ArgumentParser) -> None:
    """The group "API"."""
    group = parser.add_argument_group("API")
    group.add_argument(
        "--canonical-tools",
        action=argparse.BooleanOptionalAction,
        help="write the keys of tool schemas in one order, so that a client that shuffles them still finds its prompt "
        "in the cache; arrays keep their order (default: as the client wrote them)",
    )


def as_asked(served: Served, args: argparse.Namespace) -> Served:
    """What is served, under the names and in the manner asked for."""
    return replace(served, canonical_tools=vars(args).get("canonical_tools", False))
