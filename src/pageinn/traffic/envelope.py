"""A request's body and what is written around it: when, whose, and how it was answered."""

from __future__ import annotations

from typing import Any, NamedTuple

from pageinn.traffic.fields import SESSIONS, TENANTS, TIMES, Row, duration_of, first, name_of, object_of, time_of
from pageinn.traffic.record import Prompt, Record, Reported
from pageinn.traffic.usage import output_tokens, reported

#: Under which names logs keep a request's body and its answer.
BODIES = ("body", "request", "request_body", "params")
ANSWERS = ("response", "response_body", "answer")


class Place(NamedTuple):
    """Where a row was read."""

    source: str
    line: int


class Envelope(NamedTuple):
    """A body and its answer (empty where the log has none), and the row around them (the body itself if none)."""

    body: Row
    answer: Row
    around: Row


def opened(row: Row) -> Envelope:
    """Find the body. Raises BadRowError if what stands in its place is no object."""
    body = row
    inner = first(row, BODIES)
    if inner is not None and "messages" not in row and "prompt" not in row:
        body = object_of(inner, "request")
        # {"request": {"method": ..., "body": {...}}}
        if "body" in body and "messages" not in body and "prompt" not in body:
            body = object_of(body["body"], "body")
    answer = first(row, ANSWERS)
    found: Row = {}
    if isinstance(answer, dict) or (isinstance(answer, str) and answer.lstrip().startswith("{")):
        found = object_of(answer, "response")
        if "body" in found and "usage" not in found:
            found = object_of(found["body"] or {}, "body")
    return Envelope(body, found, row)


def record_of(place: Place, envelope: Envelope, prompt: Prompt, output: str | None) -> Record:
    """The record of one prompt of the body. Raises BadRowError for a malformed time or count."""
    body, answer, around = envelope
    usage: Any = answer.get("usage") or around.get("usage")
    time = time_of(first(around, TIMES) if body is not around else first(around, TIMES[:-1]))
    if time is None:
        time = time_of(answer.get("created"))
    said: Reported | None = reported(usage)
    metadata = body.get("metadata") if isinstance(body.get("metadata"), dict) else {}
    return Record(
        source=place.source,
        line=place.line,
        prompt=prompt,
        time=time,
        tenant=_name(around, body, metadata or {}, TENANTS),
        session=_name(around, body, metadata or {}, SESSIONS),
        model=name_of(body.get("model") or answer.get("model") or around.get("model")),
        output_tokens=output_tokens(usage),
        output=output,
        reported=said,
        duration=duration_of(around, time),
    )


def _name(around: Row, body: Row, metadata: Row, names: tuple[str, ...]) -> str:
    for row in (around, body, metadata):
        found = name_of(first(row, names))
        if found:
            return found
    return ""
