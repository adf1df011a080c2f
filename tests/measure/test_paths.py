"""The tree over tokens and the columns of block ids agree with loops over all pairs, and with each other."""

from __future__ import annotations

import numpy as np
import pytest
from brute_force import Request, best_hits, blocks, fifo_hits, known_tokens, live_tokens, lru_hits
from hypothesis import given, settings
from hypothesis import strategies as st

from pageinn.measure import block_columns, fifo
from pageinn.measure.block_columns import BlockColumns
from pageinn.measure.curve import grouped, stack_distances
from pageinn.measure.optimum import Future
from pageinn.measure.paths import Paths, per_request
from pageinn.measure.token_tree import TokenTree
from pageinn.memory.eviction import EvictionPolicy
from pageinn.memory.manager import MemoryManager
from pageinn.memory.scopes import DEFAULT
from pageinn.memory.tokens import pack

TOKENS = st.lists(st.integers(0, 2), max_size=9).map(tuple)
REQUESTS = st.lists(
    st.builds(lambda tokens, gap, length: (tokens, gap, length), TOKENS, st.integers(0, 3), st.integers(0, 9)),
    min_size=1,
    max_size=14,
).map(lambda rows: timed(rows))  # noqa: PLW0108  (defined below)
SIZES = st.sampled_from([1, 2, 3])


def timed(rows: list[tuple[tuple[int, ...], int, int]]) -> list[Request]:
    clock, found = 0, []
    for tokens, gap, length in rows:
        clock += gap
        found.append(Request(tokens, float(clock), float(clock + length)))
    return found


def by_tree(requests: list[Request], size: int) -> Paths:
    tree = TokenTree(size)
    for request in requests:
        tree.add("", pack(request.tokens), b"", request.arrival, request.end)
    return tree.paths()


def by_columns(requests: list[Request], size: int) -> Paths:
    """Ids as a trace writes them: one for each prefix that ends at a block, or at the prompt's end."""
    known: dict[tuple[int, ...], int] = {}
    columns = BlockColumns()
    for request in requests:
        stops = [*range(size, len(request.tokens) + 1, size)]
        if len(request.tokens) % size:
            stops.append(len(request.tokens))
        columns.add([known.setdefault(request.tokens[:stop], len(known)) for stop in stops], len(request.tokens))
    return columns.paths(size, *columns_of(requests))


