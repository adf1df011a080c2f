"""POST /cache/public: compute a prefix into the scope that all may read."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI, Request
from pydantic import ValidationError

from pageinn.engine.messages import GenerationRequest, SamplingParams
from pageinn.memory.scopes import PUBLIC
from pageinn.server.body import read_json
from pageinn.server.disconnect import until_gone
from pageinn.server.errors import ApiError, from_validation
from pageinn.server.generation import Run, collect, pieces
from pageinn.server.prompts import chat_tokens, check_model, completion_tokens
from pageinn.server.protocol import ChatRequest, CompletionRequest
from pageinn.server.served import Served

#: What belongs to a prefix of each kind; all else of a request is about its answer, and there is none.
_PROMPT = ("model", "prompt")
_MESSAGES = ("model", "messages", "tools")

_BODY = {
    "type": "object",
    "description": "one of prompt and messages; tools go with messages",
    "properties": {
        "model": {"type": "string"},
        "prompt": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
        "messages": {"type": "array", "items": {"$ref": "#/components/schemas/Message"}},
        "tools": {"type": "array", "items": {"type": "object"}},
    },
}


def add_public(app: FastAPI, served: Served, body_limit: int) -> None:
    """Add the route. Who may call it is the matter of `access`."""

    @app.post(
        "/cache/public",
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _BODY}}}},
    )
    async def publish(http: Request) -> dict[str, Any]:
        """Publish a prefix that all may read; says how long it is and how much of it was public already."""
        body = await read_json(http, body_limit)
        mode = served.cache_config["prefix_cache"]
        if mode != "keep":
            message = f"nothing is kept with --prefix-cache {mode}; start the server with --prefix-cache keep"
            raise ApiError(409, message, code="nothing_is_kept")
        prefix = await asyncio.to_thread(_prefix, served, body)
        # One token is the least that can be asked for. Its own keys and values are never computed, so nothing of it
        # is published.
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        name = f"public-{uuid.uuid4().hex}"
        request = GenerationRequest(name, prefix, sampling, PUBLIC)
        run = Run(name, [request], n=1, stream=False, include_usage=False)
        stream = pieces(served.client, run)
        async with aclosing(stream):
            _, usage = await until_gone(http.receive, collect(stream, run))
        block_size = served.client.stats().block_size
        return {
            "object": "cache.public",
            "model": served.model_name,
            "tokens": len(prefix),
            "blocks": -(-len(prefix) // block_size),
            "cached_tokens": usage.as_json()["prompt_tokens_details"]["cached_tokens"],
        }


def _prefix(served: Served, body: dict[str, Any]) -> tuple[int, ...]:
    """The tokens to publish. Raises ApiError."""
    body = {name: value for name, value in body.items() if value is not None}
    if ("prompt" in body) == ("messages" in body):
        raise ApiError(400, "give one of prompt and messages", code="invalid_value")
    fields = _PROMPT if "prompt" in body else _MESSAGES
    for name in body:
        if name not in fields:
            message = f"field '{name}' is not supported here; {', '.join(fields)} are"
            raise ApiError(400, message, param=name, code="unsupported_parameter")
    try:
        request = (CompletionRequest if "prompt" in body else ChatRequest).model_validate(body)
    except ValidationError as error:
        raise from_validation(error) from error
    check_model(served, request.model)
    if isinstance(request, ChatRequest):
        return chat_tokens(served, request, add_generation_prompt=False)
    prompts = completion_tokens(served, request.prompt)
    if len(prompts) > 1:
        raise ApiError(
            400, f"{len(prompts)} prompts are given; publish one at a time", param="prompt", code="invalid_value"
        )
    return prompts[0]
