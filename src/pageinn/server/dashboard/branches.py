"""The prefix tree, cut down to what a screen can show: the largest branches, and what is left beside them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from hashlib import blake2s
from typing import Any, NamedTuple

from pageinn.memory.tokens import TOKEN_BYTES, unpack
from pageinn.memory.view import MemoryView, NodeView
from pageinn.server.dashboard.floor import STATES, state_of

#: Nodes that are shown at most.
MOST = 300


class _Sums(NamedTuple):
    """By node: its branch's blocks wherever they are, and its number of nodes, itself included."""

    blocks: list[int]
    nodes: list[int]


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
    sums = _sums(view)
    chosen = _largest(view, sums, most)
    places = {index: place for place, index in enumerate(chosen)}
    prints: dict[int, bytes] = {}
    starts: dict[int, int] = {}
    shown: list[dict[str, Any]] = []
    for index in chosen:
        node = view.nodes[index]
        above = view.nodes[node.parent] if node.parent >= 0 else None
        starts[index] = 0 if above is None else starts[node.parent] + len(above.tokens) // TOKEN_BYTES
        frame = prints.get(node.parent, b"") + node.account.to_bytes(8, "little")
        prints[index] = blake2s(frame + node.tokens[:block_bytes], key=key, digest_size=6).digest()
        shown.append(
            {
                "id": prints[index].hex(),
                "parent": places.get(node.parent, -1),
                "start": starts[index],
                "tokens": len(node.tokens) // TOKEN_BYTES,
                "blocks": _size(node),
                "branch": sums.blocks[index],
                "hidden": sums.nodes[index] - 1,
                "hits": node.hits,
                "tenant": node.tenant,
                "state": STATES[state_of(node)] if node.blocks else "host",
                "host": node.host,
            }
        )
    if texts is not None:
        firsts = {name.hex(): view.nodes[index].tokens[:block_bytes] for index, name in prints.items()}
        begins = texts.of(firsts)
        for one in shown:
            one["text"] = begins[one["id"]]
    for index in chosen[::-1]:
        parent = view.nodes[index].parent
        if parent >= 0:
            shown[places[parent]]["hidden"] -= sums.nodes[index]
    return {"nodes": shown, "total": len(view.nodes), "blocks": sum(map(_size, view.nodes))}


def _size(node: NodeView) -> int:
    return len(node.blocks) or node.host


def _sums(view: MemoryView) -> _Sums:
    blocks = [_size(node) for node in view.nodes]
    nodes = [1] * len(blocks)
    for index in range(len(blocks) - 1, -1, -1):
        parent = view.nodes[index].parent
        if parent >= 0:
            blocks[parent] += blocks[index]
            nodes[parent] += nodes[index]
    return _Sums(blocks, nodes)


def _largest(view: MemoryView, sums: _Sums, most: int) -> list[int]:
    """The nodes whose branches have the most blocks, each after its parent, whose branch is larger."""
    return heapq.nsmallest(most, range(len(view.nodes)), key=lambda index: (-sums.blocks[index], index))
