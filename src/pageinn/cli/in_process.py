"""The server's application without a socket: an httpx transport that hands requests to it and streams what comes.

httpx's own ASGITransport gives a response only when it is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.types import ASGIApp


class InProcess(httpx.AsyncBaseTransport):
    """Sends each request to an ASGI application on the same event loop. Closing a response early is a disconnect."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The response once it has begun. Raises what the application raises before that."""
        exchange = _Exchange(await request.aread())
        exchange.begin(self._app, _scope(request))
        try:
            status, headers = await exchange.started()
        except BaseException:
            await exchange.aclose()
            raise
        return httpx.Response(status, headers=headers, stream=exchange)


class _Exchange(httpx.AsyncByteStream):
    """One request's messages to and from the application."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self._start: asyncio.Future[tuple[int, list[tuple[bytes, bytes]]]] = asyncio.Future()
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def begin(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        self._task = asyncio.create_task(self._run(app, scope))

    async def _run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self._receive, self._send)
            if not self._start.done():
                self._start.set_exception(RuntimeError("the application ended without an answer"))
        except Exception as error:
            # An application that has answered 500 raises again for its server's log: the answer says enough.
            if not self._start.done():
                self._start.set_exception(error)
        finally:
            self._pieces.put_nowait(None)

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            if not self._start.done():
                self._start.set_result((message["status"], list(message["headers"])))
        elif message["body"]:
            self._pieces.put_nowait(message["body"])

    async def started(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        return await asyncio.shield(self._start)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece

    async def aclose(self) -> None:
        self._gone.set()
        self._start.cancel()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


def _scope(request: httpx.Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.split(b"?")[0],
        "query_string": request.url.query,
        "root_path": "",
        "server": ("in-process", None),
        "client": ("in-process", 0),
    }
