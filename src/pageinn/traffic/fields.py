"""Reading values out of rows that anybody may have written: each getter refuses what it cannot use."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from pageinn.memory.tokens import pack
from pageinn.traffic.record import Tokens
from pageinn.traffic.report import BadRowError

Row = dict[str, Any]

TIMES = ("timestamp", "time", "ts", "created_at", "created", "start_time", "startTime", "arrival_time", "arrived_at")
ENDS = ("end_time", "endTime", "completed_at", "finished_at")
#: OpenAI's `user` is not among them: it is a person behind the service, whom no engine keeps apart from others.
TENANTS = ("tenant", "tenant_id", "organization", "organization_id", "org_id", "team_id", "api_key_hash")
SESSIONS = ("session_id", "session", "conversation_id", "thread_id", "chat_id")
SECONDS = ("duration", "duration_s", "latency", "latency_s", "api_time", "elapsed", "e2e_latency")
MILLISECONDS = ("duration_ms", "latency_ms", "response_time_ms")

_INTEGERS = {int}
#: No time in nanoseconds is as large.
_LAST = 1e20
#: An epoch in seconds, milliseconds, microseconds or nanoseconds is told by its size: all four of them after 1973.
_EPOCHS = ((1e17, 10**9), (1e14, 10**6), (1e11, 10**3))


def first(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The first of these that is there and not null."""
    for name in names:
        value = row.get(name)
        if value is not None:
            return value
    return None


def time_of(value: Any, unit: float = 1.0) -> float | None:
    """Seconds. Numbers too small for an epoch are taken times `unit`; text is ISO 8601 or RFC 5322 (UTC if unsaid).

    Raises BadRowError for anything else but None.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BadRowError(f"a time is {short(value)}, neither a number nor a date")
    if isinstance(value, str):
        return _time_of_text(value)
    if not -_LAST < value < _LAST:
        raise BadRowError(f"a time is {short(value)}")
    for least, per_second in _EPOCHS:
        if value >= least:
            return value / per_second
    return value * unit


def _time_of_text(text: str) -> float:
    try:
        return time_of(float(text)) or 0.0
    except ValueError:
        pass
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            when = parse(text.strip())
        except (ValueError, TypeError):
            continue
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    raise BadRowError(f"a time is {short(text)}, neither a number nor a date")


def duration_of(row: Mapping[str, Any], start: float | None) -> float | None:
    """Seconds from arrival to the end, as the row says it or from its end time; None where it does not."""
    for names, scale in ((SECONDS, 1.0), (MILLISECONDS, 1e-3)):
        value = first(row, names)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
            return value * scale
    end = time_of(first(row, ENDS))
    return end - start if end is not None and start is not None and end >= start else None


def name_of(value: Any) -> str:
    """A tenant's or session's name; numbers are names too."""
    if value is None or isinstance(value, bool | dict | list):
        return ""
    return str(value)


def count_of(value: Any, name: str) -> int:
    """A whole number from 0 on, below 2**53. Raises BadRowError for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise BadRowError(f"'{name}' is {short(value)}, not a count")
    return value


def optional_count(value: Any, name: str) -> int | None:
    """As count_of, but nothing stays nothing."""
    return None if value is None else count_of(value, name)


def object_of(value: Any, name: str) -> Row:
    """An object, or the text of one. Raises BadRowError."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadRowError(f"'{name}' is text that is not JSON") from error
    if not isinstance(value, dict):
        raise BadRowError(f"'{name}' is {short(value)}, not an object")
    return value


def objects_of(value: Any, name: str) -> list[Row]:
    """A list of objects; nothing is an empty one. Raises BadRowError."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BadRowError(f"'{name}' is {short(value)}, not a list of objects")
    return value


def is_ids(value: Any) -> bool:
    """Whether it is a list of token ids; true of an empty list."""
    return isinstance(value, list) and set(map(type, value)) <= _INTEGERS


def tokens_of(ids: list[int], name: str) -> Tokens:
    """Packed token ids. Raises BadRowError if one does not fit in 32 bits."""
    try:
        return Tokens(pack(ids))
    except OverflowError as error:
        raise BadRowError(f"'{name}' holds an id outside 0..2**32-1") from error


def short(value: Any) -> str:
    """A value for a message, cut."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
