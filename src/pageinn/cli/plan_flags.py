"""The flags of `pageinn plan`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pageinn.cli.numbers import above_zero, positive, share
from pageinn.cli.sizes import parse_size

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_plan(commands: Commands) -> None:
    """Add the command."""
    plan = commands.add_parser(
        "plan",
        help="work out how many users fit, and what sharing, fp8 and swapping are worth",
        description="Work out how many users fit on a card, what sharing a prompt saves, when moving beats recomputing "
        "and how fast decoding can be; every figure with its formula. Without arguments, list the models and cards of "
        "the catalogue.",
        allow_abbrev=False,
    )
    plan.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a name of the catalogue, a GGUF, a folder with config.json, or a config.json",
    )
    plan.add_argument("card", nargs="?", metavar="CARD", help="an accelerator of the catalogue, for example h100")
    _add_traffic(plan)
    _add_machine(plan)
    _add_measured(plan)
    output = plan.add_argument_group("output")
    output.add_argument(
        "--explain", nargs="?", const="", metavar="NAME", help="formulas and assumptions, of all figures or of one"
    )
    output.add_argument("--json", action="store_true", help="the plan for programs")
    output.add_argument("--plot", type=Path, metavar="FILE", help="also draw it, for example to plan.png")


def _add_traffic(plan: argparse.ArgumentParser) -> None:
    group = plan.add_argument_group("traffic")
    group.add_argument(
        "--max-model-len",
        type=positive,
        metavar="N",
        help="longest prompt and answer together, in tokens (default: the model's own, at most 8,192)",
    )
    lengths = group.add_mutually_exclusive_group()
    lengths.add_argument("--mean", type=above_zero, metavar="N", help="mean length, prompt and answer, in tokens")
    lengths.add_argument("--lengths", metavar="N,N,...|FILE", help="a sample of lengths; FILE has one per line")
    lengths.add_argument(
        "--trace",
        nargs="+",
        metavar="LOG",
        help="a log or trace as pageinn measure takes it; texts are counted by the tokenizer of --tokenizer",
    )
    lengths.add_argument("--percentiles", metavar="pX=N,...", help="for example p50=800,p90=3000,p99=7000")
    group.add_argument(
        "--tokenizer", metavar="MODEL", help="with --trace: a GGUF or folder (default: words and signs are counted)"
    )
    group.add_argument(
        "--shared-prefix", type=positive, default=0, metavar="N", help="first tokens that all prompts share"
    )
    group.add_argument(
        "--prompt", type=positive, metavar="N", help="the prompt to recompute or move (default: the longest)"
    )
    group.add_argument("--requests", type=positive, default=100, metavar="N", help="that share one prompt (100)")
    group.add_argument("--answer", type=positive, default=300, metavar="N", help="tokens of an answer (300)")


def _add_machine(plan: argparse.ArgumentParser) -> None:
    group = plan.add_argument_group("machine")
    group.add_argument("--weights", metavar="FORMAT", help="float32, bfloat16, fp8, int8, int4 or mxfp4")
    group.add_argument("--kv-cache-dtype", default="bfloat16", metavar="DTYPE", help="default: bfloat16")
    group.add_argument("--block-size", type=positive, default=16, metavar="N", help="tokens per block (16)")
    group.add_argument("--tensor-parallel-size", type=positive, default=1, metavar="N", help="cards (1)")
    group.add_argument(
        "--gpu-memory-utilization", type=share, default=0.9, metavar="X", help="share of the memory to use (0.9)"
    )
    group.add_argument(
        "--kv-cache-memory-bytes", type=parse_size, metavar="SIZE", help="of the cache, instead of what is left"
    )
    group.add_argument("--overhead", type=parse_size, metavar="SIZE", help="activations and runtime, if you know it")
    group.add_argument("--host-memory", type=parse_size, metavar="SIZE", help="for a cache in the host's memory")
    group.add_argument("--disk-bandwidth", type=parse_size, metavar="SIZE", help="bytes per second (7 GB)")
    group.add_argument("--flops-share", type=share, default=1.0, metavar="X", help="of the peak that is reached (1)")
    group.add_argument("--bandwidth-share", type=share, default=1.0, metavar="X", help="the same of memory (1)")


def _add_measured(plan: argparse.ArgumentParser) -> None:
    group = plan.add_argument_group("measured, used in place of what is calculated")
    group.add_argument("--prefill-ms", type=above_zero, metavar="MS", help="of a prompt that hits nothing")
    group.add_argument("--hit-prefill-ms", type=above_zero, metavar="MS", help="of the same with its prefix cached")
    group.add_argument("--token-ms", type=above_zero, metavar="MS", help="between two tokens of an answer")
