"""Where `chat` and `run` send requests: a server by its URL, or an engine in this process behind the same code."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

#: A key is not for the command line, which others can read.
KEY_VARIABLE = "PAGEINN_API_KEY"
_TIMEOUT = httpx.Timeout(None, connect=10)


class UnavailableError(RuntimeError):
    """There is nobody to answer: a server that cannot be asked, or a model that does not load. One line says why."""


@asynccontextmanager
async def connect(args: Namespace) -> AsyncIterator[httpx.AsyncClient]:
    """A client for what the command line names; an engine in this process ends with it.

    Raises UnavailableError if the model does not load; whether a server answers, `model_of` finds out.
    """
    if args.url is not None:
        key = os.environ.get(KEY_VARIABLE)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        # As many connections as there are requests at once: who asks bounds those.
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=base_of(args.url), headers=headers, timeout=_TIMEOUT, limits=limits
        ) as client:
            yield client
        return
    from pageinn.cli.in_process import InProcess
    from pageinn.cli.loading import LOAD_ERRORS, load
    from pageinn.server.app import create_app

    try:
        served = load(args).served
    except LOAD_ERRORS as error:
        raise UnavailableError(str(error)) from error
    transport = InProcess(create_app(served))
    try:
        async with httpx.AsyncClient(base_url="http://in-process", transport=transport, timeout=_TIMEOUT) as client:
            yield client
    finally:
        await served.client.drain()


def base_of(url: str) -> str:
    """The server's root. People give it with /v1, as OpenAI's clients want it, and without."""
    return url.rstrip("/").removesuffix("/v1")


async def model_of(client: httpx.AsyncClient) -> str:
    """The name of the model that is served. Raises UnavailableError."""
    try:
        got = await client.get("/v1/models")
    except (httpx.TransportError, httpx.InvalidURL) as error:
        raise UnavailableError(f"cannot reach {client.base_url}: {str(error) or type(error).__name__}") from error
    if got.status_code != httpx.codes.OK:
        hint = f"; give a key in the variable {KEY_VARIABLE}" if got.status_code in (401, 403) else ""
        raise UnavailableError(f"{client.base_url} answers {got.status_code}: {error_of(got)}{hint}")
    try:
        return str(got.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as error:
        raise UnavailableError(f"{client.base_url} is no OpenAI-compatible server: it lists no model") from error


def error_of(response: httpx.Response) -> str:
    """What a refusal says, in one line. The response must have been read."""
    try:
        body: Any = response.json()
        return " ".join(str(body["error"]["message"]).split())
    except (ValueError, LookupError, TypeError):
        return " ".join(response.text.split())[:200] or response.reason_phrase
