"""`pageinn warm`: publish and pin the prefixes of a file on a running server."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from tqdm import tqdm

from pageinn.cli.connection import UnavailableError, connect, error_of, model_of


class WarmError(RuntimeError):
    """The file cannot be read; one line says why."""


class _Row(NamedTuple):
    line: int
    body: dict[str, Any]
    pin: bool


class _RowError(ValueError):
    """A line is no prefix; the message says why."""


def warm_command(args: Namespace) -> int:
    """Warm a server; returns the exit code, 1 if any line failed."""
    try:
        return asyncio.run(_warm(args))
    except (UnavailableError, WarmError) as error:
        print(f"pageinn: error: {error}", file=sys.stderr)
        return 1


async def _warm(args: Namespace) -> int:
    lines = _lines(args.file)
    tokens = published = pinned = failed = 0
    async with connect(args) as client:
        await model_of(client)
        for number, line in tqdm(lines, desc="Warming", unit="prefix", disable=None, leave=False):
            try:
                row = _row(number, line)
                tokens += await _send(client, row)
            except _RowError as error:
                failed += 1
                print(f"pageinn: {args.file}, line {number}: {error}", file=sys.stderr)
                continue
            pinned += row.pin
            published += not row.pin
    failures = f", {failed} lines failed" if failed else ""
    print(f"{published + pinned} prefixes, {tokens} tokens: {published} published, {pinned} pinned{failures}")
    return 1 if failed else 0


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise WarmError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WarmError(f"{path} is not UTF-8: byte {error.start} is wrong") from error
    return list(_numbered(text))


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line


def _row(number: int, line: str) -> _Row:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _RowError(f"no JSON: {error}") from error
    if not isinstance(body, dict):
        raise _RowError("no JSON object")
    pin = body.pop("pin", False)
    if not isinstance(pin, bool):
        raise _RowError("pin is neither true nor false")
    if not pin and "tenant" in body:
        raise _RowError("a prefix for one tenant needs pin: true; without a tenant it is published for all")
    return _Row(number, body, pin)


async def _send(client: httpx.AsyncClient, row: _Row) -> int:
    """Have the server compute a prefix; how many tokens it has. Raises _RowError, UnavailableError."""
    # In ASCII: httpx's own encoder raises for half a surrogate pair and for NaN, which the server refuses by name.
    content, headers = json.dumps(row.body), {"content-type": "application/json"}
    try:
        got = await client.post("/cache/pins" if row.pin else "/cache/public", content=content, headers=headers)
    except httpx.TransportError as error:
        raise UnavailableError(f"cannot reach {client.base_url}: {str(error) or type(error).__name__}") from error
    if got.status_code != httpx.codes.OK:
        raise _RowError(f"{got.status_code}: {error_of(got)}")
    return int(got.json()["tokens"])
