"""Clusters of traffic, found from the tree: requests that share a head, and how they grow."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pageinn.measure.paths import Floats, Ints, Paths, per_request

#: A cluster has at least this share of the requests; smaller ones are put together.
_LEAST = 0.05
#: A child is the same cluster as its parent if it has this share of its requests.
_SAME = 0.9
#: A prompt grows out of an earlier one if it repeats all of it but so many tokens (or one block), and is longer: chat
#: templates close a turn differently once it has been answered.
_CLOSING = 16
#: Seconds between an answer and the next prompt: a program answers sooner than a person does.
_PERSON = 15.0
#: A prompt of a coding assistant is at least this long.
_CODING = 10_000


class Cluster(NamedTuple):
    """Requests that belong together.

    head: tokens that all of them begin with (0 for the rest that belongs nowhere). prompt: mean prompt tokens.
    grown: the share of requests that continue an earlier prompt. turns: the longest such chain. gap: the median of
    seconds from the end of the earlier to the arrival of the later, None without a clock. name: what fits, or "".
    """

    name: str
    requests: int
    tokens: int
    repeated: int
    head: int
    prompt: float
    grown: float
    turns: int
    gap: float | None
    first: int


def clusters(paths: Paths, clock: bool) -> list[Cluster]:
    """The clusters, most tokens first; at most one of them, with head 0, holds what is too small for its own."""
    family = _families(paths)
    repeated = per_request(paths, paths.segments.tokens)
    grown, turns, gaps = _growth(paths, repeated)
    found = []
    for edge in np.unique(family).tolist():
        members = np.flatnonzero(family == edge)
        tokens = paths.tokens[members]
        gap = gaps[members][grown[members]]
        cluster = Cluster(
            name="",
            requests=len(members),
            tokens=int(tokens.sum()),
            repeated=int(repeated[members].sum()),
            head=int(min(paths.radix.end[edge], tokens.min())) if edge >= 0 else 0,
            prompt=float(tokens.mean()),
            grown=float(grown[members].mean()),
            turns=int(turns[members].max()),
            gap=float(np.median(gap)) if clock and len(gap) else None,
            first=int(members[0]),
        )
        found.append(cluster._replace(name=_name(cluster)))
    return sorted(found, key=lambda cluster: -cluster.tokens)


def _name(cluster: Cluster) -> str:
    """A name only where the figures fit one."""
    share = cluster.repeated / cluster.tokens if cluster.tokens else 0.0
    # The first of a chain cannot grow out of anything.
    if cluster.grown >= 0.5 and cluster.gap is not None:
        if cluster.prompt >= _CODING:
            return "coding"
        return "agent loop" if cluster.gap < _PERSON else "chat"
    if cluster.grown < 0.2 and cluster.requests >= 10:
        if cluster.head >= 0.5 * cluster.prompt:
            return "few-shot"
        beyond = share - cluster.head / cluster.prompt
        if share <= 0.3 and beyond <= 0.05 and cluster.prompt >= 1000:
            return "retrieval"
    return ""


def _families(paths: Paths) -> Ints:
    """For each request the edge that heads its cluster, or -1."""
    radix = paths.radix
    least = max(2.0, _LEAST * paths.requests)
    children: dict[int, list[int]] = {}
    # Only edges that enough requests passed can head a cluster.
    for edge in np.flatnonzero(radix.passed >= least).tolist():
        children.setdefault(int(radix.parent[edge]), []).append(edge)
    heads: list[int] = []
    stack = children.get(-1, [])
    while stack:
        edge = stack.pop()
        below = children.get(edge, [])
        passed = int(radix.passed[edge])
        same = [child for child in below if radix.passed[child] >= _SAME * passed]
        split = sum(int(radix.passed[child]) for child in below) >= 0.8 * passed and len(below) > 1
        if same:
            stack.append(same[0])
        elif split:
            stack += below
        else:
            heads.append(edge)
    family = np.full(len(radix.parent), -1, dtype=np.int64)
    family[heads] = heads
    family = _inherited(family, radix.parent)
    return np.where(paths.leaf >= 0, family[np.maximum(paths.leaf, 0)], -1)


def _inherited(family: Ints, parent: Ints) -> Ints:
    """Each edge takes its parent's family: by pointer doubling, because trees may be deep and wide."""
    up = np.where((family >= 0) | (parent < 0), np.arange(len(parent)), parent)
    while True:
        further = up[up]
        if np.array_equal(further, up):
            return np.asarray(family[up])
        up = further


def _growth(paths: Paths, repeated: Ints) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], Ints, Floats]:
    """Which requests continue an earlier one, the length of their chains, and the seconds in between."""
    segments = paths.segments
    nearest = np.full(paths.requests, -1, dtype=np.int64)
    # Segments go from the head to the tail: the last one written is the deepest.
    nearest[segments.request] = segments.previous
    known = np.flatnonzero(nearest >= 0)
    before = nearest[known]
    grown = np.zeros(paths.requests, dtype=bool)
    whole = paths.tokens[before] - max(_CLOSING, paths.block_size)
    grown[known] = (repeated[known] >= np.maximum(whole, 1)) & (paths.tokens[known] > paths.tokens[before])
    gaps = np.zeros(paths.requests)
    gaps[known] = paths.arrival[known] - paths.end[before]
    turns = [1] * paths.requests
    nearest_of = nearest.tolist()
    for request in np.flatnonzero(grown).tolist():
        turns[request] = turns[nearest_of[request]] + 1
    return grown, np.array(turns, dtype=np.int64), gaps
