"""GET / and what belongs to it. The files say nothing about anybody and are open; the state is for admins."""

from __future__ import annotations

import gzip
from importlib.resources import files

from fastapi import FastAPI, Request
from starlette.responses import Response

from pageinn.server.dashboard.feed import Feed
from pageinn.server.errors import ApiError

_STATIC = files("pageinn.server.dashboard") / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def add_dashboard(app: FastAPI, feed: Feed) -> None:
    """Add the routes. Who may see the state is the matter of `access`."""
    pages = _files()

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response((_STATIC / "index.html").read_bytes(), media_type="text/html", headers=_HEADERS)

    @app.get("/dashboard/static/{name:path}", include_in_schema=False)
    async def static(name: str) -> Response:
        if name not in pages:
            raise ApiError(404, "the dashboard has no such file", code="no_such_file")
        return Response(pages[name], media_type=_TYPES[name[name.rindex(".") :]], headers=_HEADERS)

    @app.get("/dashboard/state", include_in_schema=False)
    async def state(http: Request) -> Response:
        body, headers = await feed.body(), {"cache-control": "no-store", "vary": "accept-encoding"}
        if "gzip" in http.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
        else:
            body = gzip.decompress(body)
        return Response(body, media_type="application/json", headers=headers)


def _files() -> dict[str, bytes]:
    """What a browser may ask for, by its path below `static`."""
    found = {}
    for folder, prefix in ((_STATIC, ""), (_STATIC / "vendor", "vendor/")):
        for file in folder.iterdir():
            if file.is_file() and file.name.endswith(tuple(_TYPES)):
                found[prefix + file.name] = file.read_bytes()
    return found