def columns_of(requests: list[Request]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    arrival = np.array([request.arrival for request in requests])
    return np.zeros(len(requests), dtype=np.int64), arrival, np.array([request.end for request in requests])


@given(REQUESTS, SIZES)
def test_tokens_known_before_and_running(requests: list[Request], size: int) -> None:
    paths = by_tree(requests, size)
    assert per_request(paths, paths.segments.tokens).tolist() == known_tokens(requests)
    running = paths.segments.busy > paths.arrival[paths.segments.request]
    assert per_request(paths, paths.segments.tokens * running).tolist() == live_tokens(requests)


@given(REQUESTS, SIZES)
def test_columns_equal_the_tree_in_full_blocks(requests: list[Request], size: int) -> None:
    tree, columns = by_tree(requests, size), by_columns(requests, size)
    for field in ("tokens", "blocks", "prompt_blocks", "arrival", "end"):
        assert getattr(tree, field).tolist() == getattr(columns, field).tolist()
    assert per_request(tree, tree.segments.read).tolist() == per_request(columns, columns.segments.read).tolist()
    tree_groups, column_groups = grouped(tree), grouped(columns)
    for one, other in zip(tree_groups, column_groups, strict=True):
        assert one.tolist() == other.tolist()
    for paths in (tree, columns):
        running = paths.segments.busy > paths.arrival[paths.segments.request]
        whole = [size * (n // size) for n in live_tokens(requests)]
        assert (size * per_request(paths, paths.segments.read * running)).tolist() == whole


@given(REQUESTS, SIZES)
def test_a_partial_block_with_an_id_counts_its_tokens(requests: list[Request], size: int) -> None:
    """An exact repeat finds the last block too; a longer prompt finds full blocks only."""
    paths = by_columns(requests, size)
    seen: set[tuple[int, ...]] = set()
    expected = []
    for request in requests:
        found = [block for block in blocks(request.tokens, size) if block in seen]
        expected.append(len(request.tokens) if request.tokens in seen else size * len(found))
        seen |= {*blocks(request.tokens, size), request.tokens}
    assert per_request(paths, paths.segments.tokens).tolist() == expected


@given(REQUESTS, SIZES, st.integers(0, 12))
def test_the_curve_is_least_recently_used(requests: list[Request], size: int, cache: int) -> None:
    prefixes = [blocks(request.tokens, size) for request in requests]
    cache = max(cache, *map(len, prefixes), 0)
    for paths in (by_tree(requests, size), by_columns(requests, size)):
        assert stack_distances(paths, grouped(paths)).hits(cache) == lru_hits(prefixes, cache)


@given(REQUESTS, SIZES, st.lists(st.integers(0, 12), min_size=1, max_size=3), st.integers(0, 14))
def test_first_in_first_out(requests: list[Request], size: int, more: list[int], since: int) -> None:
    prefixes = [blocks(request.tokens, size) for request in requests]
    sizes = [max(map(len, prefixes)) + each for each in more]
    by_queue = [fifo_hits(prefixes, each) for each in sizes]
    for paths in (by_tree(requests, size), by_columns(requests, size)):
        found = fifo.fifo_hits(paths, grouped(paths), sizes, since)
        assert found.all == [sum(hits) for hits in by_queue]
        assert found.since == [sum(hits[since:]) for hits in by_queue]


@given(REQUESTS, SIZES, st.integers(1, 30))
def test_the_curve_is_what_the_memory_manager_does(requests: list[Request], size: int, cache: int) -> None:
    """Prompts of whole blocks, one at a time, nothing generated: the engine's own manager finds as many."""
    whole = [Request(request.tokens[: size * (len(request.tokens) // size)]) for request in requests]
    cache = max(cache, *(len(request.tokens) // size for request in whole))
    manager = MemoryManager(cache, size, eviction_policy=EvictionPolicy.LRU)
    hits = 0
    for request in whole:
        packed = pack(request.tokens)
        # Only whole blocks: what the manager would copy out of a block is not block-aligned reuse.
        match = manager.match(DEFAULT, packed)._replace(partial=None)
        hits += manager.matched_tokens(match) // size
        sequence = manager.admit(DEFAULT, packed, match)
        manager.mark_stored(sequence, len(request.tokens))
        manager.release(sequence)
    paths = by_tree(whole, size)
    assert stack_distances(paths, grouped(paths)).hits(cache) == hits


@settings(deadline=None)
@given(REQUESTS.map(lambda requests: requests[:8]), st.integers(0, 5))
def test_the_optimum_is_the_best_of_all_choices(requests: list[Request], cache: int) -> None:
    prefixes = [blocks(request.tokens[:5], 1) for request in requests]
    cache = max(cache, *map(len, prefixes), 0)
    paths = by_tree([request._replace(tokens=request.tokens[:5]) for request in requests], 1)
    groups = grouped(paths)
    best, _ = Future(groups, paths.blocks).hits(cache)
    assert best == best_hits(prefixes, cache)
    assert best >= stack_distances(paths, groups).hits(cache)


@given(REQUESTS, SIZES)
def test_edges_are_what_the_same_requests_passed(requests: list[Request], size: int) -> None:
    """For every prefix at a block boundary: the edge it lies on was passed by as many requests as begin with it."""
    for paths in (by_tree(requests, 1), by_columns(requests, 1)):
        radix = paths.radix
        total = 0
        for number, request in enumerate(requests):
            edge = int(paths.leaf[number])
            assert (edge < 0) == (len(request.tokens) == 0)
            while edge >= 0:
                end = int(radix.end[edge])
                prefix = request.tokens[:end]
                assert int(radix.passed[edge]) == sum(other.tokens[: len(prefix)] == prefix for other in requests)
                first = next(n for n, other in enumerate(requests) if other.tokens[: len(prefix)] == prefix)
                assert int(radix.first[edge]) == first
                parent = int(radix.parent[edge])
                assert parent < edge
                assert end - int(radix.edge[edge]) == (int(radix.end[parent]) if parent >= 0 else 0)
                total += int(radix.edge[edge])
                edge = parent
        assert total == sum(len(request.tokens) for request in requests)
        assert int((radix.edge * radix.passed).sum()) == total


@given(REQUESTS, st.lists(st.integers(0, 2), min_size=14, max_size=14))
def test_scopes_share_nothing(requests: list[Request], scopes: list[int]) -> None:
    tree, columns = TokenTree(1), BlockColumns()
    for request, scope in zip(requests, scopes, strict=False):
        tree.add(scope, pack(request.tokens), b"", request.arrival, request.end)
        columns.add(list(request.tokens), len(request.tokens))
    _, arrival, end = columns_of(requests)
    found = [tree.paths(), columns.paths(1, np.array(scopes[: len(requests)]), arrival, end)]
    apart = [Request((scope + 10, *request.tokens)) for request, scope in zip(requests, scopes, strict=False)]
    expected = [max(known - 1, 0) for known in known_tokens(apart)]
    for paths in found:
        assert per_request(paths, paths.segments.tokens).tolist() == expected


@given(REQUESTS)
def test_ids_that_say_a_block_and_not_its_prefix_are_chained(requests: list[Request]) -> None:
    """Some traces give equal blocks equal ids wherever they stand."""
    columns = BlockColumns()
    for request in requests:
        columns.add(list(request.tokens), len(request.tokens))
    paths = columns.paths(1, *columns_of(requests))
    assert per_request(paths, paths.segments.tokens).tolist() == known_tokens(requests)


@given(REQUESTS, st.permutations(range(14)))
def test_the_order_of_entry_does_not_matter(requests: list[Request], order: list[int]) -> None:
    """Columns are sorted by arrival; where arrivals are equal the order of entry counts, so they are spread."""
    spread = [request._replace(arrival=float(n), end=n + request.end) for n, request in enumerate(requests)]
    shuffled = [spread[n] for n in order if n < len(spread)]
    one, other = by_columns(spread, 2), by_columns(shuffled, 2)
    assert per_request(one, one.segments.tokens).tolist() == per_request(other, other.segments.tokens).tolist()
    assert one.arrival.tolist() == other.arrival.tolist()


@given(REQUESTS)
def test_ids_of_64_bits(requests: list[Request]) -> None:
    def wide(token: int) -> int:
        return (token * 0x9E3779B97F4A7C15 + 12345) % (1 << 64)

    columns = BlockColumns()
    for request in requests:
        columns.add([wide(token) for token in request.tokens], len(request.tokens))
    paths = columns.paths(1, *columns_of(requests))
    assert per_request(paths, paths.segments.tokens).tolist() == known_tokens(requests)


def test_chunks_join_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = timed([((1, 2, n % 3, n % 5), 1, n % 7) for n in range(50)])
    whole = by_columns(rows, 2)
    monkeypatch.setattr(block_columns, "_CHUNK", 7)
    monkeypatch.setattr(block_columns, "_PIECE", 5)
    cut = by_columns(rows, 2)
    for one, other in zip((*whole.segments, *whole.radix), (*cut.segments, *cut.radix), strict=True):
        assert one.tolist() == other.tolist()
    assert whole.leaf.tolist() == cut.leaf.tolist()


@given(REQUESTS, st.lists(st.integers(0, 3), min_size=14, max_size=14))
def test_answers_are_kept_and_not_read(requests: list[Request], lengths: list[int]) -> None:
    """The last tokens of each prompt become its answer: they are known to later prompts, and never counted as read."""
    tree = TokenTree(2)
    expected_known, expected_hits, kept = [], [], []
    recent: list[tuple[int, ...]] = []
    for request, length in zip(requests, lengths, strict=False):
        cut = max(len(request.tokens) - length, 0)
        prompt, answer = request.tokens[:cut], request.tokens[cut:]
        tree.add("", pack(prompt), pack(answer), request.arrival, request.end)
        expected_known.append(known_tokens([Request(each) for each in [*kept, prompt]])[-1])
        kept.append(request.tokens)
        found = 0
        for block in blocks(prompt, 2):
            if block not in recent:
                break
            found += 1
        expected_hits.append(found)
        path = blocks(request.tokens, 2)
        recent = (path + [block for block in recent if block not in path])[:6]
    paths = tree.paths()
    assert per_request(paths, paths.segments.tokens).tolist() == expected_known
    assert stack_distances(paths, grouped(paths)).hits(6) == sum(expected_hits)
