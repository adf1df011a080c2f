"""The flags of `pageinn checkup`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pageinn.cli.numbers import above_zero

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_checkup(commands: Commands) -> None:
    """Add the command."""
    checkup = commands.add_parser(
        "checkup",
        help="answer seven questions about a server's cache",
        description="Answer seven questions about the cache of a pageinn, vLLM, SGLang or llama-server, each with yes, "
        "no or not known, the figure, and what to do next: how many users fit; what repeats, and has anyone measured; "
        "is keeping on; is anything variable near the start of the prompt; is the cache in fp8; is preemption "
        "monitored; is the cache keyed per tenant. A key, if the server wants one, in the variable PAGEINN_API_KEY.",
        allow_abbrev=False,
    )
    checkup.add_argument("server", metavar="URL", help="the server, for example http://127.0.0.1:8000")
    checkup.add_argument(
        "--log", nargs="+", default=[], metavar="FILE", help="a log of its traffic, as pageinn measure takes it"
    )
    checkup.add_argument("--format", help="the log's format (default: found out)")
    checkup.add_argument("--model", metavar="MODEL", help="whose tokenizer and template render the log's prompts")
    checkup.add_argument(
        "--interval", type=above_zero, default=5.0, metavar="SECONDS", help="between two looks at the server (5)"
    )
    checkup.add_argument("--json", action="store_true", help="the answers for programs")
