"""GET /cache/misses: the latest requests, what each found in the cache, and why it found no more."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

from fastapi import FastAPI, Request

from pageinn.engine.messages import Delta, GenerationRequest
from pageinn.memory.tokens import pack
from pageinn.misses.deploys import Deploys
from pageinn.misses.history import MOST_RECORDS
from pageinn.misses.record import Asked, Origin, Record
from pageinn.misses.recorder import Cache, Recorder
from pageinn.misses.shown import misses
from pageinn.server.errors import ApiError, short
from pageinn.server.served import Served

#: Records listed unless a request says how many.
_LISTED = 50


def recorder_of(served: Served) -> Recorder:
    """A recorder for what a server serves."""
    cache = Cache(served.client.stats().block_size, served.cache_config.get("prefix_cache") == "keep")
    decode = partial(served.tokenizer.decode, show_control=True)
    deploys = Deploys(decode, time.time, served.prompt_heads, served.show_prompt_text)
    return Recorder(cache, decode, time.time, deploys=deploys)


def add_misses(app: FastAPI, recorder: Recorder, show_text: bool) -> None:
    """Add the route. Who may call it is the matter of `access`."""

    @app.get("/cache/misses")
    async def cache_misses(http: Request) -> dict[str, Any]:
        """Why requests found no more of their prompts in the cache: the latest, and all that are kept by reason."""
        return await asyncio.to_thread(misses, recorder, _limit(http), show_text)


def _limit(http: Request) -> int:
    """How many records are to be listed. Raises ApiError."""
    text = http.query_params.get("limit", str(_LISTED))
    # Python reads no number of thousands of digits.
    if not text.isdecimal() or len(text) > len(str(MOST_RECORDS)) or int(text) > MOST_RECORDS:
        message = f"limit is {short(text)}; give a whole number from 0 to {MOST_RECORDS}"
        raise ApiError(400, message, param="limit", code="invalid_value")
    return int(text)


class Watch:
    """One request seen by its deltas: recorded with the first one, and with its first choice's answer at its end."""

    def __init__(self, recorder: Recorder, request: GenerationRequest) -> None:
        self._recorder = recorder
        self._opened = recorder.open(_asked(request))
        self._record: Record | None = None
        self._answer: list[int] = []

    def see(self, delta: Delta) -> None:
        """Take in a delta that did not turn the request away."""
        if self._record is None:
            origin = None if delta.sources is None else Origin(*delta.sources)
            self._record = self._recorder.begin(self._opened, delta.cached_tokens, origin)
        if delta.index == 0:
            self._answer += delta.tokens
            if delta.finish_reason is not None:
                self._recorder.finish(self._record, self._answer)


def _asked(request: GenerationRequest) -> Asked:
    return Asked(request.request_id, request.scope, pack(request.prompt), _why_not(request), request.store)


def _why_not(request: GenerationRequest) -> str:
    """Why a request does not read the cache, or ""."""
    if request.sampling.prompt_logprobs is not None:
        return "it asks for log-probabilities of its prompt"
    if request.read_cache:
        return ""
    return "skip_reading_prefix_cache" if request.store else "no part in reuse: share = false, or both skip fields"
