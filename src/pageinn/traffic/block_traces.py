"""Traces that know a prompt by the ids of its blocks: Mooncake's, Qwen-Bailian's, and coding agents' sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pageinn.traffic.envelope import Place
from pageinn.traffic.fields import (
    ENDS,
    MILLISECONDS,
    SECONDS,
    SESSIONS,
    TENANTS,
    TIMES,
    Row,
    count_of,
    duration_of,
    first,
    is_ids,
    name_of,
    objects_of,
    optional_count,
    short,
    time_of,
)
from pageinn.traffic.record import BlockIds, Record
from pageinn.traffic.report import BadRowError

_LENGTHS = ("input_length", "input_tokens", "prompt_tokens")
_OUTPUTS = ("output_length", "output_tokens", "completion_tokens")
_MORE = frozenset([*TENANTS, *SESSIONS, *ENDS, *SECONDS, *MILLISECONDS, "model"])
#: Block sizes that are tried; the largest that fits most rows is taken.
_SIZES = [1 << power for power in range(13, -1, -1)]


def claims_trace(row: Any) -> bool:
    """One request with its block ids and its length."""
    return isinstance(row, dict) and isinstance(row.get("hash_ids"), list) and first(row, _LENGTHS) is not None


def claims_session(row: Any) -> bool:
    """One session with its requests."""
    return isinstance(row, dict) and isinstance(row.get("requests"), list) and "block_size" in row


def block_size_of(rows: Sequence[Any]) -> int | None:
    """The block size that explains the lengths of most of these rows; None if none explains half of them.

    A row says it itself in `block_size`; otherwise n ids and a length of L tokens fit a block size B if n is L / B,
    rounded up (the last block has an id) or down (it has none).
    """
    fits = dict.fromkeys(_SIZES, 0)
    looked_at = 0
    for row in rows:
        if not claims_trace(row):
            continue
        if isinstance(row.get("block_size"), int):
            return int(row["block_size"])
        ids, length = len(row["hash_ids"]), first(row, _LENGTHS)
        if not isinstance(length, int) or ids == 0:
            continue
        looked_at += 1
        for size in _SIZES:
            fits[size] += length // size <= ids <= -(-length // size)
    best = max(fits, key=lambda size: fits[size])
    return best if looked_at and 2 * fits[best] >= looked_at else None


class Chats:
    """Bailian's turns have an id each, and name the turn before: the first of them is the session."""

    def __init__(self) -> None:
        self._roots: dict[str, str] = {}

    def session(self, row: Row) -> str:
        """The session of a row, whose earlier turns have been asked for before; "" for a row without a chat_id."""
        chat, parent = name_of(row.get("chat_id")), name_of(row.get("parent_chat_id"))
        if not chat:
            return ""
        root = self._roots.get(parent, parent) if parent not in ("", "-1") else chat
        self._roots[chat] = root
        return root


def trace_records(row: Row, place: Place, block_size: int | None, session: str = "") -> Iterator[Record]:
    """One request; session: what the row does not name itself.

    Small timestamps are Bailian's seconds where a row has a chat_id, and Mooncake's milliseconds.
    """
    size = row.get("block_size", block_size)
    if size is None:
        raise BadRowError("no block size fits the lengths and numbers of ids; give rows a 'block_size'")
    unit = 1.0 if "chat_id" in row else 1e-3
    time = time_of(first(row, TIMES), unit)
    prompt = _prompt(row["hash_ids"], count_of(size, "block_size"), first(row, _LENGTHS), local=False)
    outputs = optional_count(first(row, _OUTPUTS), "output_length")
    if _MORE.isdisjoint(row):
        # Such traces have millions of rows, and most of them have no more than this.
        yield Record(place.source, place.line, prompt, time, output_tokens=outputs)
        return
    yield Record(
        source=place.source,
        line=place.line,
        prompt=prompt,
        time=time,
        tenant=name_of(first(row, TENANTS)),
        session=session or name_of(first(row, SESSIONS)),
        model=name_of(row.get("model")),
        output_tokens=outputs,
        duration=duration_of(row, time),
    )


def _prompt(ids: Any, size: int, length: Any, local: bool) -> BlockIds:
    tokens = count_of(length, "input_length")
    if isinstance(ids, list) and ids and isinstance(ids[0], str) and set(map(type, ids)) == {str}:
        ids = [_number(item) for item in ids]
    if not is_ids(ids):
        raise BadRowError(f"'hash_ids' is {short(ids)}, not a list of ids")
    if size < 1 or not tokens // size <= len(ids) <= -(-tokens // size):
        raise BadRowError(f"{tokens} tokens do not fill {len(ids)} blocks of {size}")
    return BlockIds(ids, size, tokens, local)


def _number(text: str) -> int:
    """A digest is taken by its last 64 bits."""
    try:
        return int(text) if text.isdecimal() and len(text) < 19 else int(text, 16) & 0xFFFF_FFFF_FFFF_FFFF
    except ValueError as error:
        raise BadRowError(f"the block id {short(text)} is no number") from error


def session_records(row: Row, place: Place) -> Iterator[Record]:
    """All requests of a session, those of its sub-agents too. Their times count from the sub-agent's start."""
    session = name_of(row.get("id")) or f"{place.source}:{place.line}"
    size = count_of(row["block_size"], "block_size")
    local = row.get("hash_id_scope", "local") != "global"
    found = list(_requests(objects_of(row["requests"], "requests"), place, session, size, local, 0.0, ""))
    if not found:
        raise BadRowError("the session has no requests")
    yield from found


def _requests(
    rows: list[Row], place: Place, session: str, size: int, local: bool, start: float, model: str
) -> Iterator[Record]:
    for row in rows:
        time = start + (time_of(row.get("t")) or 0.0)
        if "requests" in row:
            inner = objects_of(row["requests"], "requests")
            yield from _requests(inner, place, session, size, local, time, _only_model(row))
        elif "hash_ids" in row:
            yield Record(
                source=place.source,
                line=place.line,
                prompt=_prompt(row["hash_ids"], size, row.get("in"), local),
                time=time,
                session=session,
                model=name_of(row.get("model")) or model,
                output_tokens=optional_count(row.get("out"), "out"),
                duration=duration_of(row, time),
            )


def _only_model(row: Mapping[str, Any]) -> str:
    models = row.get("models")
    return str(models[0]) if isinstance(models, list) and len(models) == 1 else ""
