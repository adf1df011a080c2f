"""An engine that does what a script says, behind the real server; for what no real engine does on command."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import httpx
import uvicorn

from pageinn.engine.client import EngineClient
from pageinn.engine.messages import Delta, EngineDeadError, FinishReason, GenerationRequest, ResetReport, TokenLogProb
from pageinn.engine.stats import Stats
from pageinn.server.app import create_app
from pageinn.server.served import Served

Script = Callable[[GenerationRequest], AsyncIterator[Delta]]
#: Of the servers made here, in bytes.
BODY_LIMIT = 1000


class ScriptedClient(EngineClient):
    """Answers by a script, and remembers what was begun and what was cancelled before its end."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.drained = False

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        done = False
        self.begun.append(request.request_id)
        try:
            async for delta in self.script(request):
                yield delta
            done = True
        finally:
            if not done:
                self.cancelled.append(request.request_id)

    async def reset_prefix_cache(self) -> ResetReport:
        raise EngineDeadError("step loop: boom")

    def stats(self) -> Stats:
        return Stats()

    @property
    def alive(self) -> bool:
        return False

    async def drain(self) -> None:
        self.drained = True


@contextmanager
def serving(script: Script, served: Callable[[EngineClient], Served]) -> Iterator[tuple[httpx.Client, ScriptedClient]]:
    """A real server around a script; gives the HTTP client and the scripted engine."""
    client = ScriptedClient(script)
    config = uvicorn.Config(create_app(served(client), body_limit=BODY_LIMIT), port=0, log_level="critical")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            yield http, client
    finally:
        server.should_exit = True
        thread.join(timeout=60)
    assert client.drained


def delta(request: GenerationRequest, text: str, end: FinishReason | None = None, index: int = 0) -> Delta:
    tokens = tuple(range(len(text)))
    logprobs = tuple(TokenLogProb(97, float("-inf"), ()) for _ in tokens) if request.sampling.logprobs == 0 else ()
    error = "out of blocks" if end is FinishReason.ERROR else None
    return Delta(request.request_id, index, text, tokens, logprobs, 3, end, error)


def events(text: str) -> list:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]
