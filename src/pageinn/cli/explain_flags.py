"""The flags of `pageinn explain` and `pageinn diff`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pageinn.cli.numbers import above_zero, positive, share

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_MODEL_HELP = "its chat template and tokenizer: a GGUF, a folder with tokenizer.json, or a name on the hub"


def add_explain(commands: Commands) -> None:
    """Add the command."""
    explain = commands.add_parser(
        "explain",
        help="say why prompts that could share a prefix do not, and prove it",
        description="Say where the prompts of a log part, in which part of the prompt, what differs there, what it "
        "costs and how to fix it. Every finding is proved: its text is rewritten and the log replayed. Or compare two "
        "logs of one service. Logs are read as `pageinn measure` reads them.",
        allow_abbrev=False,
    )
    explain.add_argument("logs", nargs="*", metavar="LOG", help="files of requests; - is standard input")
    explain.add_argument("--before", nargs="+", metavar="LOG", help="compare: the earlier log")
    explain.add_argument("--after", nargs="+", metavar="LOG", help="compare: the later log")
    _add_reading(explain)
    explain.add_argument("--block-size", type=positive, default=16, metavar="N", help="tokens per block (16)")
    explain.add_argument("--share-tenants", action="store_true", help="let tenants share prefixes")
    output = explain.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="the report for programs")
    output.add_argument("--html", type=Path, metavar="FILE", help="also write it as a page")
    output.add_argument("--requests", action="store_true", help="also each request: its parts, and what it shares")
    output.add_argument("--fix", type=Path, metavar="FILE", help="write the canonical prompts, as request bodies")
    output.add_argument("--price", type=above_zero, metavar="P", help="of a million prompt tokens: say what fixes save")
    output.add_argument("--cached-price", type=above_zero, metavar="P", help="of a million that are cached (as others)")
    output.add_argument("--prefill-rate", type=above_zero, metavar="TOKENS", help="a second: say what time fixes save")
    output.add_argument("--fail-under", type=share, metavar="X", help="exit with 3 if the hit rate is below, as 0.8")
    _add_show_text(output)


def add_diff(commands: Commands) -> None:
    """Add the command."""
    diff = commands.add_parser(
        "diff",
        help="say where two prompts part, and whether that costs reuse",
        description="Say where two prompts part, in which part of the prompt, what differs, and whether equal text "
        "follows that could have been reused. A prompt is a file of text, a request body in JSON, or a line of a log "
        "(LOG:17).",
        allow_abbrev=False,
    )
    diff.add_argument("prompts", nargs=2, metavar="PROMPT", help="a text, a request body, or LOG:LINE")
    _add_reading(diff)
    output = diff.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="the differences for programs")
    _add_show_text(output)


def _add_reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", metavar="NAME", help="of the log, where it is not found by itself")
    parser.add_argument("--model", metavar="MODEL", help=_MODEL_HELP)


def _add_show_text(output: argparse._ArgumentGroup) -> None:
    output.add_argument("--show-text", action="store_true", help="show the text that differs, not only its form")
