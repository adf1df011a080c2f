"""Answers alone, with their `usage`: results of batches, logs of responses. They tell lengths and what was cached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pageinn.traffic.envelope import Envelope, Place, record_of
from pageinn.traffic.fields import Row, count_of, first
from pageinn.traffic.record import Length, Record
from pageinn.traffic.report import BadRowError
from pageinn.traffic.usage import reported


def claims(row: Any) -> bool:
    """A row with an answer that says how many tokens its prompt had."""
    return isinstance(row, dict) and _answer(row) is not None


def records(row: Row, place: Place) -> Iterator[Record]:
    """One request, known by its length."""
    answer = _answer(row)
    if answer is None:
        raise BadRowError("it holds no answer with its usage")
    usage = answer["usage"]
    said = reported(usage)
    tokens = said.prompt if said is not None else count_of(_prompt_tokens(usage), "prompt_tokens")
    yield record_of(place, Envelope({}, answer, row), Length(tokens), None)


def _answer(row: Row) -> Row | None:
    """The row itself, or what the results of OpenAI's and Anthropic's batches wrap."""
    result = row.get("result")
    response = row.get("response")
    inner = result.get("message") if isinstance(result, dict) else response
    if isinstance(inner, dict) and isinstance(inner.get("body"), dict):
        inner = inner["body"]
    for found in (row, inner):
        if isinstance(found, dict) and isinstance(found.get("usage"), dict):
            return found if _prompt_tokens(found["usage"]) is not None else None
    return None


def _prompt_tokens(usage: Row) -> Any:
    return first(usage, ("prompt_tokens", "input_tokens"))
