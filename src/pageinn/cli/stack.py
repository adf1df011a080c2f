"""`pageinn stack`: the levers, measured one after the other."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from tqdm import tqdm

from pageinn.catalogue.errors import CatalogueError
from pageinn.cli.loading import LOAD_ERRORS
from pageinn.engine.default_model import default_model
from pageinn.plan.figures import PlanError
from pageinn.plan.lengths import of_text
from pageinn.plan.local import find
from pageinn.stack.levers import LEVERS
from pageinn.stack.report import as_json, as_text, draw, rows_of
from pageinn.stack.run import Bench, Measured, measure
from pageinn.stack.workload import Shape, WorkloadError, turn_lengths


def stack_command(args: Namespace) -> int:
    """Measure and print; interrupted, it prints the rows it has. Returns the exit code."""
    try:
        bench = _bench(args)
        model = find(str(args.model or default_model())).shape
        measured, complete = _measure(bench)
    except (PlanError, CatalogueError, WorkloadError, *LOAD_ERRORS) as error:
        print(f"pageinn: {error}", file=sys.stderr)
        return 1
    if not measured:
        return 130
    rows = rows_of(measured, bench, model)
    print(json.dumps(as_json(rows, bench), indent=2) if args.json else as_text(rows, bench, model))
    if args.plot is not None:
        try:
            draw(rows, args.plot)
        except (PlanError, OSError) as error:
            print(f"pageinn: {error}", file=sys.stderr)
            return 1
    return 0 if complete else 130


def _bench(args: Namespace) -> Bench:
    """Raises PlanError or WorkloadError."""
    lengths = of_text(args.lengths).sample
    shape = Shape(args.shared_prefix, args.turns, args.answer)
    for final in lengths:
        turn_lengths(final, shape)
        if final > args.max_model_len:
            raise WorkloadError(f"a length of {final} tokens is beyond --max-model-len {args.max_model_len}")
    return Bench(
        model=args.model,
        cache_bytes=args.kv_cache_memory_bytes,
        limit=args.max_model_len,
        lengths=lengths,
        count=args.conversations,
        shape=shape,
        seqs=args.max_num_seqs,
        batched=args.max_num_batched_tokens,
        threads=args.threads,
    )


def _measure(bench: Bench) -> tuple[dict[str, Measured], bool]:
    """The rows' figures, and whether all of them are there."""
    measured: dict[str, Measured] = {}
    tokens = bench.count * bench.shape.turns * bench.shape.answer
    try:
        for lever in LEVERS:
            with tqdm(
                total=tokens, unit="token", desc=lever.label, disable=not sys.stderr.isatty(), leave=False
            ) as bar:
                measured[lever.key] = measure(lever, bench, bar.update)
    except KeyboardInterrupt:
        print("pageinn: interrupted; these rows were finished", file=sys.stderr)
        return measured, False
    return measured, True
