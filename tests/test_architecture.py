"""The house: a room imports only from rooms below it, and the two lower floors see no tensor, clock or socket."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pageinn

SOURCE = Path(pageinn.__file__).parent
FLOORS = {
    "memory": 1,
    "scheduling": 2,
    "text": 2,
    "kernels": 3,
    "store": 3,
    "model": 3,
    "engine": 4,
    "server": 5,
    "cli": 5,
}
#: Rooms of one floor that may build on each other, one way.
BESIDE = {("store", "kernels"), ("model", "kernels"), ("model", "store"), ("cli", "server")}
#: What memory and scheduling must not see.
FORBIDDEN = {"numpy", "torch", "time", "datetime", "socket", "asyncio", "threading", "random"}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield node.module or ""


def test_every_room_is_on_a_floor() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == set(FLOORS)


@pytest.mark.parametrize("room", FLOORS)
def test_rooms_import_downwards(room: str) -> None:
    for path in (SOURCE / room).glob("*.py"):
        for name in imports(path):
            other = name.split(".")[1] if name.startswith("pageinn.") else room
            allowed = other == room or FLOORS[other] < FLOORS[room] or (room, other) in BESIDE
            assert allowed, f"{path.relative_to(SOURCE)} imports {name}"


@pytest.mark.parametrize("room", ["memory", "scheduling"])
def test_lower_floors_see_no_tensor_clock_or_socket(room: str) -> None:
    for path in (SOURCE / room).glob("*.py"):
        seen = {name.split(".")[0] for name in imports(path)} & FORBIDDEN
        assert not seen, f"{path.relative_to(SOURCE)} imports {seen}"


def test_the_base_install_imports_no_torch() -> None:
    for path in SOURCE.rglob("*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & {"torch", "transformers"}, path
