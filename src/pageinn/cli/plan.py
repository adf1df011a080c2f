"""`pageinn plan`: how many users fit, and why."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from pageinn.catalogue.accelerators import find_accelerator
from pageinn.catalogue.errors import CatalogueError
from pageinn.model.config import ModelError
from pageinn.plan import lengths
from pageinn.plan.figures import PlanError
from pageinn.plan.inputs import DISK, Inputs, Measured
from pageinn.plan.local import Model, find
from pageinn.plan.report import as_json, as_text, catalogue_text, explain, plan
from pageinn.text.template import TemplateError
from pageinn.text.tokenizer import TokenizerError
from pageinn.traffic.report import ReadError

#: The limit where nobody names one and the model could do more.
_LIMIT = 8192


def plan_command(args: Namespace) -> int:
    """Print a plan; returns the exit code: 1 for what cannot be planned, 2 for wrong usage."""
    if args.model is None:
        print(catalogue_text())
        return 0
    if args.card is None:
        print("pageinn: name a card too, for example h100; `pageinn plan` lists them", file=sys.stderr)
        return 2
    try:
        model = find(args.model)
        report = plan(_inputs(args, model), model.named)
        if args.plot is not None:
            from pageinn.plan.plot import draw

            draw(report, args.plot)
        if args.json:
            print(json.dumps(as_json(report), indent=2))
        else:
            print(as_text(report) if args.explain is None else explain(report, args.explain or None))
    except (PlanError, CatalogueError, ReadError, ModelError, TokenizerError, TemplateError) as error:
        print(f"pageinn: {error}", file=sys.stderr)
        return 1
    return 0


def _inputs(args: Namespace, model: Model) -> Inputs:
    shape = model.shape
    limit = args.max_model_len or min(shape.context, _LIMIT)
    weights = args.weights or shape.weights
    if weights is None and model.files is None:
        raise PlanError(f"{shape.name}: the config does not say what the weights are in; name it with --weights")
    return Inputs(
        shape=shape,
        accelerator=find_accelerator(args.card),
        weights=weights or "bfloat16",
        store={"auto": "bfloat16"}.get(args.kv_cache_dtype, args.kv_cache_dtype),
        limit=limit,
        lengths=_lengths(args, limit),
        tp=args.tensor_parallel_size,
        block_size=args.block_size,
        exact_weights=model.files if args.weights is None else None,
        cache=args.kv_cache_memory_bytes,
        overhead=args.overhead,
        utilisation=args.gpu_memory_utilization,
        prompt=args.prompt,
        shared=args.shared_prefix,
        requests=args.requests,
        answer=args.answer,
        flops_share=args.flops_share,
        bandwidth_share=args.bandwidth_share,
        disk=args.disk_bandwidth or DISK,
        host=args.host_memory,
        measured=Measured(_seconds(args.prefill_ms), _seconds(args.hit_prefill_ms), _seconds(args.token_ms)),
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _lengths(args: Namespace, limit: int) -> lengths.Lengths:
    if args.lengths is not None:
        return lengths.of_text(args.lengths)
    if args.trace is not None:
        from pageinn.plan.trace import of_trace
        from pageinn.traffic import open_renderer

        return of_trace(args.trace, limit, open_renderer(args.tokenizer))
    if args.percentiles is not None:
        return lengths.of_percentiles(args.percentiles, limit)
    if args.mean is not None:
        return lengths.of_mean(args.mean)
    return lengths.of_mean(limit / 2, "nothing known: half the limit assumed")
