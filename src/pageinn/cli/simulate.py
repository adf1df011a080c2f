"""`pageinn simulate`: what a log would have met under other settings."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from itertools import product

from tqdm import tqdm

from pageinn.catalogue.accelerators import find_accelerator
from pageinn.catalogue.compute import Roofline
from pageinn.catalogue.errors import CatalogueError
from pageinn.catalogue.memory import token_bytes
from pageinn.catalogue.models import find_model
from pageinn.cli.sizes import show_size
from pageinn.memory.eviction import EvictionPolicy
from pageinn.memory.questions import PrefixCache
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.model.config import ModelError
from pageinn.scheduling.config import AdmissionMode, ConfigError, SchedulerConfig
from pageinn.simulate.jobs import Job, TokenRangeError
from pageinn.simulate.page import page
from pageinn.simulate.report import Row, as_json, as_text
from pageinn.simulate.routing import Routing
from pageinn.simulate.rules import Breakpoints, Rule, Slots, Steps, reuse
from pageinn.simulate.sweep import Goal, Setting, sweep
from pageinn.simulate.workload import Arrivals, Workload, workload_of
from pageinn.text.template import TemplateError
from pageinn.text.tokenizer import TokenizerError
from pageinn.traffic import ReadError, open_renderer, read

#: Share of a card's memory that is used at all, as vLLM's --gpu-memory-utilization has it.
_USED = 0.9
_SLOTS = 16
_RULES = ("llama.cpp", "openai", "anthropic")


def simulate_command(args: Namespace) -> int:
    """Print what each combination of settings brought; returns the exit code."""
    try:
        line = _line(args)
        rows, about = _simulate(args, line)
    except (
        CatalogueError,
        ConfigError,
        ReadError,
        ModelError,
        TokenizerError,
        TemplateError,
        TokenRangeError,
    ) as error:
        print(f"pageinn: {error}", file=sys.stderr)
        return 1
    goal = f"first token in {args.ttft:g} s, {args.tpot:g} s a token"
    if args.json:
        print(json.dumps(as_json(rows, about), indent=2))
    else:
        print(as_text(rows, about, goal))
    if args.html is not None:
        try:
            args.html.write_text(page(rows, about, goal), encoding="utf-8")
        except OSError as error:
            print(f"pageinn: {args.html}: {error.strerror}", file=sys.stderr)
            return 1
    return 0


def _line(args: Namespace) -> Roofline:
    shape = find_model(args.shape)
    store = {"auto": "bfloat16"}.get(args.kv_cache_dtype, args.kv_cache_dtype)
    weights = args.weights or shape.weights or "bfloat16"
    return Roofline(
        shape,
        find_accelerator(args.card),
        weights,
        store,
        args.tensor_parallel_size,
        args.flops_share,
        args.bandwidth_share,
    )


def _simulate(args: Namespace, line: Roofline) -> tuple[list[Row], list[str]]:
    reading = read(args.trace, args.format)
    arrivals = Arrivals(args.speed, args.gap, args.max_tokens)
    workload = workload_of(reading, open_renderer(args.model), arrivals)
    jobs = workload.jobs
    if not jobs:
        said = (
            f"the first: {workload.skipped[0]}" if workload.skipped else "it has rates of an engine, not its requests"
        )
        raise ReadError(f"{', '.join(args.trace)}: no request that could be simulated; {said}")
    labelled = list(_settings(args, line, jobs))
    simulated = [setting for _, setting in labelled if setting is not None]
    with tqdm(total=len(simulated), unit="setting", disable=not sys.stderr.isatty(), leave=False) as bar:
        goal = Goal(args.ttft, args.tpot)
        figures = iter(sweep(simulated, jobs, line, goal, args.processes or os.cpu_count() or 1, bar.update))
    rows = [
        Row(labels, next(figures), None)
        if setting is not None
        else Row(labels, None, reuse(jobs, _rule(labels["engine"])))
        for labels, setting in labelled
    ]
    return rows, [*_about(line, workload), *(f"note: {text}" for text in [*reading.report.assumed, *workload.assumed])]


def _about(line: Roofline, workload: Workload) -> list[str]:
    jobs = workload.jobs
    prompts = sum(len(job.request.prompt) for job in jobs) // TOKEN_BYTES
    span = jobs[-1].time - jobs[0].time if jobs else 0.0
    lines = [
        f"{len(jobs):,} requests over {span:,.0f} s, {prompts:,} prompt tokens, "
        f"{sum(job.output for job in jobs):,} tokens of answers",
        f"{line.shape.name} on {line.tp} x {line.accelerator.name}, weights {line.weights}, cache {line.store}, "
        f"{100 * line.flops_share:g} % of the peak FLOP/s, {100 * line.bandwidth_share:g} % of the bandwidth",
    ]
    if workload.skipped:
        lines.append(f"skipped {len(workload.skipped):,} rows, the first: {workload.skipped[0]}")
    return lines


def _settings(args: Namespace, line: Roofline, jobs: list[Job]) -> Iterator[tuple[dict[str, str], Setting | None]]:
    """Each combination with its labels; None where an engine is only a rule."""
    longest = max((len(job.request.prompt) // TOKEN_BYTES + job.request.max_tokens for job in jobs), default=1)
    caches = args.kv_cache_memory_bytes or [_left(line)]
    names = (
        "engine",
        "cache",
        "block",
        "prefix cache",
        "eviction",
        "admission",
        "host",
        "replicas",
        "routing",
        "seqs",
        "batched tokens",
    )
    choices = (
        args.engine,
        caches,
        args.block_size,
        args.prefix_cache,
        args.eviction_policy,
        args.admission,
        args.host_memory_bytes,
        args.replicas,
        args.routing,
        args.max_num_seqs,
        args.max_num_batched_tokens,
    )
    seen: set[object] = set()
    for engine, cache, block, prefix_cache, policy, admission, host, replicas, routing, seqs, batched in product(
        *choices
    ):
        if engine in _RULES:
            if engine not in seen:
                seen.add(engine)
                yield {"engine": engine}, None
            continue
        if replicas == 1:
            # There is nothing to route.
            routing = args.routing[0]  # noqa: PLW2901
        size = {"vllm": 16, "sglang": 1}.get(engine, block)
        eviction = policy if engine == "pageinn" else "lru"
        shared = (prefix_cache, eviction, admission, show_size(host), replicas, routing, seqs, batched)
        values = (engine, show_size(cache), size, *shared)
        if values in seen:
            continue
        seen.add(values)
        block_bytes = size * token_bytes(line.shape, line.store, line.tp)
        num_blocks = int(cache // block_bytes)
        if host and prefix_cache == "off":
            raise ConfigError("--host-memory-bytes needs --prefix-cache keep or live")
        if num_blocks < 1:
            raise ConfigError(f"--kv-cache-memory-bytes {cache} is less than one block")
        yield (
            dict(zip(names, map(str, values), strict=True)),
            Setting(
                num_blocks,
                size,
                SchedulerConfig(seqs, max(batched, seqs), longest, admission=AdmissionMode(admission)),
                PrefixCache(prefix_cache),
                EvictionPolicy(eviction),
                int(host // block_bytes),
                engine == "vllm",
                replicas,
                Routing(routing),
                args.overhead_ms / 1e3,
            ),
        )


def _left(line: Roofline) -> int:
    left = int(_USED * line.accelerator.memory - line.weight_bytes)
    if left <= 0:
        raise ConfigError(
            f"{line.shape.name} in {line.weights} leaves no memory on {line.tp} x {line.accelerator.name}; "
            "give --tensor-parallel-size, another --card, or --kv-cache-memory-bytes"
        )
    return left


def _rule(engine: str) -> Rule:
    if engine == "llama.cpp":
        return Slots(_SLOTS)
    return Steps() if engine == "openai" else Breakpoints()
