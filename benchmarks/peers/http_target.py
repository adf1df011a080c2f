"""An engine behind an OpenAI-compatible HTTP server."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import aiohttp
import orjson

from .load import Answer, LoadError, Messages

#: How a server is asked for the ids of an answer's tokens: path, body and what is to be read from the reply.
AskTokens = Callable[[Sequence[int], int], tuple[str, dict[str, Any], Callable[[Any], list[int]]]]
JSON = {"Content-Type": "application/json"}


class Dialect(NamedTuple):
    """Where servers differ. ready: a path that answers 200 once it serves. version: a path and keys into its reply."""

    name: str
    precision: str
    ready: str
    version: tuple[str, ...]
    ask_tokens: AskTokens


class HttpTarget:
    """Streams as a user's client does, a connection for each request. Use as an async context."""

    def __init__(self, url: str, dialect: Dialect) -> None:
        self._url = url
        self._dialect = dialect
        self.precision = dialect.precision

    async def __aenter__(self) -> HttpTarget:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None),
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
        )
        path, *keys = self._dialect.version
        async with self._session.get(self._url + path) as response:
            self.version = functools.reduce(dict.__getitem__, keys, await response.json())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def complete(self, prompt: Sequence[int], max_tokens: int) -> Answer:
        return await self._stream("/v1/completions", {"prompt": list(prompt)}, max_tokens)

    async def chat(self, messages: Messages, max_tokens: int) -> Answer:
        return await self._stream("/v1/chat/completions", {"messages": messages}, max_tokens)

    async def tokens(self, prompt: Sequence[int], max_tokens: int) -> list[int]:
        path, body, read = self._dialect.ask_tokens(prompt, max_tokens)
        async with self._session.post(self._url + path, json=body) as response:
            if response.status != 200:
                raise LoadError(f"{path} answered {response.status}: {(await response.text())[:200]}")
            return read(orjson.loads(await response.read()))

    async def _stream(self, path: str, asked: dict[str, Any], max_tokens: int) -> Answer:
        body = {
            "model": "m",
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **asked,
        }
        began, first, text, usage = time.perf_counter(), None, "", None
        async with self._session.post(self._url + path, data=orjson.dumps(body), headers=JSON) as response:
            if response.status != 200:
                raise LoadError(f"{path} answered {response.status}: {(await response.text())[:200]}")
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                event = orjson.loads(line[6:])
                if "error" in event:
                    raise LoadError(f"{path}: {event['error']}")
                for choice in event.get("choices") or ():
                    # A chat's first event often brings the role alone.
                    piece = choice["text"] if "text" in choice else choice["delta"].get("content")
                    if piece is not None and (piece or "text" in choice):
                        first = first or time.perf_counter()
                        text += piece
                usage = event.get("usage") or usage
        if usage is None or first is None:
            raise LoadError(f"{path}: the stream ended without {'a token' if first is None else 'usage'}")
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return Answer(first - began, usage["prompt_tokens"], usage["completion_tokens"], cached, text)
