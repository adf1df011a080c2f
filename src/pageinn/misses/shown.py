"""Records and reasons as values for json.dumps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from pageinn.explain.culprit import Parting
from pageinn.explain.kinds import Kind
from pageinn.explain.values import granularity
from pageinn.memory.scopes import PUBLIC
from pageinn.misses.reasons import Reason, detail_of, example_of, fix, kind_of, lost, part_name, position, reasons
from pageinn.misses.record import Record
from pageinn.misses.recorder import Recorder

VERSION = 1
#: Names of salts are good for as long as this process lives.
_KEY = os.urandom(32)


def misses(recorder: Recorder, limit: int, show_text: bool) -> dict[str, Any]:
    """What GET /cache/misses answers. limit: the most records listed; reasons are those of all that are kept."""
    pending = recorder.look_at_all()
    records = recorder.snapshot()
    looked = [record for record in records if not record.pending]
    return {
        "object": "cache.misses",
        "version": VERSION,
        "masked": not show_text,
        "requests": len(records),
        "pending": pending,
        "prompt_tokens": sum(record.tokens for record in records),
        "cached_tokens": sum(record.cached for record in records),
        "reasons": [_reason(reason) for reason in reasons(looked, show_text)],
        "deploys": [deploy._asdict() for deploy in reversed(recorder.deploys.told.copy())],
        "records": _records(records, limit, show_text),
    }


def _reason(reason: Reason) -> dict[str, Any]:
    return {**reason._asdict(), "example": None if reason.example is None else reason.example._asdict()}


def _records(records: Sequence[Record], limit: int, show_text: bool) -> list[dict[str, Any]]:
    by_number = {record.number: record for record in records}
    return [_record(record, by_number, show_text) for record in records[:limit]]


def _record(record: Record, by_number: dict[int, Record], show_text: bool) -> dict[str, Any]:
    fault = record.blame
    nearest = by_number.get(fault.earlier if fault is not None else record.nearest)
    parting = None if fault is None else fault.parting
    return {
        "id": record.id,
        "time": record.when,
        "tenant": None if record.scope == PUBLIC else record.scope.tenant,
        "cache_salt": _named(record.scope.salt),
        "prompt_tokens": record.tokens,
        "cached_tokens": record.cached,
        "from": None if record.origin is None else record.origin._asdict(),
        "end": str(record.told),
        "pending": record.pending,
        "kind": kind_of(record),
        "detail": record.why
        if parting is None
        else detail_of(parting.kind, _detail(parting), parting.moved_names, show_text),
        "part": "" if parting is None else part_name(parting.part, show_text),
        "position": position(record),
        "line": 0 if fault is None else fault.line,
        "column": 0 if fault is None else fault.column,
        "tokens": lost(record),
        "earlier": None if nearest is None else {"id": nearest.id, "time": nearest.when, "shared": record.shared},
        "example": None if fault is None else example_of(fault, record, nearest, show_text)._asdict(),
        "fix": fix(record),
    }


def _named(salt: str | None) -> str | None:
    """A name for a salt: whoever knows the salt itself can read what it keeps apart."""
    return None if salt is None else blake2b(salt.encode(errors="surrogatepass"), key=_KEY, digest_size=6).hexdigest()


def _detail(parting: Parting) -> str:
    """What is known besides the kind: of a clock, the finest unit in which the two readings differ."""
    if parting.kind is not Kind.CLOCK:
        return parting.difference.detail
    return granularity(value for pair in parting.difference.pairs for value in pair)
