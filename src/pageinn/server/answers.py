"""A run's answer on its way to the client, whole or as server-sent events."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from pageinn.server.cache_match import match_header
from pageinn.server.disconnect import until_gone
from pageinn.server.errors import ApiError, ClientGone, internal
from pageinn.server.generation import Piece, Run, Usage, collect, pieces
from pageinn.server.served import Served
from pageinn.server.shapes import Shape

log = logging.getLogger(__name__)


async def answer(http: Request, served: Served, run: Run, shape: Shape) -> Response:
    """The response to a run. Raises ApiError while nothing has been sent, ClientGone when nobody is left."""
    stream = pieces(served, run)
    envelope = {"id": run.id, "created": int(time.time()), "model": served.model_name}
    if run.stream:
        first = await until_gone(http.receive, _first(stream))
        return _EventStream(run, shape, envelope, first, stream, partial(match_header, http, served, run))
    async with aclosing(stream):
        answers, usage = await until_gone(http.receive, collect(stream, run))
    choices = [shape.whole(i, whole) for i, whole in enumerate(answers)]
    body = {**envelope, "object": shape.whole_object, "choices": choices, "usage": usage.as_json()}
    return JSONResponse(body, headers=await match_header(http, served, run))


async def _first(stream: AsyncGenerator[Piece, None]) -> Piece:
    """The first piece: until it is here, a refusal can still be a status code."""
    return await anext(stream)


class _EventStream(Response):
    """Server-sent events: pieces, one usage chunk if asked for, [DONE]. The client's going cancels the run.

    more_headers: asked once the first piece is there.
    """

    def __init__(
        self,
        run: Run,
        shape: Shape,
        envelope: dict[str, Any],
        first: Piece,
        rest: AsyncGenerator[Piece, None],
        more_headers: Callable[[], Awaitable[Mapping[str, str]]],
    ) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(headers=headers, media_type="text/event-stream")
        del self.headers["content-length"]
        self._shape = shape
        self._envelope = {**envelope, "object": shape.piece_object}
        self._include_usage = run.include_usage
        self._usage = Usage(run)
        self._first = first
        self._rest = rest
        self._more_headers = more_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest):
            try:
                await until_gone(receive, self._send_all(send))
            except ClientGone:
                return

    async def _send_all(self, send: Send) -> None:
        self.headers.update(await self._more_headers())
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._events()) as events:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncGenerator[bytes, None]:
        try:
            event = self._event(self._first)
            if event:
                yield event
            async for piece in self._rest:
                event = self._event(piece)
                if event:
                    yield event
        except ApiError as error:
            yield _encode(error.body())
            return
        except Exception:  # the status has been sent; the client must still learn that this is not the end
            log.exception("a stream failed")
            yield _encode(internal().body())
            return
        if self._include_usage:
            yield _encode({**self._envelope, "choices": [], "usage": self._usage.as_json()})
        yield b"data: [DONE]\n\n"

    def _event(self, piece: Piece) -> bytes | None:
        self._usage.add(piece)
        choice = self._shape.piece(piece.choice, piece.delta)
        if choice is None:
            return None
        chunk = {**self._envelope, "choices": [choice]}
        return _encode({**chunk, "usage": None} if self._include_usage else chunk)


def _encode(chunk: dict[str, Any]) -> bytes:
    data = json.dumps(chunk, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"data: {data}\n\n".encode()
