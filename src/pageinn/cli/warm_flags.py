"""Arguments of `pageinn warm`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_warm(commands: Commands) -> None:
    """Add the command."""
    warm = commands.add_parser(
        "warm",
        help="publish and pin prefixes on a running server",
        description="Publish and pin prefixes on a running server, from a file of JSON lines: each has a prompt, or "
        "messages and perhaps tools. One with 'pin': true is pinned, for 'tenant' or for all; any other is published. "
        "With --api-keys on the server, an admin's key is needed.",
        allow_abbrev=False,
    )
    warm.add_argument("file", type=Path, metavar="FILE", help="lines of JSON, in UTF-8")
    warm.add_argument(
        "--url",
        default="http://127.0.0.1:8000",
        help="the server (default: http://127.0.0.1:8000); its key, if it wants one, in the variable PAGEINN_API_KEY",
    )
