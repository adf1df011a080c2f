"""Engines over a disk cache: what they are asked, what became of it, and disks that fail."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from engine_runs import Answer, ChoiceKey, request, tokens

from pageinn.engine.config import EngineConfig
from pageinn.engine.engine import Engine
from pageinn.engine.messages import GenerationRequest, SamplingParams
from pageinn.engine.stats import DiskStats
from pageinn.memory.scopes import Scope
from pageinn.scheduling.cost import Rates
from pageinn.store.disk import Address, DiskError, DiskStore, Entry

SAMPLED = SamplingParams(max_tokens=12, temperature=0.8, seed=7, logprobs=2, ignore_eos=True)
BLOCKS = 400
#: 100 tokens are six whole blocks.
WHOLE = 96

Start = Callable[..., Engine]


def price(monkeypatch: pytest.MonkeyPatch, seconds_per_token: float) -> None:
    monkeypatch.setattr(Rates, "recompute", lambda self, start, end: seconds_per_token * (end - start))


def plain(engine: Engine) -> EngineConfig:
    """The same without a disk."""
    return replace(engine.config, disk_cache=None, disk_cache_bytes=EngineConfig.disk_cache_bytes)


def disk(engine: Engine) -> DiskStats:
    stats = engine.core.stats().disk
    assert stats is not None
    return stats


def prompts(seed: int, count: int = 4, scope: Scope | None = None) -> list[GenerationRequest]:
    rng = random.Random(seed)
    made = [request(f"r{index}", tokens(rng, 100), SAMPLED) for index in range(count)]
    return made if scope is None else [replace(each, scope=scope) for each in made]


def named(seed: int) -> list[GenerationRequest]:
    return [replace(each, request_id=f"{seed} {each.request_id}") for each in prompts(seed)]


def bits(answers: dict[ChoiceKey, Answer]) -> dict[ChoiceKey, object]:
    return {key: answer.bits for key, answer in answers.items()}


def cached(answers: dict[ChoiceKey, Answer]) -> list[int]:
    return [answer.cached for answer in answers.values()]


def nothing_held(engine: Engine) -> bool:
    memory = engine.core.scheduler.memory
    memory.check()
    return memory.usage().in_use == 0 and memory.host_usage().held == 0


class Failing(DiskStore):
    """Fails in the ways that `broken` names."""

    broken: frozenset[str] = frozenset()
    go = threading.Event()

    def read(self, address: Address) -> bytes | None:
        if "read" in self.broken:
            raise DiskError("no", damaged=False)
        if "read once" in self.broken:
            type(self).broken = frozenset()
            raise OSError(5, "Input/output error")
        if "hang" in self.broken:
            self.go.wait()
        payload = super().read(address)
        return payload[:-1] if payload and "short" in self.broken else payload

    def write(self, entries: Sequence[Entry]) -> list[bytes]:
        if "full" in self.broken:
            raise DiskError("database or disk is full", damaged=False)
        if "hang" in self.broken:
            self.go.wait()
        return super().write(entries)

    def keys(self) -> list[bytes]:
        if "keys" in self.broken:
            raise DiskError("malformed", damaged=True)
        return super().keys()
