"""The most blocks that running requests hold at once."""

from __future__ import annotations

from brute_force import Request, blocks
from hypothesis import given
from test_paths import REQUESTS, SIZES, by_columns, by_tree

from pageinn.measure.curve import grouped, stack_distances
from pageinn.measure.reuse import peak, stack_bins


@given(REQUESTS, SIZES)
def test_peak(requests: list[Request], size: int) -> None:
    """At each arrival, whoever came and has not ended; a request that ends at once holds nothing."""
    alone = shared = 0
    for now in requests:
        if now.end == now.arrival:
            continue
        # Requests that arrive at the same time are all there.
        running = [each for each in requests if each.arrival <= now.arrival < each.end]
        held = [block for each in running for block in blocks(each.tokens, size)]
        alone, shared = max(alone, len(held)), max(shared, len(set(held)))
    for paths in (by_tree(requests, size), by_columns(requests, size)):
        assert peak(paths) == (alone, shared)


@given(REQUESTS, SIZES)
def test_distances_add_up_to_what_is_found_at_each_size(requests: list[Request], size: int) -> None:
    paths = by_tree(requests, size)
    distances = stack_distances(paths, grouped(paths))
    bins = stack_bins(distances, size)
    for number, each in enumerate(bins):
        upto = sum(earlier.tokens for earlier in bins[: number + 1])
        assert distances.hits(int(2 * each.least) - 1) * size == upto
