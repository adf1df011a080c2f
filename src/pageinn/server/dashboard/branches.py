"""The prefix tree, cut down to what a screen can show: the largest branches, and what is left beside them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from hashlib import blake2s
from typing import Any, NamedTuple

from pageinn.memory.tokens import TOKEN_BYTES, unpack
from pageinn.memory.view import MemoryView, TreeView
from pageinn.server.dashboard.floor import STATES, state_of

#: Nodes that are shown at most.
MOST = 300


class _Sums(NamedTuple):
    """By node: its branch's blocks wherever they are, and its number of nodes, itself included. all: all blocks."""

    blocks: list[int]
    nodes: list[int]
    all: int


class Texts:
    """How prefixes begin, in words. Only for operators who asked for prompts to be shown."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._known: dict[str, str] = {}

    def of(self, names: Mapping[str, bytes]) -> Mapping[str, str]:
        """The texts of first blocks, by fingerprint; those of the last call are remembered."""
        self._known = {name: self._known.get(name) or self._decode(unpack(first)) for name, first in names.items()}
        return self._known


def branches(
    view: MemoryView, key: bytes, block_bytes: int, texts: Texts | None = None, most: int = MOST
) -> dict[str, Any]:
    """The branches with the most blocks, parents before children.

    key: of the fingerprints, which name a prefix for as long as the key lives and cannot be turned back into tokens.
    Nodes: `parent` (its place in the list, -1 for the top), `id`, `start` and `tokens` (where its tokens begin in a
    prompt, and how many they are), `blocks` (own ones, device or host), `branch` (blocks below and with it),
    `hidden` (nodes below it that are not shown), `hits`, `tenant`, `state`, `host` (slots there),
    and with `texts` the `text` of the first block.
    """
    tree = view.tree
    sums = _sums(tree)
    chosen = _largest(sums, most)
    places = {index: place for place, index in enumerate(chosen)}
    prints: dict[int, bytes] = {}
    starts: dict[int, int] = {}
    shown: list[dict[str, Any]] = []
    for index in chosen:
        parent, tokens = tree.parents[index], tree.tokens[index]
        starts[index] = 0 if parent < 0 else starts[parent] + len(tree.tokens[parent]) // TOKEN_BYTES
        frame = prints.get(parent, b"") + tree.accounts[index].to_bytes(8, "little")
        prints[index] = blake2s(frame + tokens[:block_bytes], key=key, digest_size=6).digest()
        state = STATES[state_of(tree.pins[index], tree.retains[index])]
        shown.append(
            {
                "id": prints[index].hex(),
                "parent": places.get(parent, -1),
                "start": starts[index],
                "tokens": len(tokens) // TOKEN_BYTES,
                "blocks": tree.sizes[index] or tree.host[index],
                "branch": sums.blocks[index],
                "hidden": sums.nodes[index] - 1,
                "hits": tree.hits[index],
                "tenant": tree.tenants[index],
                "state": state if tree.sizes[index] else "host",
                "host": tree.host[index],
            }
        )
    if texts is not None:
        begins = texts.of({name.hex(): tree.tokens[index][:block_bytes] for index, name in prints.items()})
        for one in shown:
            one["text"] = begins[one["id"]]
    for index in chosen:
        if tree.parents[index] >= 0:
            shown[places[tree.parents[index]]]["hidden"] -= sums.nodes[index]
    return {"nodes": shown, "total": len(tree.parents), "blocks": sums.all}


def _sums(tree: TreeView) -> _Sums:
    blocks = [size or host for size, host in zip(tree.sizes, tree.host, strict=True)]
    total = sum(blocks)
    nodes = [1] * len(blocks)
    for index in range(len(blocks) - 1, -1, -1):
        parent = tree.parents[index]
        if parent >= 0:
            blocks[parent] += blocks[index]
            nodes[parent] += nodes[index]
    return _Sums(blocks, nodes, total)


def _largest(sums: _Sums, most: int) -> list[int]:
    """The nodes whose branches have the most blocks, each after its parent, whose branch is larger."""
    return heapq.nsmallest(most, range(len(sums.blocks)), key=lambda index: (-sums.blocks[index], index))
