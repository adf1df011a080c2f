"""Errors as OpenAI words them: {"error": {"message", "type", "param", "code"}}, the message one line."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from pageinn.engine.messages import BusyError, BusyReason, EngineDeadError, RefusedError

#: How much of a wrong value an error message repeats, in characters.
_SHOWN = 60


class ApiError(Exception):
    """A request that gets no answer. `param` names the field, `code` is for programs, `retry_after` in seconds."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


class ClientGone(Exception):  # noqa: N818  (nobody is left to tell of an error)
    """The client closed the connection before its answer was complete."""


def from_engine(error: RefusedError | BusyError | EngineDeadError) -> ApiError:
    """What the engine says, for the client: 429 where more was sent than may wait, 503 for one that waited in vain."""
    if isinstance(error, BusyError):
        reason, retry_after = error.busy
        if reason is BusyReason.QUEUE_TIMEOUT:
            return ApiError(503, str(error), kind="server_error", code="queue_timeout", retry_after=retry_after)
        return ApiError(429, str(error), kind="rate_limit_error", code="queue_full", retry_after=retry_after)
    if isinstance(error, RefusedError):
        return ApiError(400, str(error), param=error.param, code="request_refused")
    return ApiError(503, str(error), kind="server_error", code="engine_dead")


def engine_failed(message: str) -> ApiError:
    """A request that the engine accepted and could not finish."""
    return ApiError(500, message, kind="server_error", code="engine_error")


def internal() -> ApiError:
    """Something unexpected; what it was is in the server's log."""
    return ApiError(500, "the server made a mistake; its log says more", kind="server_error", code="internal_error")


def from_validation(error: ValidationError) -> ApiError:
    """The first thing wrong with a request, named."""
    first = error.errors(include_url=False, include_context=False)[0]
    param = _path(first["loc"])
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"field '{param}' is not supported", param=param, code="unsupported_parameter")
    if first["type"] == "missing":
        return ApiError(400, f"field '{param}' is missing", param=param, code="missing_required_parameter")
    what = first["msg"].removeprefix("Value error, ")
    shown = "" if first["type"] == "value_error" else f", not {short(first['input'])}"
    where = f"{param}: " if param else ""
    return ApiError(400, f"{where}{what[:1].lower()}{what[1:]}{shown}", param=param or None, code="invalid_value")


def _path(loc: tuple[int | str, ...]) -> str:
    """messages[0].content, as OpenAI writes it."""
    path = ""
    for step in loc:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return path.removeprefix(".")


def short(value: object) -> str:
    """A wrong value as a message shows it, cut where it is long."""
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
