"""X-Request-Id: taken from the client where it is usable, made up where not, sent back and logged."""

from __future__ import annotations

import logging
import re
import time
import uuid
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

HEADER = b"x-request-id"
_USABLE = re.compile(rb"[\x21-\x7e]{1,128}")
#: Where the id stands in the ASGI scope.
_ID = "pageinn.request_id"


class RequestIds:
    """ASGI middleware: every answer carries an id, and every POST leaves a line with it in the log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, under its id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = scope[_ID] = _given(scope) or uuid.uuid4().hex
        began = time.monotonic()
        status: int | str = "failed"

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (HEADER, name.encode())]}
            await send(message)

        try:
            await self._app(scope, receive, tagged)
        finally:
            if scope["method"] == "POST":
                seconds = time.monotonic() - began
                log.info("request %s: POST %s: %s in %.3f s", name, quote(scope["path"]), status, seconds)


def _given(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == HEADER and _USABLE.fullmatch(value):
            return str(value, "ascii")
    return None


def id_header(scope: Scope) -> dict[str, str]:
    """The header, for an answer that does not pass the middleware."""
    return {HEADER.decode(): scope[_ID]}
