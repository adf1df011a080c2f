"""Who may ask what: the key of a request is looked at before anything else of it.

A path that is not named here needs a key where there are keys, so that a new route is closed until somebody opens it.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pageinn.server.errors import ApiError
from pageinn.server.tenants import ANYONE, Keyring, Tenant

OPEN = frozenset({"/", "/health", "/ready"})
#: The files of the dashboard, which hold nothing of what it shows.
OPEN_FILES = "/dashboard/static/"
METRICS = "/metrics"
#: The same figures and more.
DASHBOARD = "/dashboard"
#: What changes or shows the cache of all, with everything below it.
FOR_ADMINS = ("/reset_prefix_cache", "/cache", DASHBOARD)
#: Where the tenant stands in the ASGI scope.
_TENANT = "pageinn.tenant"


@dataclass(frozen=True)
class Access:
    """What was configured. Without a keyring everybody is one tenant who may do everything."""

    keyring: Keyring | None = None
    metrics_key: str | None = None


class AccessControl:
    """ASGI middleware: 401 without a good key, 403 where an admin's is needed, else the tenant for the routes."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._keyring = access.keyring
        self._metrics_key = access.metrics_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a refusal, or pass the request on."""
        if scope["type"] == "http":
            try:
                scope[_TENANT] = self._tenant(scope)
            except ApiError as error:
                headers = {"www-authenticate": "Bearer"} if error.status == 401 else None
                await JSONResponse(error.body(), error.status, headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _tenant(self, scope: Scope) -> Tenant | None:
        """Who asks; None where nobody needs to know. Raises ApiError."""
        path: str = scope["path"]
        if path in OPEN or path.startswith(OPEN_FILES):
            return None
        if path == METRICS:
            self._check_metrics(scope)
            return None
        if self._keyring is None:
            if path.startswith(DASHBOARD):
                self._check_metrics(scope)
            return ANYONE
        tenant = self._keyring.tenant_of(_key(scope))
        if tenant is None:
            raise ApiError(401, "the API key is not known to this server", code="invalid_api_key")
        if not tenant.admin and any(path == admin or path.startswith(f"{admin}/") for admin in FOR_ADMINS):
            raise ApiError(403, f"{path} needs a key of an admin", code="admin_only", kind="permission_error")
        return tenant if self._keyring.shares(path) else tenant._replace(share=False)

    def _check_metrics(self, scope: Scope) -> None:
        if self._metrics_key is None:
            return
        expected, given = sha256(self._metrics_key.encode()).digest(), sha256(_key(scope)).digest()
        if not hmac.compare_digest(expected, given):
            raise ApiError(401, "the key is not the one of --metrics-key", code="invalid_api_key")


def _key(scope: Scope) -> bytes:
    """The bearer token. Raises ApiError if there is none."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer" and key.strip():
                return bytes(key.strip())
    message = "no API key was given; send it in the header 'Authorization: Bearer KEY'"
    raise ApiError(401, message, code="missing_api_key")


def tenant_of(http: Request) -> Tenant:
    """Who asks, for a route that needs to know."""
    tenant: Tenant = http.scope[_TENANT]
    return tenant
