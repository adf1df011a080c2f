"""Flags of `pageinn measure`, and those that all tools for logs share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pageinn.cli.numbers import above_zero, positive, several
from pageinn.cli.sizes import parse_size

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_log_input(parser: argparse.ArgumentParser) -> None:
    """What to read, and how to render it."""
    parser.add_argument("log", nargs="+", metavar="LOG", help="logs or traces; .gz, .zst and - (standard input) too")
    parser.add_argument("--format", metavar="NAME", help="what the logs are (default: found from what is in them)")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="render prompts with this model's chat template and tokenizer: a GGUF file, a folder with "
        "tokenizer.json, or a name on the Hugging Face hub (default: an approximation)",
    )


def add_measure(commands: Commands) -> None:
    """The command."""
    parser = commands.add_parser(
        "measure",
        help="measure how much of a log repeats, and what a cache would find",
        description="Measure how much of the prompts in logs of any engine or provider repeats an earlier prefix, "
        "and what a cache of each size would find. Needs no model and no GPU.",
        allow_abbrev=False,
    )
    add_log_input(parser)
    parser.add_argument("--block-size", type=positive, default=16, metavar="N", help="tokens per block (default: 16)")
    parser.add_argument(
        "--target",
        choices=["ttft", "capacity", "latency"],
        default="ttft",
        help="what is claimed: time to first token (default), prefill capacity, or total latency",
    )
    parser.add_argument(
        "--cache-tokens",
        type=several(positive),
        default=[],
        metavar="N,N,...",
        help="sizes of the curve in tokens (default: chosen from the log)",
    )
    parser.add_argument(
        "--cache-memory",
        type=several(parse_size),
        default=[],
        metavar="SIZE,SIZE,...",
        help="sizes of the curve in bytes, such as 10GiB; with --kv-model",
    )
    parser.add_argument(
        "--kv-model", metavar="NAME", help="say sizes in bytes of this model's cache too: a name that `plan` knows"
    )
    parser.add_argument(
        "--kv-cache-dtype", default="bfloat16", metavar="DTYPE", help="of that cache (default: bfloat16)"
    )
    parser.add_argument(
        "--answers",
        action="store_true",
        help="keep answers in the cache as well as prompts, where the log has their text",
    )
    parser.add_argument("--share-tenants", action="store_true", help="let tenants share prefixes")
    parser.add_argument(
        "--prefill-rate",
        type=above_zero,
        default=5000.0,
        metavar="TOKENS",
        help="prompt tokens per second, where the log has no durations (default: 5000)",
    )
    parser.add_argument(
        "--decode-rate",
        type=above_zero,
        default=50.0,
        metavar="TOKENS",
        help="answer tokens per second of one request (default: 50)",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON, as docs/traffic.md says")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report with plots as one HTML file too")
