"""X-Cache-Match: for one who asks, what of a prompt was found, and why no more.

It tells nothing of other scopes, and no text.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from pageinn.misses.reasons import part_name
from pageinn.misses.record import Record
from pageinn.server.generation import Run
from pageinn.server.served import Served

HEADER = "x-cache-match"


async def match_header(http: Request, served: Served, run: Run) -> dict[str, str]:
    """The header, if the request has one of the same name and one prompt; call it once the first piece is there."""
    if HEADER not in http.headers or served.misses is None or len(run.requests) > 1:
        return {}
    record = await asyncio.to_thread(served.misses.look_at, run.requests[0].request_id)
    return {} if record is None else {HEADER: _value(record)}


def _value(record: Record) -> str:
    fields = {"cached": str(record.cached), "prompt": str(record.tokens), "end": str(record.end)}
    if record.fault is not None:
        parting = record.fault.parting
        fields |= {"kind": str(parting.kind), "part": part_name(parting.part, show_text=False)}
        fields["position"] = str(record.fault.position)
    return "; ".join(f"{name}={value.replace(' ', '-')}" for name, value in fields.items())
