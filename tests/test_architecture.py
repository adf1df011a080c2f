"""The house's rule, read from the source: a room imports only rooms of floors below its own."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import pageinn

ROOT = Path(pageinn.__file__).parent

FLOORS = {
    "memory": 1,
    "catalogue": 2,
    "scheduling": 2,
    "text": 2,
    "model": 3,
    "store": 3,
    "kernels": 3,
    "traffic": 3,
    "audit": 4,
    "drift": 4,
    "engine": 4,
    "explain": 4,
    "measure": 4,
    "misses": 4,
    "plan": 4,
    "watch": 4,
    "simulate": 4,
    "stack": 4,
    "cli": 5,
    "server": 5,
}

#: Imports within one floor, each with its reason. None of them goes both ways.
ALLOWED_ON_ONE_FLOOR = {
    ("model", "kernels"): "the decoder calls the operations of the kernel contract",
    ("model", "store"): "the decoder hands the store's arrays to those operations",
    ("store", "kernels"): "the store's dtypes are those of the kernel contract",
    ("traffic", "model"): "prompts are rendered with the template and the tokenizer of a model's files",
    ("misses", "explain"): "a live server's misses are told by the culprit finder that reads logs",
    ("stack", "engine"): "the levers are measured on the live engine",
    ("stack", "plan"): "beside what was measured stands what the planner says",
    ("cli", "server"): "the command line starts the server",
}

#: What the two rooms without tensor, clock and socket may import beside pageinn: containers, types, sums.
PURE_ROOMS = ("memory", "scheduling")
PURE_MODULES = {
    *("__future__", "array", "bisect", "collections", "contextlib", "dataclasses", "enum", "heapq", "math", "operator"),
    *("sys", "typing"),
}

#: References of the tests; the installed package runs without them.
NEVER_IMPORTED = {"torch", "transformers"}


class Import(NamedTuple):
    """One imported module, by its full name, and where it is written."""

    room: str
    module: str
    where: str

    @property
    def target(self) -> str | None:
        """The room that is imported, or None for what is not a room of pageinn."""
        parts = self.module.split(".")
        return parts[1] if parts[0] == "pageinn" and len(parts) > 1 and parts[1] in FLOORS else None


def rooms() -> list[str]:
    return sorted(path.name for path in ROOT.iterdir() if (path / "__init__.py").exists())


@cache
def imports() -> list[Import]:
    """All imports of all rooms, inside functions and under TYPE_CHECKING too."""
    found = []
    for path in sorted(ROOT.rglob("*.py*")):
        parts = path.relative_to(ROOT).parts
        if path.suffix in (".py", ".pyi") and len(parts) > 1:
            for node in ast.walk(ast.parse(path.read_text())):
                where = f"{'/'.join(parts)}:{getattr(node, 'lineno', 0)}"
                found += [Import(parts[0], module, where) for module in modules(node, parts)]
    return found


def modules(node: ast.AST, parts: tuple[str, ...]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = ["pageinn", *parts[:-1]]
            base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
        # `from pageinn import memory` names a room too.
        return [f"{base}.{alias.name}" for alias in node.names] if base == "pageinn" else [base]
    return []


def test_every_room_has_a_floor() -> None:
    assert rooms() == sorted(FLOORS), "give a new room its floor here and in docs/architecture.md"


@pytest.mark.parametrize("room", sorted(FLOORS))
def test_rooms_import_downwards_only(room: str) -> None:
    wrong = [
        f"{one.where} imports {one.module}"
        for one in imports()
        if one.room == room
        and one.target not in (None, room)
        and FLOORS[str(one.target)] >= FLOORS[room]
        and (room, one.target) not in ALLOWED_ON_ONE_FLOOR
    ]
    assert not wrong, "\n".join(wrong)


def test_what_is_allowed_on_one_floor_is_used_and_goes_one_way() -> None:
    used = {(one.room, one.target) for one in imports()}
    for pair in ALLOWED_ON_ONE_FLOOR:
        assert FLOORS[pair[0]] == FLOORS[pair[1]]
        assert pair in used, f"{pair} is not needed any more"
        assert pair[::-1] not in used


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_memory_and_scheduling_know_no_tensor_no_clock_no_socket(room: str) -> None:
    wrong = [
        f"{one.where} imports {one.module}"
        for one in imports()
        if one.room == room and one.target is None and one.module.split(".")[0] not in PURE_MODULES
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_needs_the_references_of_the_tests() -> None:
    wrong = [f"{one.where} imports {one.module}" for one in imports() if one.module.split(".")[0] in NEVER_IMPORTED]
    assert not wrong, "\n".join(wrong)


def test_the_rule_can_fail() -> None:
    """Each way to write an import is seen."""
    source = "import pageinn.server.app\nfrom pageinn import engine\nfrom ..model import config\nfrom . import pool\n"
    found = [name for node in ast.walk(ast.parse(source)) for name in modules(node, ("memory", "tree.py"))]
    assert found == ["pageinn.server.app", "pageinn.engine", "pageinn.model", "pageinn.memory"]
