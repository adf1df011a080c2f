"""Prefixes that an admin has computed: what a body names, and the computing itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from fastapi import Request
from pydantic import ValidationError

from pageinn.engine.messages import GenerationRequest, SamplingParams
from pageinn.memory.scopes import Scope
from pageinn.server.body import read_json
from pageinn.server.disconnect import until_gone
from pageinn.server.errors import ApiError, from_validation
from pageinn.server.generation import Run, Usage, collect, pieces
from pageinn.server.prompts import chat_tokens, check_model, completion_tokens
from pageinn.server.protocol import ChatRequest, CompletionRequest
from pageinn.server.served import Served

#: What belongs to a prefix of each kind; all else of a request is about its answer, and there is none.
_PROMPT = ("model", "prompt")
_MESSAGES = ("model", "messages", "tools")

#: The fields of a prefix, for the OpenAPI page.
PREFIX_PROPERTIES = {
    "model": {"type": "string"},
    "prompt": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
    "messages": {"type": "array", "items": {"$ref": "#/components/schemas/Message"}},
    "tools": {"type": "array", "items": {"type": "object"}},
}


async def read_prefix(
    http: Request, served: Served, body_limit: int, own: Sequence[str] = ()
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The tokens that a body names, and its fields named in `own`. Raises ApiError, ClientGone."""
    body = await read_json(http, body_limit)
    mode = served.cache_config["prefix_cache"]
    if mode != "keep":
        message = f"nothing is kept with --prefix-cache {mode}; start the server with --prefix-cache keep"
        raise ApiError(409, message, code="nothing_is_kept")
    return await asyncio.to_thread(_prefix, served, body, own)


def _prefix(served: Served, body: dict[str, Any], own: Sequence[str]) -> tuple[tuple[int, ...], dict[str, Any]]:
    body = {name: value for name, value in body.items() if value is not None}
    if ("prompt" in body) == ("messages" in body):
        raise ApiError(400, "give one of prompt and messages", code="invalid_value")
    fields = _PROMPT if "prompt" in body else _MESSAGES
    for name in body:
        if name not in (*fields, *own):
            message = f"field '{name}' is not supported here; {', '.join((*fields, *own))} are"
            raise ApiError(400, message, param=name, code="unsupported_parameter")
    extra = {name: body.pop(name) for name in own if name in body}
    try:
        request = (CompletionRequest if "prompt" in body else ChatRequest).model_validate(body)
    except ValidationError as error:
        raise from_validation(error) from error
    check_model(served, request.model)
    if isinstance(request, ChatRequest):
        return chat_tokens(served, request, add_generation_prompt=False), extra
    prompts = completion_tokens(served, request.prompt)
    if len(prompts) > 1:
        raise ApiError(
            400, f"{len(prompts)} prompts are given; give one at a time", param="prompt", code="invalid_value"
        )
    return prompts[0], extra


async def compute(
    http: Request, served: Served, name: str, prefix: tuple[int, ...], scope: Scope, pin: str | None = None
) -> Usage:
    """Compute a prefix into a scope, and pin it under a name if there is one. Raises ApiError, ClientGone."""
    # One token is the least that can be asked for. Its own keys and values are never computed, so nothing of it is
    # kept.
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    run = Run(name, [GenerationRequest(name, prefix, sampling, scope, pin=pin)], n=1, stream=False, include_usage=False)
    stream = pieces(served, run)
    async with aclosing(stream):
        _, usage = await until_gone(http.receive, collect(stream, run))
    return usage
