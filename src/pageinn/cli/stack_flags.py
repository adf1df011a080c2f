"""The flags of `pageinn stack`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pageinn.cli.numbers import positive
from pageinn.cli.sizes import parse_size

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_stack(commands: Commands) -> None:
    """Add the command."""
    stack = commands.add_parser(
        "stack",
        help="measure what paging, sharing, keeping and fp8 each bring, on this machine",
        description="Take the same conversations through the engine with one lever more each time, within the same "
        "bytes of cache: whole lengths reserved, paged, shared while in use, kept after use, fp8. Says how many "
        "requests were resident at once, what was wasted and how fast it was, beside what the planner says.",
        allow_abbrev=False,
    )
    stack.add_argument(
        "model",
        nargs="?",
        type=Path,
        metavar="MODEL",
        help="a GGUF file or a folder of safetensors; without one, the default model",
    )
    group = stack.add_argument_group("traffic")
    group.add_argument(
        "--lengths",
        default="300,2000,600,4400",
        metavar="N,N,...|FILE",
        help="final lengths of conversations; FILE has one per line (default: 300,2000,600,4400)",
    )
    group.add_argument("--max-model-len", type=positive, default=8192, metavar="N", help="longest sequence (8192)")
    group.add_argument("--conversations", type=positive, default=32, metavar="N", help="how many (32)")
    group.add_argument("--turns", type=positive, default=2, metavar="N", help="of each conversation (2)")
    group.add_argument("--shared-prefix", type=positive, default=64, metavar="N", help="tokens all begin with (64)")
    group.add_argument("--answer", type=positive, default=32, metavar="N", help="tokens of each answer (32)")
    group = stack.add_argument_group("engine")
    group.add_argument(
        "--kv-cache-memory-bytes", type=parse_size, default=1 << 29, metavar="SIZE", help="for every row (512MiB)"
    )
    group.add_argument("--max-num-seqs", type=positive, default=256, metavar="N", help="sequences at once (256)")
    group.add_argument("--max-num-batched-tokens", type=positive, default=2048, metavar="N", help="of a step (2048)")
    group.add_argument("--threads", type=positive, metavar="N", help="compute threads (default: one per core)")
    output = stack.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="the figures for programs")
    output.add_argument("--plot", type=Path, metavar="FILE", help="also draw them, for example to stack.png")
