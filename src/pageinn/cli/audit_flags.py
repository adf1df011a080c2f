"""The flags of `pageinn audit`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pageinn.cli.numbers import positive

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

#: Where keys come from that are not on the command line, which others can read.
VARIABLES = {"key_a": "PAGEINN_KEY_A", "key_b": "PAGEINN_KEY_B", "key_admin": "PAGEINN_KEY_ADMIN"}


def add_audit(commands: Commands) -> None:
    """Add the command."""
    audit = commands.add_parser(
        "audit",
        help="measure what one tenant can find out about another",
        description="Measure from outside what one tenant can find out about another.",
        allow_abbrev=False,
    )
    audits = audit.add_subparsers(dest="audit", required=True, metavar="AUDIT")
    timing = audits.add_parser(
        "timing",
        help="whether the time to the first token tells B what A has sent",
        description="Measure whether tenant B can tell from the time to the first token which of two prompts tenant A "
        "has sent, on any OpenAI-compatible server (pageinn, vLLM, SGLang). Fresh random prompts; A sends one of two, "
        "B times both and takes the faster for A's. Where nothing leaks, that is right as often as a coin is. Exit "
        "code: 0 no leak seen, 1 a leak, 2 the server cannot be audited, 3 the method sees nothing, not even within "
        "a tenant.",
        allow_abbrev=False,
    )
    timing.add_argument("server", metavar="URL", help="the server, for example http://127.0.0.1:8000")
    timing.add_argument("--key-a", metavar="KEY", help=f"the key of tenant A (default: ${VARIABLES['key_a']})")
    timing.add_argument("--key-b", metavar="KEY", help=f"the key of tenant B (default: ${VARIABLES['key_b']})")
    timing.add_argument("--salt-a", metavar="SALT", help="A's cache_salt, where tenants are told apart by salts")
    timing.add_argument("--salt-b", metavar="SALT", help="B's cache_salt")
    timing.add_argument(
        "--key-admin",
        metavar="KEY",
        help="an admin's key, to measure what a public prefix of pageinn reveals too "
        f"(default: ${VARIABLES['key_admin']})",
    )
    timing.add_argument("--model", metavar="NAME", help="the model to ask (default: the first that the server lists)")
    timing.add_argument(
        "--pairs",
        type=positive,
        default=400,
        metavar="N",
        help="pairs across tenants, and a quarter of it for the others; 400 give a half-width of 5 points (400)",
    )
    timing.add_argument(
        "--tokens",
        type=positive,
        metavar="N",
        help="length of a prompt (default: the shortest of 128, 256, ... 2048 that comes twice as fast to A when A has "
        "sent it before)",
    )
    timing.add_argument("--json", action="store_true", help="the figures for programs")
