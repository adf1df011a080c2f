"""What the page shows, as one JSON text a second for all who look."""

from __future__ import annotations

import asyncio
import gzip
import os
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson

from pageinn import __version__
from pageinn.engine.messages import EngineDeadError
from pageinn.engine.stats import Stats
from pageinn.memory.tokens import TOKEN_BYTES
from pageinn.misses.shown import misses
from pageinn.server.dashboard.branches import Texts, branches
from pageinn.server.dashboard.floor import floor_plan
from pageinn.server.dashboard.history import INTERVAL, History, percentile, sample_of
from pageinn.server.dashboard.snapshots import Snapshot, Snapshots
from pageinn.server.served import Served
from pageinn.watch.sample import Sample
from pageinn.watch.windows import Window, last

#: How long a text is good for, in seconds. Somewhat less than the page's second, which would else see each one twice.
FRESH = 0.9
#: Seconds that rates on the page are taken over, and those of rarer events.
MINUTE, EVENTS = 60.0, 300.0
_KEY_BYTES = 32


class Feed:
    """The history, and the page's newest text."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self.history = History()
        self._snapshots = Snapshots(served.client.view_memory)
        self._key = os.urandom(_KEY_BYTES)
        decode = served.tokenizer.decode
        self._texts = Texts(lambda tokens: decode(tokens, show_control=True)) if served.show_prompt_text else None
        self._misses: dict[str, Any] = {}
        self._misses_due = float("-inf")
        self._lock = asyncio.Lock()
        self._body = b""
        self._made = float("-inf")
        self._began = time.time()

    @asynccontextmanager
    async def recording(self) -> AsyncIterator[None]:
        """Remember a sample of what the engine counts, every INTERVAL."""
        task = asyncio.create_task(self._record())
        try:
            yield
        finally:
            task.cancel()

    async def _record(self) -> None:
        while True:
            self.history.add(self._sample())
            await asyncio.sleep(INTERVAL)

    def _sample(self) -> Sample:
        stats = self._served.client.stats()
        facts = {"block_size": str(stats.block_size), **self._served.cache_config}
        return sample_of(stats, time.time(), facts)

    async def body(self) -> bytes:
        """The text, as JSON under gzip. Raises EngineDeadError when the loop has ended."""
        async with self._lock:
            if not self._served.client.alive:
                raise EngineDeadError("the engine has stopped")
            if time.monotonic() - self._made >= FRESH:
                snapshot = await self._snapshots.newest()
                latest = self._sample()
                samples, columns = [*self.history.samples, latest], self.history.series(latest)
                stats = self._served.client.stats()
                self._body = await asyncio.to_thread(self._text, snapshot, stats, samples, columns)
                self._made = time.monotonic()
            return self._body

    def _text(
        self, snapshot: Snapshot | None, stats: Stats, samples: list[Sample], columns: Mapping[str, Any]
    ) -> bytes:
        state = {
            "server": {
                "model": self._served.model_name,
                "version": __version__,
                "began": self._began,
                "max_model_len": self._served.max_model_len,
                "block_size": stats.block_size,
                "cache": dict(self._served.cache_config),
            },
            "now": now(stats, samples),
            "series": columns,
            "alarms": [
                {"key": event.alarm.key, "line": event.alarm.line, "since": event.since, "until": event.until}
                for event in self.history.events
            ],
            "tenants": tenants(stats),
            "misses": self._why(),
            "memory": None if snapshot is None else self._memory(snapshot, stats.block_size),
        }
        return gzip.compress(orjson.dumps(state), compresslevel=1)

    def _why(self) -> dict[str, Any]:
        """Why prompts were not found, without single requests; looked at every INTERVAL."""
        if self._served.misses is not None and time.monotonic() >= self._misses_due:
            self._misses = misses(self._served.misses, 0, self._served.show_prompt_text)
            self._misses_due = time.monotonic() + INTERVAL
        return self._misses

    def _memory(self, snapshot: Snapshot, block_size: int) -> dict[str, Any]:
        floor = floor_plan(snapshot.memory)
        return {
            "age": round(time.monotonic() - snapshot.taken, 1),
            "counts": floor.counts,
            "tenants": floor.tenants,
            "cells": b64encode(floor.cells).decode(),
            "tree": branches(snapshot.memory, self._key, block_size * TOKEN_BYTES, self._texts),
        }


def now(stats: Stats, samples: list[Sample]) -> dict[str, Any]:
    """Gauges as they are, and what happened of late."""
    minute, events = last(samples, MINUTE), last(samples, EVENTS)
    return {
        "time": time.time(),
        "hit_rate": stats.window_hits / stats.window_queries if stats.window_queries else None,
        "queries": stats.prefix_cache_queries,
        "hits": stats.prefix_cache_hits,
        "first_token": minute.first_token,
        "first_token_p95": percentile(minute, 0.95),
        "first_tokens": minute.change("first_tokens"),
        "prompt_rate": _rate(minute, "prompt_tokens"),
        "generated_rate": _rate(minute, "generated"),
        "running": stats.running,
        "waiting": stats.waiting,
        "queued_tokens": stats.queued_tokens,
        "thrashing": stats.thrashing,
        "watermark": stats.preemption_watermark,
        "events_seconds": events.seconds,
        "preemptions": events.change("preemptions"),
        "recomputed": events.change("recomputed"),
        "evicted": events.change("evicted"),
        "refused": events.refused(),
        "preemptions_by_way": stats.preemptions_by_way,
        "blocks": {
            "total": stats.blocks_total,
            "free": stats.blocks_free,
            "kept": stats.blocks_kept,
            "in_use": stats.blocks_in_use,
            "retained": stats.blocks_retained,
        },
        "host": {"free": stats.host_blocks_free, "kept": stats.host_blocks_kept, "held": stats.host_blocks_held},
        "disk": None if stats.disk is None else {"blocks": stats.disk.blocks, "bytes": stats.disk.nbytes},
    }


def tenants(stats: Stats) -> list[dict[str, Any]]:
    """Counters since the start and blocks, by tenant."""
    return [
        {
            "name": name,
            "queries": figures.prefix_cache_queries,
            "hits": figures.prefix_cache_hits,
            "evicted": figures.evicted_blocks,
            "preemptions": figures.preemptions,
            "in_use": figures.blocks.active,
            "kept": figures.blocks.kept,
        }
        for name, figures in stats.tenants.items()
    ]


def _rate(window: Window, name: str) -> float | None:
    change = window.change(name)
    return None if change is None or window.seconds <= 0 else change / window.seconds
