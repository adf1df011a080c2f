"""How many sequences fit, row by row of the stack, and what sharing one prompt saves."""

from __future__ import annotations

from typing import NamedTuple

from pageinn.catalogue.memory import (
    growing_token_bytes,
    mean_slots_lost,
    most_slots_lost,
    multi_head,
    sequence_bytes,
    token_bytes,
)
from pageinn.catalogue.shape import Latent, Shape
from pageinn.plan.figures import GIB, Figure
from pageinn.plan.inputs import BATCHED_TOKENS, LOGIT_ROWS, Inputs

#: What a cache is in where nobody asked for something else; the row that a smaller store is compared with.
PLAIN = "bfloat16"
#: The store that halves it.
SMALL = "fp8"


class Row(NamedTuple):
    """Users at once with the levers up to this one.

    each: bytes that one user takes. wasted: the share of the slots taken that hold no token. gain: over the row before.
    """

    key: str
    label: str
    users: int
    each: float
    wasted: float
    gain: float
    formula: str


def model_figures(asked: Inputs) -> list[Figure]:
    """What the model's cache takes."""
    shape, store = asked.shape, asked.store
    token = token_bytes(shape, store, asked.tp)
    figures = [
        Figure(
            "bytes_per_token",
            "cache per token",
            token,
            "bytes",
            f"{_token_formula(shape, store, asked.tp)} = {token:,.0f}",
            (
                "one vector for all heads, and its rotary part"
                if isinstance(shape.attention, Latent)
                else "key-value heads only, whatever the hidden size is",
                f"per accelerator of {asked.tp}",
                *_window_note(shape),
            ),
        )
    ]
    growing = growing_token_bytes(shape, store, asked.tp)
    if growing != token:
        figures.append(
            Figure(
                "bytes_per_token_past_windows",
                "cache per token past the windows",
                growing,
                "bytes",
                f"only layers without a window keep more: {growing:,.0f}",
                _window_note(shape),
            )
        )
    whole = sequence_bytes(shape, asked.limit, store, asked.tp)
    lost = most_slots_lost(asked.block_size)
    figures += [
        Figure(
            "bytes_at_limit",
            f"cache of {asked.limit:,} tokens",
            whole,
            "bytes",
            f"sum over layers of min(window, {asked.limit}) x bytes per token and layer = {whole:,.0f}",
        ),
        Figure(
            "bytes_lost_at_most",
            f"lost in last blocks, at most {lost} slots",
            lost * token,
            "bytes",
            f"(block size {asked.block_size} - 1) x {token:,.0f} bytes per token, for each sequence",
        ),
    ]
    return figures


def _token_formula(shape: Shape, store: str, tp: int) -> str:
    attention = shape.attention
    cut = f", cut over {tp} (heads repeated where there are fewer)" if tp > 1 else ""
    if isinstance(attention, Latent):
        return f"{shape.layers} layers x ({attention.kv_rank} latent + {attention.rope_dim} rotary) x {store} element"
    heads = f"{attention.kv_heads} key-value heads x {attention.head_dim}"
    return f"2 x {shape.layers} layers x {heads} x {store} element{cut}"


def _window_note(shape: Shape) -> tuple[str, ...]:
    windows = sorted({group.window for group in shape.groups if group.window is not None})
    if not windows:
        return ()
    count = sum(group.count for group in shape.groups if group.window is not None)
    return (f"{count} of {shape.layers} layers keep at most {', '.join(map(str, windows))} tokens",)


def memory_figures(asked: Inputs) -> list[Figure]:
    """What the card's memory goes to. Raises PlanError where nothing is left."""
    cache = asked.cache_bytes
    given = asked.cache is not None
    if given:
        return [Figure("cache", "cache (given)", cache, "bytes", "--kv-cache-memory-bytes", _kept_note())]
    from_files = "the size of the tensors in the files" if asked.exact_weights is not None else asked.weights
    return [
        Figure(
            "usable",
            f"usable of {asked.accelerator.memory / GIB:,.0f} GiB",
            asked.usable,
            "bytes",
            f"{asked.accelerator.memory:,} x {asked.utilisation:g}",
            (f"{asked.accelerator.name}: {asked.accelerator.source}",),
        ),
        Figure(
            "weights",
            f"weights in {asked.weights}",
            asked.weight_bytes,
            "bytes",
            f"{asked.shape.parameters:,} parameters, {from_files}, / {asked.tp} accelerators",
            ("in fp8, int8 and int4 the embeddings stay in 16 bits; in mxfp4 all but the experts does",),
        ),
        Figure(
            "overhead",
            "activations and runtime",
            asked.overhead_bytes,
            "bytes",
            f"1 GiB + 2 bytes x {BATCHED_TOKENS} tokens x (4 x hidden + 2 x feed-forward width) "
            f"+ 4 bytes x {LOGIT_ROWS} rows of logits",
            ("an estimate; --overhead takes what your engine reports at start",),
        ),
        Figure("cache", "left for the cache", cache, "bytes", "usable - weights - overhead", _kept_note()),
    ]


