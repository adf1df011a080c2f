"""The flags of `pageinn simulate`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pageinn.cli.numbers import above_zero, one_of, positive, several, share
from pageinn.cli.sizes import parse_size

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

ENGINES = ("pageinn", "vllm", "sglang", "llama.cpp", "openai", "anthropic")


def add_simulate(commands: Commands) -> None:
    """Add the command."""
    simulate = commands.add_parser(
        "simulate",
        help="replay a log under other settings, on a virtual clock",
        description="Replay a log or trace through the real memory manager and the real scheduler, on a virtual clock "
        "and with a cost model in place of kernels. Settings that take several values (A,B,...) are tried in all "
        "combinations.",
        allow_abbrev=False,
    )
    simulate.add_argument("trace", nargs="+", metavar="TRACE", help="logs or traces; '-' is standard input")
    simulate.add_argument("--format", help="what the traces are, where it is not found out")
    simulate.add_argument(
        "--model", metavar="DIR|GGUF", help="tokenizer and chat template that prompts of text are rendered with"
    )
    _add_traffic(simulate)
    _add_machine(simulate)
    _add_settings(simulate)
    output = simulate.add_argument_group("output")
    output.add_argument("--ttft", type=above_zero, default=5.0, metavar="S", help="goal to the first token (5)")
    output.add_argument("--tpot", type=above_zero, default=0.25, metavar="S", help="goal for each one after it (0.25)")
    output.add_argument("--processes", type=positive, metavar="N", help="settings tried at once (default: all cores)")
    output.add_argument("--json", action="store_true", help="the figures for programs")
    output.add_argument("--html", type=Path, metavar="FILE", help="also write them as a page with plots")


def _add_traffic(simulate: argparse.ArgumentParser) -> None:
    group = simulate.add_argument_group("traffic")
    group.add_argument("--speed", type=above_zero, default=1.0, metavar="X", help="times as fast as in the log (1)")
    group.add_argument(
        "--gap", type=above_zero, default=1.0, metavar="S", help="seconds between requests that have no time (1)"
    )
    group.add_argument(
        "--max-tokens", type=positive, metavar="N", help="limit that each request states (default: the longest answer)"
    )


def _add_machine(simulate: argparse.ArgumentParser) -> None:
    group = simulate.add_argument_group("machine")
    group.add_argument("--card", default="h100", metavar="NAME", help="an accelerator that `pageinn plan` lists (h100)")
    group.add_argument("--as", dest="shape", default="llama-3.1-8b", metavar="NAME", help="a model that it lists")
    group.add_argument("--weights", metavar="FORMAT", help="of the weights (default: as published)")
    group.add_argument("--kv-cache-dtype", default="bfloat16", metavar="DTYPE", help="default: bfloat16")
    group.add_argument("--tensor-parallel-size", type=positive, default=1, metavar="N", help="cards a replica (1)")
    group.add_argument("--flops-share", type=share, default=0.5, metavar="X", help="of the peak that is reached (0.5)")
    group.add_argument("--bandwidth-share", type=share, default=0.7, metavar="X", help="the same of memory (0.7)")
    group.add_argument(
        "--overhead-ms", type=above_zero, default=2.0, metavar="MS", help="of a step beside arithmetic and reads (2)"
    )


def _add_settings(simulate: argparse.ArgumentParser) -> None:
    group = simulate.add_argument_group("settings, each A or A,B,...")
    group.add_argument(
        "--kv-cache-memory-bytes",
        type=several(parse_size),
        metavar="SIZE",
        help="cache of one replica (default: 9/10 of the card without the weights)",
    )
    group.add_argument("--block-size", type=several(positive), default=[16], metavar="N", help="tokens per block (16)")
    group.add_argument(
        "--prefix-cache",
        type=several(one_of("off", "live", "keep")),
        default=["keep"],
        metavar="HOW",
        help="off, live, keep (keep)",
    )
    group.add_argument(
        "--eviction-policy",
        type=several(one_of("reuse", "lru")),
        default=["reuse"],
        metavar="NAME",
        help="reuse, lru (reuse)",
    )
    group.add_argument(
        "--admission",
        type=several(one_of("guaranteed", "predicted", "optimistic")),
        default=["predicted"],
        metavar="MODE",
        help="predicted, guaranteed, optimistic (predicted)",
    )
    group.add_argument(
        "--host-memory-bytes",
        type=several(_size_or_none),
        default=[0],
        metavar="SIZE",
        help="of each replica, for what is swapped or evicted; 0 is none (0)",
    )
    group.add_argument(
        "--engine",
        type=several(one_of(*ENGINES)),
        default=["pageinn"],
        metavar="NAME",
        help=f"rule of reuse: {', '.join(ENGINES)} (pageinn); of the last three, only what they reuse is compared",
    )
    group.add_argument("--replicas", type=several(positive), default=[1], metavar="N", help="servers (1)")
    group.add_argument(
        "--routing",
        type=several(one_of("round-robin", "session", "prefix")),
        default=["round-robin"],
        metavar="RULE",
        help="to which server: round-robin, session, prefix (round-robin)",
    )
    group.add_argument(
        "--max-num-seqs", type=several(positive), default=[256], metavar="N", help="sequences computed at once (256)"
    )
    group.add_argument(
        "--max-num-batched-tokens", type=several(positive), default=[2048], metavar="N", help="of one step (2048)"
    )


def _size_or_none(text: str) -> int:
    return 0 if text == "0" else parse_size(text)
