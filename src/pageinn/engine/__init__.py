"""The engine: a scheduler, a model and their step loop, for library use and behind the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pageinn.engine.config import EngineConfig
    from pageinn.engine.engine import Engine, Progress


def build(config: EngineConfig, progress: Progress | None = None) -> Engine:
    """Load what the config names. Imported late, so that messages and settings can be used without kernels."""
    from pageinn.engine.engine import Engine

    return Engine(config, progress)
