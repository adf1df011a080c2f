"""A tiny random model, and engines on one folder of a disk cache, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from disk_runs import BLOCKS, Failing, Start, price
from engine_runs import engine_of
from tiny import write_tiny_llama

from pageinn.engine.engine import Engine


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("engine") / "tiny.gguf", seed=1)


@pytest.fixture
def disk_path(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def computing_is_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model computes a prompt faster than a disk finds it, which may be busy with something else."""
    price(monkeypatch, 1.0)
    monkeypatch.setattr("pageinn.engine.prefetch._LATE_SECONDS", 60.0)


@pytest.fixture
def start(tiny_path: Path, disk_path: Path) -> Iterator[Start]:
    """Starts an engine on the folder; the one before is closed first, as by a restart."""
    made: list[Engine] = []

    def start(model: Path = tiny_path, **settings: int | str) -> Engine:
        if made:
            made[-1].close()
        made.append(engine_of(model, BLOCKS, **{"disk_cache": disk_path, **settings}))
        return made[-1]

    yield start
    if made:
        made[-1].close()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Failing]]:
    monkeypatch.setattr("pageinn.engine.engine.DiskStore", Failing)
    monkeypatch.setattr("pageinn.engine.disk_tier.CLOSE_SECONDS", 0.5)
    Failing.broken, Failing.go = frozenset(), threading.Event()
    yield Failing
    Failing.go.set()
    Failing.broken = frozenset()
