"""Everything `pageinn measure` finds, as plain data: what --json prints and the reports show."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pageinn.measure.collect import Collected, Settings
from pageinn.measure.counters import counted, observed
from pageinn.measure.curve import Distances, grouped, stack_distances
from pageinn.measure.families import Cluster, clusters
from pageinn.measure.fifo import fifo_hits
from pageinn.measure.optimum import Future
from pageinn.measure.paths import Paths, per_request
from pageinn.measure.reuse import Share, ages, peak, shares, stack_bins
from pageinn.measure.verdict import beside_the_usual, between_tenants, gains, verdict
from pageinn.traffic.report import ReadReport

#: Of the layout of what --json prints; it grows when a field changes its meaning or goes.
VERSION = 1
#: Tenants, clusters and prefixes that are listed.
LISTED = 20
#: Sizes of the curve, between the largest request and all blocks.
_SIZES = 16
#: Groups of blocks that are stepped through for the optimum, over all its sizes.
_STEPS = 6_000_000
#: Requests, and blocks over all its sizes, that are stepped through for first in, first out.
_FIFO_REQUESTS = 60_000
_FIFO_STEPS = 100_000_000

Summary = dict[str, Any]


class Asked(NamedTuple):
    """What the command line asks for.

    cache_tokens: sizes of the curve, in tokens; none: chosen from the data. token_bytes: what a token takes in the
    cache of the model whose bytes are to be shown.
    """

    settings: Settings
    target: str
    cache_tokens: tuple[int, ...]
    token_bytes: float | None = None


def summarise(log: Collected, report: ReadReport, rendering: list[str], asked: Asked) -> Summary:
    """The whole. rendering: what was assumed when prompts were rendered."""
    paths = log.paths
    found: Summary = {"version": VERSION, "log": _log(log, report, rendering)}
    share: float | None = None
    if paths is not None and paths.requests:
        by_token, aligned = shares(paths, log.clock)
        share = by_token.share
        found["reuse"] = _reuse(log, paths, by_token, aligned)
        found["tenants"] = _tenants(log, paths)
        found["clusters"] = [_cluster(log, each) for each in clusters(paths, log.clock)[:LISTED]]
        groups = grouped(paths)
        distances = stack_distances(paths, groups)
        found["distances"] = {
            "blocks": [each._asdict() for each in stack_bins(distances, paths.block_size)],
            "seconds": [each._asdict() for each in ages(paths)] if log.clock else None,
        }
        found["curve"] = _curve(paths, distances, asked)
        found["prefixes"] = _prefixes(log, paths)
    said = counted(log)
    found["provider"] = {**said._asdict(), "share": said.share} if said else None
    found["engine"] = [
        {**each._asdict(), "series": [point._asdict() for point in each.series]} for each in observed(report.samples)
    ]
    claimed = gains(log, asked.settings)
    found["gains"] = claimed._asdict() if claimed else None
    counters = said is not None or bool(found["engine"])
    says = verdict(share, claimed, asked.target, asked.settings, counters)
    together = found["reuse"]["across"]["model"]["share"] if "reuse" in found else None
    if share is not None and together is not None:
        says += between_tenants(share, together)
    found["verdict"] = {"target": asked.target, "says": says}
    return found


def _log(log: Collected, report: ReadReport, rendering: list[str]) -> Summary:
    paths = log.paths
    measured = paths.requests if paths is not None else 0
    tokens = int(paths.tokens.sum()) if paths is not None else 0
    return {
        "rows": report.good,
        "broken": report.broken,
        "first_broken": [each._asdict() for each in report.first_broken],
        "formats": dict(report.formats),
        "assumed": [*report.assumed, *rendering],
        "requests": measured,
        "prompt_tokens": tokens,
        "length_only": {
            "requests": len(log.lengths),
            "prompt_tokens": sum(log.lengths),
            "seconds": log.length_span,
        },
        "seconds": float(paths.arrival[-1] - paths.arrival[0])
        if paths is not None and measured and log.clock
        else None,
        "tenants": len(log.tenants),
        "models": len(log.models),
        "sessions": log.sessions,
        "block_size": paths.block_size if paths is not None else None,
    }


def _share(share: Share) -> Summary:
    kept = share.repeated - share.live if share.live is not None else None
    return {"tokens": share.tokens, "repeated": share.repeated, "share": share.share, "live": share.live, "kept": kept}


def _reuse(log: Collected, paths: Paths, by_token: Share, aligned: Share) -> Summary:
    most = peak(paths) if log.clock else None
    tokens = by_token.tokens
    return {
        "by_token": _share(by_token),
        "aligned": _share(aligned),
        "across": {
            name: {"repeated": repeated, "share": repeated / tokens if tokens else None}
            for name, repeated in log.scopings.items()
        },
        "below_one_block": int(np.count_nonzero(paths.tokens < paths.block_size)),
        "peak_blocks": most._asdict() if most else None,
    }


def _tenants(log: Collected, paths: Paths) -> list[Summary]:
    repeated = per_request(paths, paths.segments.tokens)
    tenant = log.columns.tenant
    count = len(log.tenants)
    tokens = np.bincount(tenant, paths.tokens, count).astype(np.int64)
    found = np.bincount(tenant, repeated, count).astype(np.int64)
    requests = np.bincount(tenant, minlength=count)
    return [
        {
            "tenant": log.tenants[each],
            "requests": int(requests[each]),
            "tokens": int(tokens[each]),
            "repeated": int(found[each]),
            "share": float(found[each] / tokens[each]) if tokens[each] else None,
        }
        for each in np.argsort(-tokens, kind="stable")[:LISTED].tolist()
    ]


def _cluster(log: Collected, cluster: Cluster) -> Summary:
    share = cluster.repeated / cluster.tokens if cluster.tokens else None
    return {
        **cluster._asdict(),
        "first": _place(log, cluster.first),
        "share": share,
        "usual": beside_the_usual(cluster),
    }


def _place(log: Collected, request: int) -> str:
    return f"{log.sources[log.columns.source[request]]}:{log.columns.line[request]}"


def _curve(paths: Paths, distances: Distances, asked: Asked) -> Summary:
    """Sizes below the largest request are left out: it could not run."""
    least = int(paths.blocks.max(initial=0))
    total = int(paths.tokens.sum())
    half = paths.requests // 2
    later = int(paths.tokens[half:].sum())
    distinct = int(paths.blocks.sum() - distances.groups.blocks.sum())
    if asked.cache_tokens:
        sizes = sorted({tokens // paths.block_size for tokens in asked.cache_tokens})
        sizes = [size for size in sizes if size >= least]
    else:
        sizes = sorted(
            {max(round(size), least) for size in np.geomspace(max(least, 1), max(distinct, least, 1), _SIZES).tolist()}
        )
    groups = distances.groups
    every = max(1, -(-len(sizes) * len(groups.request) // _STEPS))
    # The largest size is past all choices: whatever was seen is there.
    stepped = [size for number, size in enumerate(sizes) if number % every == every // 2 and size < distinct]
    future = Future(groups, paths.blocks)
    best = {size: future.hits(size, half) for size in stepped}
    fifo: dict[int, tuple[int, int]] = {}
    if paths.requests <= _FIFO_REQUESTS and len(stepped) * int(paths.blocks.sum()) <= _FIFO_STEPS:
        fifo = dict(zip(stepped, zip(*fifo_hits(paths, groups, stepped, half), strict=True), strict=True))
    points = []
    for size in sizes:
        lru = distances.hits(size), distances.hits(size, half)
        known = {
            "lru": lru,
            "fifo": lru if size >= distinct else fifo.get(size),
            "best": lru if size >= distinct else best.get(size),
        }
        point: Summary = {
            "blocks": size,
            "tokens": size * paths.block_size,
            "bytes": size * paths.block_size * asked.token_bytes if asked.token_bytes else None,
        }
        for name, hits in known.items():
            found, warm = (None, None) if hits is None else (each * paths.block_size for each in hits)
            point[name] = found
            point[f"{name}_share"] = found / total if found is not None and total else None
            point[f"{name}_warm_share"] = warm / later if warm is not None and later else None
        points.append(point)
    return {
        "largest_request_blocks": least,
        "distinct_blocks": distinct,
        "prompt_blocks": int(paths.prompt_blocks.sum()),
        "points": points,
    }


def _prefixes(log: Collected, paths: Paths) -> list[Summary]:
    radix = paths.radix
    saved = (radix.passed - 1) * radix.edge
    top = np.argsort(-saved, kind="stable")[:LISTED]
    return [
        {
            "tokens": int(radix.end[edge]),
            "own_tokens": int(radix.edge[edge]),
            "requests": int(radix.passed[edge]),
            "saved": int(saved[edge]),
            "first": _place(log, int(radix.first[edge])),
        }
        for edge in top.tolist()
        if saved[edge] > 0
    ]