def _kept_note() -> tuple[str, ...]:
    return ("kept prefixes live inside it: they use what running requests do not, and are given up when asked",)


def rows(asked: Inputs) -> list[Row]:
    """Users at once, each lever added to those before it."""
    shape, cache, limit, store = asked.shape, asked.cache_bytes, asked.limit, asked.store
    found: list[Row] = []

    def add(key: str, label: str, each: float, wasted: float, formula: str, beside: float = 0.0) -> None:
        users = max(0, int((cache - beside) // each))
        before = found[-1].users if found else users
        found.append(Row(key, label, users, each, wasted, users / before if before else 0.0, formula))

    def size(tokens: float, dtype: str) -> float:
        return sequence_bytes(shape, tokens, dtype, asked.tp)

    mean = asked.lengths.average(lambda tokens: size(tokens, store))
    unused = 1 - mean / size(limit, store)
    whole = "cache / bytes of a sequence at the limit, reserved whole"
    attention = shape.attention
    reserved = f"{PLAIN}, length reserved"
    if isinstance(attention, Latent):
        add("latent", f"latent {reserved}", size(limit, PLAIN), unused, whole)
    else:
        heads = sequence_bytes(multi_head(shape), limit, PLAIN, asked.tp)
        add("multi_head", f"multi-head {reserved}", heads, unused, whole)
        if attention.kv_heads < attention.heads:
            add("grouped_query", f"grouped-query {PLAIN}", size(limit, PLAIN), unused, whole)
    if size(limit, store) != size(limit, PLAIN):
        add("store", store, size(limit, store), unused, whole)
    add("paged", "paged, to the token", mean, 0.0, f"cache / mean bytes of a sequence ({asked.lengths.said})")
    blocks = asked.lengths.average_in_blocks(lambda tokens: size(tokens, store), asked.block_size)
    lost = (
        f"each length in whole blocks of {asked.block_size}"
        if asked.lengths.sample
        else f"{mean_slots_lost(asked.block_size):g} slots lost in the last block on average"
    )
    add("paged_in_blocks", "paged, last blocks counted", blocks, 1 - mean / blocks, f"the same, {lost}")
    common = asked.shared - asked.shared % asked.block_size
    prefix = size(common, store)
    if common:

        def rest(tokens: float) -> float:
            return size(max(0.0, tokens - common), store)

        own = asked.lengths.average_in_blocks(rest, asked.block_size)
        formula = f"(cache - {prefix:,.0f} bytes kept once) / what is left of a sequence"
        wasted = 1 - asked.lengths.average(rest) / own
        add("shared", f"first {common:,} tokens shared", own, wasted, formula, prefix)
    if store in (PLAIN, "float16", "float32"):
        part, last = size(1, SMALL) / size(1, store), found[-1]
        label = f"and with --kv-cache-dtype {SMALL}"
        add("small", label, last.each * part, last.wasted, f"the same bytes x {part:g}", prefix * part)
    return found


def users_planned(found: list[Row]) -> int:
    """Users at once in the store that was asked for: the last row that is not about another one."""
    return next(row.users for row in reversed(found) if row.key != "small")


def sharing_figures(asked: Inputs) -> list[Figure]:
    """What requests on one prompt take, apart and together."""
    tokens, count = asked.shared or asked.moved, asked.requests
    one = sequence_bytes(asked.shape, tokens, asked.store, asked.tp)
    return [
        Figure("one_prompt", f"one prompt of {tokens:,} tokens", one, "bytes", f"{tokens} tokens' bytes"),
        Figure("unshared", f"{count:,} requests, each its own", count * one, "bytes", f"{count} x {one:,.0f}"),
        Figure("saved", "sharing it saves", (count - 1) * one, "bytes", f"({count} - 1) x {one:,.0f}: one copy stays"),
    ]
