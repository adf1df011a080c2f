"""GET /ready: whether to send requests here."""

from __future__ import annotations

from enum import StrEnum

from fastapi import FastAPI
from starlette.responses import JSONResponse, Response

from pageinn.server.errors import ApiError
from pageinn.server.served import Served


class Phase(StrEnum):
    """Where the server is in its life; in `app.state.phase`."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "shutting down"


def add_ready(app: FastAPI, served: Served) -> None:
    """Add the route."""

    @app.get("/ready")
    async def ready() -> Response:
        """200 from the moment that requests are served until the first signal to stop, else 503."""
        if not served.client.alive:
            raise ApiError(503, "the engine has stopped", kind="server_error", code="engine_dead")
        if app.state.phase is not Phase.READY:
            raise ApiError(503, f"the server is {app.state.phase}", kind="server_error", code="not_ready")
        return JSONResponse({"status": "ready"})
