"""POST /cache/public: compute a prefix into the scope that all may read."""

from __future__ import annotations

import uuid
from typing import Any

from fastapi import FastAPI, Request

from pageinn.memory.scopes import PUBLIC
from pageinn.server.prefixes import PREFIX_PROPERTIES, compute, read_prefix
from pageinn.server.served import Served

_BODY = {
    "type": "object",
    "description": "one of prompt and messages; tools go with messages",
    "properties": PREFIX_PROPERTIES,
}


def add_public(app: FastAPI, served: Served, body_limit: int) -> None:
    """Add the route. Who may call it is the matter of `access`."""

    @app.post(
        "/cache/public",
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _BODY}}}},
    )
    async def publish(http: Request) -> dict[str, Any]:
        """Publish a prefix that all may read; says how long it is and how much of it was public already."""
        prefix, _ = await read_prefix(http, served, body_limit)
        usage = await compute(http, served, f"public-{uuid.uuid4().hex}", prefix, PUBLIC)
        return {
            "object": "cache.public",
            "model": served.model_name,
            "tokens": len(prefix),
            "blocks": -(-len(prefix) // served.client.stats().block_size),
            "cached_tokens": usage.cached_tokens,
        }
