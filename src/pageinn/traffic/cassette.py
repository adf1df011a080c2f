"""Recorded HTTP exchanges (VCR cassettes): a request's body beside its answer's."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from pageinn.traffic.fields import Row, first
from pageinn.traffic.report import BadRowError


def claims(head: bytes) -> bool:
    """Whether a file begins as a cassette in YAML does."""
    return any(line.startswith(b"interactions:") for line in head.split(b"\n", 20)[:20])


def rows(stream: BinaryIO) -> Iterator[Row]:
    """One row an exchange, as request and response. Raises BadRowError if the file is no cassette."""
    import yaml

    try:
        content = yaml.load(stream, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise BadRowError(f"not YAML: {' '.join(str(error).split())[:80]}") from error
    exchanges = content.get("interactions") if isinstance(content, dict) else None
    if not isinstance(exchanges, list):
        raise BadRowError("no list of interactions is in it")
    for exchange in exchanges:
        yield _row(exchange)


def _row(exchange: Any) -> Row:
    request = exchange.get("request") if isinstance(exchange, dict) else None
    response = exchange.get("response") if isinstance(exchange, dict) else None
    if not isinstance(request, dict) or not isinstance(response, dict):
        return {}
    body = response.get("body")
    answer = body.get("string") if isinstance(body, dict) else body
    headers = response.get("headers") if isinstance(response.get("headers"), dict) else {}
    when = first(headers or {}, ("Date", "date"))
    return {
        "request": _text(request.get("body")),
        "response": _text(answer),
        "timestamp": when[0] if isinstance(when, list) and when else None,
    }


def _text(value: Any) -> Any:
    """A body as text; some are recorded as they were sent, compressed."""
    if not isinstance(value, bytes):
        return value
    if value.startswith(b"\x1f\x8b"):
        try:
            value = gzip.decompress(value)
        except (OSError, EOFError, zlib.error) as error:
            raise BadRowError(f"a recorded answer cannot be decompressed: {error}") from error
    return value.decode(errors="replace")
