"""Views of the memory for all who look, taken on demand and seldom."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from pageinn.engine.messages import EngineDeadError, TakenView
from pageinn.memory.view import MemoryView

log = logging.getLogger("pageinn")

#: Seconds between two views at least, and which part of its time the step loop gives to them at most.
PAUSE, PART = 1.0, 0.005
#: How long somebody who looks waits for a new view, in seconds; a step may take longer.
PATIENCE = 0.5


class Snapshot(NamedTuple):
    """What was seen, and when by the monotonic clock."""

    memory: MemoryView
    taken: float


class Snapshots:
    """The newest view. Nothing is done while nobody asks."""

    def __init__(self, take: Callable[[], Awaitable[TakenView]]) -> None:
        self._take = take
        self._newest: Snapshot | None = None
        self._due = 0.0
        self._task: asyncio.Task[None] | None = None

    async def newest(self) -> Snapshot | None:
        """A view, no older than PAUSE where that can be had; None if there is none yet."""
        if self._task is None and time.monotonic() >= self._due:
            self._task = asyncio.create_task(self._refresh())
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=PATIENCE)
        return self._newest

    async def _refresh(self) -> None:
        try:
            view, seconds = await self._take()
        except EngineDeadError as error:
            log.debug("no view of the memory: %s", error)
        else:
            now = time.monotonic()
            self._newest = Snapshot(view, now)
            self._due = now + max(PAUSE, seconds / PART)
        finally:
            self._task = None
