"""/cache/pins: prefixes that stay in the cache until the operator takes them away."""

from __future__ import annotations

import uuid
from typing import Any

from fastapi import FastAPI, Request

from pageinn.memory.retention import Pin
from pageinn.memory.scopes import DEFAULT, PUBLIC, Scope
from pageinn.server.errors import ApiError, short
from pageinn.server.prefixes import PREFIX_PROPERTIES, compute, read_prefix
from pageinn.server.served import Served
from pageinn.server.tenants import Keyring

_OWN = ("tenant", "cache_salt")
_BODY = {
    "type": "object",
    "description": "one of prompt and messages; tools go with messages; without a tenant the prefix is public",
    "properties": {**PREFIX_PROPERTIES, "tenant": {"type": "string"}, "cache_salt": {"type": "string"}},
}


def add_pins(app: FastAPI, served: Served, body_limit: int, keyring: Keyring | None) -> None:
    """Add the routes. Who may call them is the matter of `access`."""

    @app.post(
        "/cache/pins",
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _BODY}}}},
    )
    async def add(http: Request) -> dict[str, Any]:
        """Compute a prefix and pin it, for all or for one tenant; 409 if no more may be pinned."""
        prefix, own = await read_prefix(http, served, body_limit, _OWN)
        scope = _scope(own, keyring)
        block_size = served.client.stats().block_size
        if len(prefix) < block_size:
            message = f"the prefix has {len(prefix)} tokens; whole blocks are pinned, and one is {block_size} tokens"
            raise ApiError(400, message, code="below_granularity")
        name = f"pin-{uuid.uuid4().hex}"
        usage = await compute(http, served, name, prefix, scope, pin=name)
        if not usage.retained_tokens:
            message = (
                "no more may be pinned: with what is retained for a time this would be more than "
                "--max-retained-share of the cache; delete a pin, or start the server with a higher one"
            )
            raise ApiError(409, message, code="pins_full")
        pin = Pin(name, scope, usage.retained_tokens, usage.retained_tokens // block_size)
        return {**_shown(pin), "model": served.model_name, "cached_tokens": usage.cached_tokens}

    @app.get("/cache/pins")
    async def pins() -> dict[str, Any]:
        """What is pinned, the oldest first; a pin without blocks had to be given up for a request."""
        return {"object": "list", "data": [_shown(pin) for pin in await served.client.pins()]}

    @app.delete("/cache/pins/{name}")
    async def delete(name: str) -> dict[str, Any]:
        """Let go of a pin; its blocks are then kept like any other."""
        pin = await served.client.unpin(name)
        if pin is None:
            raise ApiError(404, f"there is no pin {short(name)}", code="no_such_pin")
        return {"id": pin.name, "object": "cache.pin", "deleted": True}


def _scope(own: dict[str, Any], keyring: Keyring | None) -> Scope:
    """Whose the pin is to be. Raises ApiError."""
    for field, value in own.items():
        if not isinstance(value, str) or not value:
            raise ApiError(400, f"{field} must be a string that is not empty", param=field, code="invalid_value")
    if "tenant" not in own:
        if "cache_salt" in own:
            message = "what is public has no salt; give a tenant with cache_salt"
            raise ApiError(400, message, param="cache_salt", code="invalid_value")
        return PUBLIC
    tenant = own["tenant"]
    known = tenant == DEFAULT.tenant if keyring is None else tenant in keyring.rules
    if not known:
        raise ApiError(400, f"there is no tenant {short(tenant)}", param="tenant", code="invalid_value")
    if keyring is not None and not keyring.reuses(tenant):
        message = f"tenant {short(tenant)} has share = false: it would never read what is pinned for it"
        raise ApiError(400, message, param="tenant", code="invalid_value")
    return Scope(tenant, own.get("cache_salt"))


def _shown(pin: Pin) -> dict[str, Any]:
    tenant = None if pin.scope == PUBLIC else pin.scope.tenant
    return {
        "id": pin.name,
        "object": "cache.pin",
        "tenant": tenant,
        "cache_salt": pin.scope.salt,
        "tokens": pin.tokens,
        "blocks": pin.blocks,
    }
