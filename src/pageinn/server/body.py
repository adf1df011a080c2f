"""A request's body, read under a limit and parsed strictly."""

from __future__ import annotations

import json
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from pageinn.server.errors import ApiError, ClientGone, from_validation

T = TypeVar("T", bound=BaseModel)

#: The largest body accepted, in bytes.
DEFAULT_LIMIT = 8 * 1024 * 1024
#: What is read past the limit and thrown away, so that a client still sending gets to read the refusal.
_DISCARD = 64 * 1024 * 1024


async def read_json(request: Request, limit: int) -> dict[str, Any]:
    """The JSON object in a request's body of at most `limit` bytes.

    Raises ApiError (413 for a larger body, 400 for anything but one JSON object in UTF-8), ClientGone.
    """
    try:
        raw = await _read(request, limit)
    except ClientDisconnect as gone:
        raise ClientGone from gone
    return _parse(raw)


async def read_request(request: Request, kind: type[T], limit: int) -> T:
    """The body as a request of this kind. Raises ApiError, ClientGone."""
    data = await read_json(request, limit)
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise from_validation(error) from error


async def _read(request: Request, limit: int) -> bytes:
    body = bytearray()
    discarded = 0
    async for chunk in request.stream():
        if not discarded and len(body) + len(chunk) <= limit:
            body += chunk
            continue
        discarded += len(chunk)
        if discarded > _DISCARD:
            break
    if discarded:
        raise ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")
    return bytes(body)


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        data = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
        if b"\\u" in raw:
            json.dumps(data, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(f"the body is not UTF-8: byte {error.start} is wrong") from error
    except UnicodeEncodeError as error:
        raise _invalid(r"the body holds half of a surrogate pair, such as \ud800, which is no character") from error
    except RecursionError as error:
        raise _invalid("the body is nested too deeply") from error
    except ValueError as error:
        raise _invalid(f"the body is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise _invalid("the body must be a JSON object")
    return data


def _invalid(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_body")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
